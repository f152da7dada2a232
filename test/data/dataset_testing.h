/*
Runs data/tokenize in tests as a user does, and reads the datasets that it writes.

  tokenize("in.txt --out out");                must succeed
  CHECK(contains(refusal("none --out out"), "no such file"));
  const Dataset dataset("out");                dataset.train, dataset.val: decoded text; dataset.json: dataset.json
*/
#pragma once
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>
#include "llmc/base/file.h"       // read_file
#include "llmc/data/shards.h"     // open_shards
#include "llmc/data/tokenizer.h"  // load_tokenizer
#include "test/testing.h"

// The names of a folder's files, sorted, as one string.
inline std::string listing(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    std::string all;
    for (const std::string& name : names) all += name + " ";
    return all;
}

inline std::vector<int32_t> tokens_of(const std::string& pattern) {
    std::vector<int32_t> all;
    for (const TokenShard& shard : open_shards(pattern)) {
        std::vector<int32_t> ids(size_t(shard.num_tokens()));
        shard.copy(0, shard.num_tokens(), ids.data());
        all.insert(all.end(), ids.begin(), ids.end());
    }
    return all;
}

// A dataset as text: its tokens decoded with its tokenizer. Checks dataset.json against them.
struct Dataset {
    std::string json, train, val;
    explicit Dataset(const std::string& folder) : json(read_file(folder + "/dataset.json")) {
        const Tokenizer tokenizer = load_tokenizer(folder + "/tokenizer.json");
        const std::vector<int32_t> train_ids = tokens_of(folder + "/train_*.bin");
        const int64_t num_val = int64_t(number("val_tokens"));
        const std::vector<int32_t> val_ids = num_val > 0 ? tokens_of(folder + "/val_*.bin") : std::vector<int32_t>();
        train = tokenizer.decode(train_ids);
        val = tokenizer.decode(val_ids);
        CHECK(number("train_tokens") == double(train_ids.size()));
        CHECK(num_val == int64_t(val_ids.size()));
        CHECK(number("vocab_size") == tokenizer.vocab_size());
        CHECK(contains(json, std::string("\"tokenizer\": \"") + tokenizer.name() + "\""));
    }
    // The value of the first key of this name in dataset.json.
    double number(const std::string& key) const {
        const size_t at = json.find("\"" + key + "\": ");
        REQUIRE(at != std::string::npos);
        return std::strtod(json.c_str() + at + key.size() + 4, nullptr);
    }
};

inline void tokenize(const std::string& arguments) {
    const Finished finished = run(program("data/tokenize") + " " + arguments);
    INFO(arguments << ": " << finished.err);
    REQUIRE(finished.exit_code == 0);
    // A note on the vocabulary, or progress, on a slow machine.
    CHECK((finished.err == "" || finished.err.starts_with("note: ") || contains(finished.err, " MB of text | ")));
}

// The error of data/tokenize for bad arguments or input, which must be one line on stderr, with exit code 2.
inline std::string refusal(const std::string& arguments) {
    const Finished finished = run(program("data/tokenize") + " " + arguments);
    CHECK(finished.exit_code == 2);
    CHECK(finished.out == "");
    CHECK(finished.err.rfind("error: ", 0) == 0);
    CHECK(std::count(finished.err.begin(), finished.err.end(), '\n') == 1);
    return finished.err;
}

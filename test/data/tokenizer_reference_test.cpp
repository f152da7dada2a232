// Ids and merges against tiktoken, Hugging Face's `tokenizers` and rustbpe. Their results are in
// test/fixtures/tokenizers/ and, many more, in $ANVIL_TOKENIZER_CASES: see dev/fixtures/make_tokenizer_fixtures.py.
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include "llmc/base/file.h"  // read_file, write_file_atomically, make_folders
#include "llmc/data/bpe.h"   // Bpe
#include "llmc/data/bpe_training.h"
#include "llmc/data/nfc.h"  // to_nfc
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_formats.h"  // read_ranks
#include "test/testing.h"

namespace {
namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

// The parts of a name such as "gpt2.json--mixed".
std::vector<std::string> parts_of(std::string name) {
    std::vector<std::string> parts;
    for (size_t at; (at = name.find("--")) != std::string::npos; name = name.substr(at + 2))
        parts.push_back(name.substr(0, at));
    parts.push_back(name);
    return parts;
}

std::vector<fs::path> files_ending(const std::string& folder, const std::string& ending) {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ending && contains(entry.path().stem(), "--")) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    return paths;
}

Ids ids_in(const std::string& path) {
    const std::string bytes = read_file(path);
    Ids ids(bytes.size() / sizeof(int32_t));
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    return ids;
}

// "" if they are the same, else where they part.
std::string difference(const Ids& ours, const Ids& theirs) {
    const size_t n = std::min(ours.size(), theirs.size());
    const size_t at =
        size_t(std::mismatch(ours.begin(), ours.begin() + int64_t(n), theirs.begin()).first - ours.begin());
    if (at == n && ours.size() == theirs.size()) return "";
    return format("%zu ids and %zu, which part at %zu", ours.size(), theirs.size(), at);
}

// A text after encoding and decoding.
std::string seen_by(const Bpe& bpe, std::string text) {
    if (!bpe.of_characters) return bpe.normalizes ? to_nfc(text) : text;
    for (size_t at = 0; (at = text.find(kSpelledSpace, at)) != std::string::npos;) text.replace(at, 3, " ");
    const bool puts_one = bpe.first_space != FirstSpace::none && !(bpe.metaspace && text[0] == ' ');
    return puts_one ? " " + text : text;
}

// Every tokenizer of the folder on its texts; as it was read, and after it was written as what it can be.
void check_ids(const std::string& folder, const std::string& out) {
    std::map<std::string, std::vector<Tokenizer>> tokenizers;
    for (const fs::path& path : files_ending(folder, ".ids")) {
        const std::vector<std::string> parts = parts_of(path.stem());
        const std::string name = parts[0], text = read_file(folder + "/" + parts[1] + ".txt");
        std::vector<Tokenizer>& ways = tokenizers[name];
        if (ways.empty()) {
            ways.push_back(load_tokenizer(folder + "/" + name));
            save_tokenizer(ways[0], out + "/" + name + ".json");
            ways.push_back(load_tokenizer(out + "/" + name + ".json"));
            // Those of `tokenizers` have the special tokens first, which ranks cannot say.
            if (fs::path(name).extension() != ".json") {
                save_ranks(ways[0], out + "/" + name + ".tiktoken");
                ways.push_back(load_tokenizer(out + "/" + name + ".tiktoken"));
            }
        }
        const Ids theirs = ids_in(path);
        for (const Tokenizer& tokenizer : ways) {
            INFO(path << ", way " << &tokenizer - &ways[0]);
            CHECK(difference(tokenizer.encode(text), theirs) == "");
            CHECK(tokenizer.separator() == ways[0].separator());
            CHECK(tokenizer.token_bytes() == ways[0].token_bytes());
        }
        // Added tokens take white space along, and parts between them begin with a space.
        const bool back = name.starts_with("added") || ways[0].decode(theirs) == seen_by(*ways[0].bpe, text);
        CHECK(back);
        for (const int threads : {1, 2, 5}) CHECK(difference(ways[0].encode(text, "", threads), theirs) == "");
    }
    CHECK(tokenizers.size() >= 11);
}

// The tokens learned from a text, against those of rustbpe.
void check_training(const std::string& folder) {
    const std::vector<fs::path> paths = files_ending(folder, ".ranks");
    CHECK(paths.size() == 10);
    for (const fs::path& path : paths) {
        const std::vector<std::string> parts = parts_of(path.stem());
        PieceCounts counts(parts[0]);
        counts.add(read_file(folder + "/" + parts[2] + ".txt"));
        const Tokenizer ours = train_bpe(counts, {.vocab_size = std::stoi(parts[1]), .special_tokens = {}});
        const Tokenizer theirs =
            read_ranks(read_file(path), "{\"pattern\": \"" + parts[0] + "\", \"special_tokens\": {}}", path);
        INFO(path);
        const bool same = ours.symbols == theirs.symbols;
        CHECK(same);
    }
}
}  // namespace

TEST_CASE("ids are those of tiktoken and tokenizers", "[tokenizer_reference][tokenizer]") {
    const ScratchFolder scratch;
    check_ids("test/fixtures/tokenizers", scratch.path);
}

TEST_CASE("the tokens learned are rustbpe's", "[tokenizer_reference][tokenizer]") {
    check_training("test/fixtures/tokenizers");
}

TEST_CASE("ids and tokens are the same on much more text", "[tokenizer_reference]") {
    const char* folder = std::getenv("ANVIL_TOKENIZER_CASES");
    if (!folder) {
        WARN("not tested: ANVIL_TOKENIZER_CASES is not set (dev/interop/check_tokenizers.sh sets it)");
        return;
    }
    make_folders(std::string(folder) + "/ours");
    check_ids(folder, std::string(folder) + "/ours");
    check_training(folder);
}

// data/tokenize with byte-pair tokenizers: GPT-2's, and ones that it trains.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include "llmc/data/stories.h"
#include "test/data/dataset_testing.h"

namespace {
namespace fs = std::filesystem;

// Pieces of a text, each with the empty line that ends it, as lines of JSON.
std::string lines_of(const std::string& text) {
    std::string lines;
    for (size_t at = 0; at < text.size();) {
        const size_t gap = text.find("\n\n", at), end = gap == std::string::npos ? text.size() : gap + 2;
        lines += "{\"text\": \"";
        for (const char c : text.substr(at, end - at)) lines += c == '\n' ? "\\n" : std::string(c == '"', '\\') + c;
        lines += "\"}\n";
        at = end;
    }
    return lines;
}
}  // namespace

TEST_CASE("a tokenizer is trained on what is for training, and used", "[train_tokenizer]") {
    const ScratchFolder scratch;
    write_file_atomically(scratch / "in.jsonl", lines_of(tell_stories(200'000, 3).text));
    const std::string flags = scratch / "in.jsonl --train-tokenizer --vocab-size 600 --shard-tokens 2000 --out ";
    tokenize(flags + scratch / "out --threads 3");
    const Dataset dataset(scratch / "out");
    const Tokenizer tokenizer = load_tokenizer(scratch / "out/tokenizer.json");
    CHECK(tokenizer.vocab_size() == 600);
    CHECK(tokenizer.symbols[size_t(tokenizer.separator())] == "<|bos|>");
    const auto ids = tokens_of(scratch / "out/train_*.bin");
    const auto boundaries = std::count(ids.begin(), ids.end(), tokenizer.separator()) + [&] {
        const auto val = tokens_of(scratch / "out/val_*.bin");
        return std::count(val.begin(), val.end(), tokenizer.separator());
    }();
    CHECK(double(boundaries) == dataset.number("documents"));
    CHECK(ids[0] == tokenizer.separator());
    CHECK(double(ids.size()) * 3 < dataset.number("bytes"));  // stories say the same again and again

    // Words that are for validation alone are not learnt: what the training half holds makes the same tokenizer.
    write_file_atomically(scratch / "val.txt", std::string(20'000, 'q'));
    tokenize(flags + scratch / "all --val-fraction 0 --threads 3");
    tokenize(flags + scratch / "out --val-input " + scratch / "val.txt");
    CHECK(read_file(scratch / "out/tokenizer.json") == read_file(scratch / "all/tokenizer.json"));
    tokenize(flags + scratch / "one --val-fraction 0 --threads 1");
    CHECK(read_file(scratch / "one/tokenizer.json") == read_file(scratch / "all/tokenizer.json"));
    // It sees no more than it is told to.
    tokenize(flags + scratch / "few --val-fraction 0 --tokenizer-bytes 1");
    CHECK(read_file(scratch / "few/tokenizer.json") == read_file(scratch / "all/tokenizer.json"));  // one batch
    write_file_atomically(scratch / "more.txt", std::string(20'000, 'q'));
    const std::string few = run(program("data/tokenize") + " " + scratch / "more.txt " + flags +
                                scratch / "few --val-fraction 0 --tokenizer-bytes 1")
                                .err;
    const int found = load_tokenizer(scratch / "few/tokenizer.json").vocab_size();
    CHECK(found < 300);
    CHECK(contains(few, "note: " + std::to_string(found) + " tokens, of --vocab-size 600: "));

    tokenize(flags + scratch / "gpt2 --pattern gpt2");
    const Tokenizer gpt2 = load_tokenizer(scratch / "gpt2/tokenizer.json");
    CHECK(gpt2.symbols[size_t(gpt2.separator())] == "<|endoftext|>");
    // And used for another text.
    tokenize(scratch / "val.txt --tokenizer " + scratch / "gpt2/tokenizer.json --out " + scratch / "out");
    CHECK(Dataset(scratch / "out").train + Dataset(scratch / "out").val == std::string(20'000, 'q'));
}

TEST_CASE("a run that was killed keeps the tokenizer that it has trained", "[train_tokenizer]") {
    const ScratchFolder scratch;
    write_file_atomically(scratch / "in.jsonl", lines_of(tell_stories(400'000, 3).text));
    const std::string flags = scratch / "in.jsonl --train-tokenizer --vocab-size 500 --out ";
    tokenize(flags + scratch / "whole");
    const std::string out = scratch / "out";
    // A run that ends at its second shard, as on a full disk: 40 blocks of 1024 bytes hold the tokenizer.
    const Finished full = run("trap '' XFSZ; ulimit -f 40; " + program("data/tokenize") + " " + flags + out +
                              " --shard-tokens 15000 --val-fraction 0; test $? = 2");
    REQUIRE(full.exit_code == 0);
    REQUIRE(fs::exists(out + "/partial/tokenizer_key") == fs::exists(out + "/partial/train_000000.bin"));
    tokenize(flags + out);
    CHECK(read_file(out + "/train_000000.bin") == read_file(scratch / "whole/train_000000.bin"));
    CHECK(read_file(out + "/tokenizer.json") == read_file(scratch / "whole/tokenizer.json"));
}

TEST_CASE("what --train-tokenizer refuses", "[train_tokenizer]") {
    const ScratchFolder scratch;
    const std::string in = "--stories 2000 --out " + scratch / "out ";
    CHECK(contains(refusal(in + "--train-tokenizer --vocab-size 255"), "--vocab-size 255: expected at least 265"));
    CHECK(contains(refusal(in + "--train-tokenizer --vocab-size 256 --pattern gpt4"), "expected at least 257"));
    CHECK(contains(refusal(in + "--train-tokenizer --pattern gpt5"), "gpt5"));
    CHECK(contains(refusal(in + "--train-tokenizer --tokenizer-bytes 0"), "--tokenizer-bytes 0: expected at least 1"));
    CHECK(contains(refusal(in + "--train-tokenizer --tokenizer char"), "--tokenizer"));
    CHECK(contains(refusal(in + "--vocab-size 1000"), "--train-tokenizer"));
    CHECK_FALSE(fs::exists(scratch / "out"));
}

TEST_CASE("tiny Shakespeare in GPT-2's tokens: llm.c's files, byte for byte", "[train_tokenizer]") {
    const char* mirror = std::getenv("ANVIL_MIRROR");
    if (!mirror || !fs::exists(mirror / fs::path("vocab.bpe"))) {
        WARN("not tested: ANVIL_MIRROR is not set to a folder with tinyshakespeare.txt and vocab.bpe");
        return;
    }
    const ScratchFolder scratch;
    const std::string text = read_file(mirror + std::string("/tinyshakespeare.txt"));
    const std::string vocab = mirror + std::string("/vocab.bpe");
    write_file_atomically(scratch / "in.txt", text);
    tokenize(scratch / "in.txt --val-fraction 0 --tokenizer " + vocab + " --out " + scratch / "plain");
    CHECK(Dataset(scratch / "plain").number("train_tokens") == 338'025);
    CHECK(Dataset(scratch / "plain").train == text);

    write_file_atomically(scratch / "in.jsonl", lines_of(text));
    tokenize(scratch / "in.jsonl --val-fraction 0 --shard-tokens 100000 --tokenizer " + vocab + " --out " +
             scratch / "out");
    const std::vector<int32_t> ids = tokens_of(scratch / "out/train_*.bin");
    REQUIRE(ids.size() == 305'260 + 32'768);
    const auto sha256_of = [&](size_t begin, size_t end) {
        ShardWriter writer(scratch / "shard.bin", 50257);
        writer.append(ids.data() + begin, int64_t(end - begin));
        writer.finish();
        return run("sha256sum <" + scratch / "shard.bin").out.substr(0, 64);
    };
    CHECK(sha256_of(0, 32'768) == "fe99db720dc7c83e694806d4e047a952909411da1daccde4ccc2e55f40882a62");
    CHECK(sha256_of(32'768, ids.size()) == "8a70606be574040c26d225694f5f9759973b419852d22f7fe5c118e1b359dcc8");
}

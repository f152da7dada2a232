// data/prepare and data/tinyshakespeare.sh as a user runs them.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include "llmc/base/hash.h"  // xxh3, hex64
#include "llmc/base/file.h"  // read_file, write_file_atomically, make_folders
#include "llmc/data/shards.h"
#include "llmc/data/stories.h"
#include "llmc/data/tokenizer.h"
#include "test/testing.h"

namespace {
namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

// The files of a folder, sorted, as one string.
std::string listing(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    std::string all;
    for (const std::string& name : names) all += name + " ";
    return all;
}

Ids tokens_of(const std::string& pattern) {
    Ids all;
    for (const TokenShard& shard : open_shards(pattern)) {
        Ids ids(size_t(shard.num_tokens()));
        shard.copy(0, shard.num_tokens(), ids.data());
        all.insert(all.end(), ids.begin(), ids.end());
    }
    return all;
}

// A dataset as text: what its tokenizer makes of its tokens.
struct Dataset {
    nlohmann::json json;
    std::string train, val;
    explicit Dataset(const std::string& folder) : json(nlohmann::json::parse(read_file(folder + "/dataset.json"))) {
        const Tokenizer tokenizer = load_tokenizer(folder + "/tokenizer.json");
        const Ids train_ids = tokens_of(folder + "/train_*.bin"), val_ids = tokens_of(folder + "/val_*.bin");
        train = tokenizer.decode(train_ids);
        val = tokenizer.decode(val_ids);
        CHECK(json["train_tokens"] == train_ids.size());
        CHECK(json["val_tokens"] == val_ids.size());
        CHECK(json["vocab_size"] == tokenizer.vocab_size());
        CHECK(json["tokenizer"] == tokenizer.name());
    }
};

void prepare(const std::string& arguments) {
    const Finished finished = run(program("data/prepare") + " " + arguments);
    INFO(arguments << ": " << finished.err);
    REQUIRE(finished.exit_code == 0);
    CHECK(finished.err == "");
}

// What data/prepare says when it refuses: one line on stderr, exit code 2.
std::string refusal(const std::string& arguments) {
    const Finished finished = run(program("data/prepare") + " " + arguments);
    CHECK(finished.exit_code == 2);
    CHECK(finished.out == "");
    CHECK(finished.err.rfind("error: ", 0) == 0);
    CHECK(std::count(finished.err.begin(), finished.err.end(), '\n') == 1);
    return finished.err;
}

const char* kListing = "dataset.json tokenizer.json train_000000.bin val_000000.bin ";
}  // namespace

TEST_CASE("a text file becomes characters, the last tenth for validation", "[prepare]") {
    const ScratchFolder scratch;
    write_file_atomically(scratch / "in.txt", "déjà vu: eleven");  // 15 characters: 13 + 2
    const Finished finished =
        run(program("data/prepare") + " " + scratch / "in.txt" + " --tokenizer char --out " + scratch / "out");
    CHECK(finished.exit_code == 0);
    CHECK(contains(finished.out,
                   "13 training tokens in 1 files, 2 validation tokens in 1 files, vocabulary of 11 (char)"));
    CHECK(listing(scratch / "out") == kListing);
    const Dataset dataset(scratch / "out");
    CHECK(dataset.train == "déjà vu: elev");
    CHECK(dataset.val == "en");
    const auto& sources = dataset.json["sources"];
    REQUIRE(sources.size() == 1);
    CHECK(sources[0]["path"] == scratch / "in.txt");
    CHECK(sources[0]["bytes"] == 17);
    const std::string text = read_file(scratch / "in.txt");
    CHECK(sources[0]["xxh3"] == hex64(xxh3(text.data(), text.size())));
}

TEST_CASE("a single file of bytes is taken as it is", "[prepare]") {
    const ScratchFolder scratch;
    std::string text;
    for (int i = 0; i < 1000; i++) text += char(i * 37);  // all byte values, zero too
    write_file_atomically(scratch / "in", text);
    prepare(scratch / "in --val-fraction 0.25 --out " + scratch / "out");  // byte is the default
    const Dataset dataset(scratch / "out");
    CHECK(dataset.train == text.substr(0, 750));
    CHECK(dataset.val == text.substr(750));
    CHECK(dataset.json["vocab_size"] == 256);
}

TEST_CASE("the texts of a folder, sorted, with a separator before each", "[prepare]") {
    const ScratchFolder scratch;
    make_folders(scratch / "in/below");
    write_file_atomically(scratch / "in/b.txt", "second");
    write_file_atomically(scratch / "in/a.md", "first");
    write_file_atomically(scratch / "in/below/c.txt", "third");
    write_file_atomically(scratch / "in/empty.txt", "");
    write_file_atomically(scratch / "in/picture.png", "no text");
    write_file_atomically(scratch / "last", "fourth");
    const std::string both = scratch / "in " + scratch / "last --val-fraction 0";
    prepare(both + " --out " + scratch / "bytes");
    CHECK(listing(scratch / "bytes") == "dataset.json tokenizer.json train_000000.bin ");
    CHECK(byte_tokenizer().decode(tokens_of(scratch / "bytes/train_*.bin")) ==
          std::string("\0first\0second\0third\0fourth", 26));
    prepare(both + " --tokenizer char --out " + scratch / "chars");
    CHECK(load_tokenizer(scratch / "chars/tokenizer.json").decode(tokens_of(scratch / "chars/train_*.bin")) ==
          "firstsecondthirdfourth");
}

TEST_CASE("shards are full but for the last; an earlier run's files go, the user's stay", "[prepare]") {
    const ScratchFolder scratch;
    const std::string text = tell_stories(9000, 1).text.substr(0, 9000);
    write_file_atomically(scratch / "in.txt", text);
    const std::string arguments = scratch / "in.txt --out " + scratch / "out ";
    prepare(arguments + "--shard-tokens 1000 --val-fraction 0.5");
    for (int i = 0; i < 5; i++)
        CHECK(TokenShard(scratch / "out/train_00000" + std::to_string(i) + ".bin").num_tokens() ==
              (i < 4 ? 1000 : 500));
    CHECK(Dataset(scratch / "out").train == text.substr(0, 4500));
    CHECK(Dataset(scratch / "out").val == text.substr(4500));
    CHECK(Dataset(scratch / "out").json["train_shards"] == 5);

    write_file_atomically(scratch / "out/notes.txt", "mine");
    write_file_atomically(scratch / "out/fineweb_train_000001.bin", "mine");
    prepare(arguments + "--shard-tokens 4000 --val-fraction 0.5");
    CHECK(listing(scratch / "out") ==
          "dataset.json fineweb_train_000001.bin notes.txt tokenizer.json train_000000.bin train_000001.bin "
          "val_000000.bin val_000001.bin ");
    CHECK(Dataset(scratch / "out").train == text.substr(0, 4500));
    prepare(arguments + "--val-fraction 0");
    CHECK(listing(scratch / "out") ==
          "dataset.json fineweb_train_000001.bin notes.txt tokenizer.json train_000000.bin ");
}

TEST_CASE("text longer than one piece of the encoder", "[prepare]") {
    const ScratchFolder scratch;
    std::string text = "x";  // so that a piece ends inside a character
    while (text.size() < 2'500'000) text += "é€😀";
    write_file_atomically(scratch / "in.txt", text);
    prepare(scratch / "in.txt --tokenizer char --out " + scratch / "out");
    const Dataset dataset(scratch / "out");
    CHECK(dataset.train + dataset.val == text);
}

TEST_CASE("stories come with their entropy", "[prepare]") {
    const ScratchFolder scratch;
    const Stories stories = tell_stories(20000, 7);
    for (const std::string tokenizer : {"char", "byte"}) {
        prepare("--stories 20000 --seed 7 --tokenizer " + tokenizer + " --out " + scratch / "out");
        const Dataset dataset(scratch / "out");
        CHECK(dataset.train + dataset.val == stories.text);
        CHECK(dataset.json["entropy_nats_per_token"].get<double>() == stories_nats_per_byte());
        CHECK(dataset.json["stories"]["seed"] == 7);
        CHECK(dataset.json["stories"]["stories"] == stories.num_stories);
        CHECK(dataset.json["stories"]["bytes"] == stories.text.size());
    }
}

TEST_CASE("what data/prepare refuses, and that it leaves nothing behind", "[prepare]") {
    const ScratchFolder scratch;
    write_file_atomically(scratch / "in.txt", "some text");
    write_file_atomically(scratch / "empty.txt", "");
    write_file_atomically(scratch / "latin1.txt", "caf\xe9");
    make_folders(scratch / "nothing/below");
    make_folders(scratch / "utf16");
    write_file_atomically(scratch / "utf16/a.txt", "a");
    write_file_atomically(scratch / "utf16/b.txt", std::string("b\0c\0", 4));
    const std::string in = scratch / "in.txt ", out = " --out " + scratch / "out";

    CHECK(contains(refusal(scratch / "none.txt" + out), scratch / "none.txt: no such file or folder"));
    CHECK(contains(refusal(scratch / "empty.txt" + out), scratch / "empty.txt is empty: expected text"));
    CHECK(contains(refusal(scratch / "nothing" + out), scratch / "nothing has no text: expected .txt or .md files"));
    const std::string latin1 = refusal(scratch / "latin1.txt --tokenizer char" + out);
    CHECK(contains(latin1, scratch / "latin1.txt is not UTF-8: the byte at offset 3 is 0xe9"));
    CHECK(contains(latin1, "--tokenizer byte"));
    CHECK(contains(refusal(scratch / "utf16" + out), scratch / "utf16/b.txt has a zero byte at offset 1"));
    CHECK(contains(refusal(in + "--val-fraction 0.01 --tokenizer char --out " + in), "cannot create the folder"));
    CHECK(contains(refusal(in + "--out /proc/anvil"), "cannot create the folder /proc/anvil"));
    CHECK(contains(refusal(scratch / "in.txt --val-fraction 1e-18" + out), "9 tokens are too few"));
    CHECK(contains(refusal(in + "--val-fraction 1" + out), "--val-fraction 1: expected at least 0 and below 1"));
    CHECK(contains(refusal(in + "--shard-tokens 0" + out), "--shard-tokens 0: expected 1 to 2147483647"));
    CHECK(contains(refusal(in + "--tokenizer bpe" + out), "--tokenizer bpe: expected char or byte"));
    CHECK(contains(refusal(in + "--stories 100" + out), "expected either text files or folders, or --stories"));
    CHECK(contains(refusal("--stories 0" + out), "--stories 0: expected a number of bytes above 0"));
    CHECK(contains(refusal("--stories -5" + out), "--stories -5: expected"));
    CHECK(contains(refusal("--stories many" + out), "--stories"));
    CHECK(contains(refusal(in), "--out is missing"));
    CHECK(contains(refusal(in + "--bogus 1" + out), "--bogus"));
    CHECK_FALSE(fs::exists(scratch / "out"));
    CHECK(run(program("data/prepare") + " --help").exit_code == 0);
    CHECK(contains(run(program("data/prepare") + " --help").out, "--val-fraction"));
}

TEST_CASE("a disk that is full: the old dataset stays as it was", "[prepare]") {
    const ScratchFolder scratch;
    prepare("--stories 20000 --seed 1 --out " + scratch / "out");
    const std::string before = Dataset(scratch / "out").train;
    // A limit on the size of files does what a full disk does; its signal is ignored so that the write fails instead.
    const Finished finished =
        run("trap '' XFSZ; ulimit -f 20; " + program("data/prepare") + " --stories 200000 --out " + scratch / "out");
    CHECK(finished.exit_code == 2);
    CHECK(contains(finished.err,
                   "error: cannot write " + scratch / "out/unfinished/train_000000.bin.tmp: File too large"));
    CHECK(listing(scratch / "out") == kListing);
    CHECK(Dataset(scratch / "out").train == before);
}

TEST_CASE("an interrupted run leaves nothing that looks complete", "[prepare]") {
    const ScratchFolder scratch;
    const std::string folder = scratch / "out";
    const auto arguments = [&](int seed) {
        return "--stories 60000 --shard-tokens 2000 --out " + folder + " --seed " + std::to_string(seed);
    };
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    prepare(arguments(1));
    const double whole_s = std::chrono::duration<double>(Clock::now() - start).count();
    const std::string texts[2] = {tell_stories(60000, 0).text, tell_stories(60000, 1).text};

    // Killed at 30 moments of a run that replaces one dataset by another: either of them, or refused.
    int refused = 0, killed = 0;
    for (int i = 0; i < 30; i++) {
        const std::string after = format("%.4f", 0.001 + whole_s * i / 30);
        killed +=
            run("timeout -s KILL " + after + " " + program("data/prepare") + " " + arguments(i % 2)).exit_code != 0;
        if (fs::exists(folder + "/unfinished")) {
            CHECK(contains(error_of([&] { open_shards(folder + "/train_*.bin"); }), "data/prepare was interrupted"));
            refused++;
            continue;
        }
        const Dataset dataset(folder);
        const std::string text = dataset.train + dataset.val;
        CHECK((text == texts[0] || text == texts[1]));
    }
    CHECK(killed > 0);
    CHECK(refused > 0);

    // An error in the next run does not make a mixture look whole; a run to the end does.
    make_folders(folder + "/unfinished");
    CHECK(run("trap '' XFSZ; ulimit -f 1; " + program("data/prepare") + " " + arguments(0)).exit_code == 2);
    CHECK(fs::exists(folder + "/unfinished"));
    CHECK(listing(folder + "/unfinished") == "");
    prepare(arguments(0));
    const Dataset dataset(folder);
    CHECK(dataset.train + dataset.val == texts[0]);
}

// A copy of the script in a tree of its own, so that the user's data are left alone.
struct ScriptTree {
    ScratchFolder scratch;
    std::string offline = "env -u ANVIL_MIRROR https_proxy=http://127.0.0.1:9 ALL_PROXY=http://127.0.0.1:9 ";
    std::string script = scratch / "data/tinyshakespeare.sh";
    ScriptTree() {
        make_folders(scratch / "data");
        fs::copy("data/tinyshakespeare.sh", script);
        fs::create_symlink(fs::absolute(program("data/prepare")), scratch / "data/prepare");
    }
};

TEST_CASE("tinyshakespeare.sh: a wrong text, no network, a wrong flag, no build", "[prepare]") {
    const ScriptTree tree;
    write_file_atomically(tree.scratch / "tinyshakespeare.txt", "To be, or not to be\n");
    const auto refused = [&](const std::string& environment, const std::string& arguments) {
        const Finished finished = run(environment + " " + tree.script + " " + arguments);
        CHECK(finished.exit_code == 2);
        return finished.err;
    };
    CHECK(contains(refused("ANVIL_MIRROR=" + tree.scratch.path, ""), "tinyshakespeare.txt is not tiny Shakespeare"));
    CHECK(contains(refused("ANVIL_MIRROR=" + tree.scratch / "no", ""), "no/tinyshakespeare.txt: no such file"));
    CHECK(contains(refused(tree.offline, ""), "error: cannot download https://"));
    CHECK(contains(run(tree.offline + tree.script).out, "downloading tiny Shakespeare, 1115394 bytes, from https://"));
    CHECK(contains(refused("", "--tokenizer bpe"), "error: --tokenizer bpe: expected char or byte"));
    CHECK(contains(refused("", "--tokenizer"), "expected char or byte"));
    CHECK(contains(refused("", "--bogus"), "error: --bogus: expected --tokenizer"));
    CHECK(listing(tree.scratch / "data/tinyshakespeare") == "");
    fs::remove(tree.scratch / "data/prepare");
    CHECK(contains(refused("", ""), "error: data/prepare is missing: run make first"));
    CHECK(contains(run(tree.script + " --help").out, "--tokenizer char|byte"));
}

TEST_CASE("tiny Shakespeare has nanoGPT's 65 symbols and 1,003,854 + 111,540 tokens", "[prepare]") {
    if (!std::getenv("ANVIL_MIRROR")) {
        WARN("not tested: ANVIL_MIRROR is not set to a folder with tinyshakespeare.txt");
        return;
    }
    const ScriptTree tree;
    REQUIRE(run(tree.script).exit_code == 0);
    const std::string folder = tree.scratch / "data/tinyshakespeare";
    const Dataset dataset(folder);
    CHECK(dataset.json["vocab_size"] == 65);
    CHECK(dataset.json["train_tokens"] == 1003854);
    CHECK(dataset.json["val_tokens"] == 111540);
    CHECK(dataset.train + dataset.val == read_file(folder + "/tinyshakespeare.txt"));
    CHECK(tokens_of(folder + "/train_*.bin").at(0) == 18);  // 'F' of "First Citizen", as in nanoGPT's train.bin

    // Now there is a verified copy, which needs no network; a damaged one is not used.
    CHECK(run(tree.offline + tree.script + " --tokenizer byte").exit_code == 0);
    CHECK(Dataset(folder).json["vocab_size"] == 256);
    write_file_atomically(folder + "/tinyshakespeare.txt", "To be, or not to be\n");
    const Finished damaged = run(tree.offline + tree.script);
    CHECK(damaged.exit_code == 2);
    CHECK(contains(damaged.out, "is damaged: downloading it again"));
}

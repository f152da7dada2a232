// data/tokenize as a user runs it: the folder that it writes, and the state after an interruption.
#include <algorithm>
#include <filesystem>
#include "llmc/base/hash.h"  // xxh3, hex64
#include "llmc/data/stories.h"
#include "test/data/dataset_testing.h"

namespace {
namespace fs = std::filesystem;

// Lines of JSON, each a little story that begins with its number.
void write_documents(const std::string& path, int number) {
    std::string lines;
    for (int i = 0; i < number; i++)
        lines += format("{\"text\": \"story %d \\u00e9 %s\", \"id\": %d}\n", i,
                        std::string(size_t(i * 7 % 90), 'x').c_str(), i);
    write_file_atomically(path, lines);
}

std::string sorted_lines(const std::string& text) {
    std::vector<std::string> lines;
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
        lines.push_back(text.substr(at, end + 1 - at));
    std::sort(lines.begin(), lines.end());
    std::string sorted;
    for (const std::string& line : lines) sorted += line;
    return sorted;
}

// Killed as soon as a file is there. False if the program was done before.
bool kill_when_there(const std::string& file, const std::string& arguments) {
    const Finished finished =
        run(program("data/tokenize") + " " + arguments + " >/dev/null & pid=$!; while [ ! -e " + file +
            " ] && kill -0 $pid 2>/dev/null; do sleep 0.002; done; kill -KILL $pid; " + "wait $pid; test $? = 137");
    return finished.exit_code == 0;
}

// What all files of a folder hold.
std::string content(const std::string& folder) {
    std::string all;
    for (const auto& entry : fs::directory_iterator(folder)) {
        const std::string bytes = read_file(entry.path());
        all += entry.path().filename().string() + " " + hex64(xxh3(bytes.data(), bytes.size())) + "\n";
    }
    return sorted_lines(all);
}

// The last shard of training data that the journal of a killed run counts.
std::string newest_shard(const std::string& partial) {
    const std::string journal = read_file(partial + "/journal.json");
    const size_t at = journal.find("\"shards\": ", journal.find("\"train\""));
    return partial + format("/train_%06d.bin", std::stoi(journal.substr(at + 10)) - 1);
}

const char* kListing = "dataset.json tokenizer.json train_000000.bin val_000000.bin ";
}  // namespace

TEST_CASE("a text file becomes characters, the last tenth for validation", "[tokenize]") {
    const ScratchFolder scratch;
    write_file_atomically(scratch / "in.txt", "déjà vu: eleven");  // 15 characters: 13 + 2
    const Finished finished =
        run(program("data/tokenize") + " " + scratch / "in.txt" + " --tokenizer char --out " + scratch / "out");
    CHECK(finished.exit_code == 0);
    CHECK(contains(finished.out,
                   "13 training tokens in 1 files, 2 validation tokens in 1 files, vocabulary of 11 (char)"));
    CHECK(listing(scratch / "out") == kListing);
    const Dataset dataset(scratch / "out");
    CHECK(dataset.train == "déjà vu: elev");
    CHECK(dataset.val == "en");
    CHECK(contains(dataset.json, "\"path\": \"" + scratch / "in.txt" + "\""));
    const std::string text = read_file(scratch / "in.txt");
    CHECK(contains(dataset.json, "\"xxh3\": \"" + hex64(xxh3(text.data(), text.size())) + "\""));
    CHECK(dataset.number("bytes") == 17);
    CHECK(dataset.number("documents") == 1);
}

TEST_CASE("a single file of bytes is taken as it is", "[tokenize]") {
    const ScratchFolder scratch;
    std::string text;
    for (int i = 0; i < 1000; i++) text += char(i * 37);  // all byte values, zero too
    write_file_atomically(scratch / "in", text);
    tokenize(scratch / "in --val-fraction 0.25 --out " + scratch / "out");  // byte is the default
    const Dataset dataset(scratch / "out");
    CHECK(dataset.train == text.substr(0, 750));
    CHECK(dataset.val == text.substr(750));
    CHECK(dataset.number("vocab_size") == 256);
}

TEST_CASE("the texts of a folder, sorted, with a separator before each", "[tokenize]") {
    const ScratchFolder scratch;
    make_folders(scratch / "in/below");
    write_file_atomically(scratch / "in/b.txt", "second");
    write_file_atomically(scratch / "in/a.md", "first");
    write_file_atomically(scratch / "in/below/c.txt", "third");
    write_file_atomically(scratch / "in/empty.txt", "");
    write_file_atomically(scratch / "in/picture.png", "no text");
    write_file_atomically(scratch / "last", "fourth");
    const std::string both = scratch / "in " + scratch / "last --val-fraction 0";
    const Finished finished = run(program("data/tokenize") + " " + both + " --out " + scratch / "bytes");
    CHECK(finished.exit_code == 0);
    CHECK(finished.err ==
          "note: " + scratch / "in: 2 of 5 files are left out: 1 .png, 1 empty; give such files by name\n");
    CHECK(listing(scratch / "bytes") == "dataset.json tokenizer.json train_000000.bin ");
    CHECK(byte_tokenizer().decode(tokens_of(scratch / "bytes/train_*.bin")) ==
          std::string("\0first\0second\0third\0fourth", 26));
    fs::remove(scratch / "in/picture.png");
    fs::remove(scratch / "in/empty.txt");
    tokenize(both + " --tokenizer char --out " + scratch / "chars");
    CHECK(load_tokenizer(scratch / "chars/tokenizer.json").decode(tokens_of(scratch / "chars/train_*.bin")) ==
          "firstsecondthirdfourth");
}

TEST_CASE("shards are full but for the last; an earlier run's files go, the user's stay", "[tokenize]") {
    const ScratchFolder scratch;
    const std::string text = tell_stories(9000, 1).text.substr(0, 9000);
    write_file_atomically(scratch / "in.txt", text);
    const std::string arguments = scratch / "in.txt --out " + scratch / "out ";
    tokenize(arguments + "--shard-tokens 1000 --val-fraction 0.5");
    for (int i = 0; i < 5; i++)
        CHECK(TokenShard(scratch / "out/train_00000" + std::to_string(i) + ".bin").num_tokens() ==
              (i < 4 ? 1000 : 500));
    CHECK(Dataset(scratch / "out").train == text.substr(0, 4500));
    CHECK(Dataset(scratch / "out").val == text.substr(4500));
    CHECK(Dataset(scratch / "out").number("train_shards") == 5);

    write_file_atomically(scratch / "out/notes.txt", "mine");
    write_file_atomically(scratch / "out/fineweb_train_000001.bin", "mine");
    tokenize(arguments + "--shard-tokens 4000 --val-fraction 0.5");
    CHECK(listing(scratch / "out") ==
          "dataset.json fineweb_train_000001.bin notes.txt tokenizer.json train_000000.bin train_000001.bin "
          "val_000000.bin val_000001.bin ");
    CHECK(Dataset(scratch / "out").train == text.substr(0, 4500));
    tokenize(arguments + "--val-fraction 0");
    CHECK(listing(scratch / "out") ==
          "dataset.json fineweb_train_000001.bin notes.txt tokenizer.json train_000000.bin ");
}

TEST_CASE("text longer than one piece of the encoder", "[tokenize]") {
    const ScratchFolder scratch;
    std::string text = "x";  // so that a piece ends inside a character
    while (text.size() < 9'000'000) text += "é€😀";
    write_file_atomically(scratch / "in.txt", text);
    tokenize(scratch / "in.txt --tokenizer char --out " + scratch / "out");
    const Dataset dataset(scratch / "out");
    CHECK(dataset.train + dataset.val == text);
}

TEST_CASE("stories come with their entropy", "[tokenize]") {
    const ScratchFolder scratch;
    const Stories stories = tell_stories(20000, 7);
    for (const std::string tokenizer : {"char", "byte"}) {
        tokenize("--stories 20000 --seed 7 --tokenizer " + tokenizer + " --out " + scratch / "out");
        const Dataset dataset(scratch / "out");
        CHECK(dataset.train + dataset.val == stories.text);
        CHECK(dataset.number("entropy_nats_per_token") == stories_nats_per_byte());
        CHECK(dataset.number("seed") == 7);
        CHECK(dataset.number("bytes") == double(stories.text.size()));
    }
}

TEST_CASE("what data/tokenize refuses, and that it leaves nothing behind", "[tokenize]") {
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
    CHECK(contains(refusal(scratch / "nothing" + out),
                   scratch / "nothing has no text: expected .txt, .md, .jsonl or .parquet files"));
    const std::string latin1 = refusal(scratch / "latin1.txt --tokenizer char" + out);
    CHECK(contains(latin1, scratch / "latin1.txt is not UTF-8: the byte at offset 3 is 0xe9"));
    CHECK(contains(latin1, "--tokenizer byte"));
    CHECK(contains(refusal(scratch / "utf16" + out), scratch / "utf16/b.txt has a zero byte at offset 1"));
    write_file_atomically(scratch / "in.txt.gz", "\x1f\x8b\x08 and so on");
    CHECK(contains(refusal(scratch / "in.txt.gz" + out),
                   scratch / "in.txt.gz is compressed (gzip): expected text; give what is in it: zcat "));
    // Names and contents that say that they are no text, unless the user says that they are.
    write_file_atomically(scratch / "table.CSV", "a,b\n1,2\n");
    CHECK(contains(refusal(scratch / "table.CSV" + out),
                   "table.CSV: a file named .csv is not text: expected .txt, .json"));
    make_folders(scratch / "code/.git");
    write_file_atomically(scratch / "code/a.py", "a");
    write_file_atomically(scratch / "code/b.PY", "a");
    write_file_atomically(scratch / "code/LICENSE", "a");
    write_file_atomically(scratch / "code/.git/config", "a");
    CHECK(
        contains(refusal(scratch / "code" + out),
                 "in it or in folders below, and found 2 .py, 1 without an ending; give files of other kinds by name"));
    using namespace std::string_literals;
    const std::pair<std::string, std::string> marks[] = {{"\xff\xfe\0\0"s, "UTF-32"},
                                                         {"\0\0\xfe\xff"s, "UTF-32"},
                                                         {"\xff\xfe\x01\x02"s, "UTF-16"},
                                                         {"\xfe\xff\0a"s, "UTF-16"}};
    for (const auto& [mark, encoding] : marks)
        for (const std::string name : {"wide.txt", "wide.jsonl"}) {
            write_file_atomically(scratch / name, mark);
            CHECK(contains(
                refusal(scratch / name + out),
                name + " is " + encoding + ": expected UTF-8; convert it: iconv -f " + encoding + " -t UTF-8 "));
        }
    CHECK(contains(refusal(in + "--val-fraction 0.01 --tokenizer char --out " + in), "cannot create the folder"));
    CHECK(contains(refusal(in + "--out /proc/anvil"), "cannot create the folder /proc/anvil"));
    CHECK(contains(refusal(scratch / "in.txt --val-fraction 1e-18" + out), "9 bytes are too few"));
    CHECK(contains(refusal(in + "--val-fraction 1" + out), "--val-fraction 1: expected at least 0 and below 1"));
    CHECK(contains(refusal(in + "--shard-tokens 0" + out), "--shard-tokens 0: expected 1 to 2147483647"));
    CHECK(contains(refusal(in + "--tokenizer bpe" + out), "cannot read bpe: No such file"));
    CHECK(contains(refusal(in + "--stories 100" + out), "expected either text files or folders, or --stories"));
    CHECK(contains(refusal("--stories 0" + out), "--stories 0: expected a number of bytes above 0"));
    CHECK(contains(refusal("--stories -5" + out), "--stories -5: expected"));
    CHECK(contains(refusal("--stories many" + out), "--stories"));
    CHECK(contains(refusal(in), "--out is missing"));
    CHECK(contains(refusal(in + "--bogus 1" + out), "--bogus"));
    CHECK_FALSE(fs::exists(scratch / "out"));
    CHECK(run(program("data/tokenize") + " --help").exit_code == 0);
    CHECK(contains(run(program("data/tokenize") + " --help").out, "--val-fraction"));
}

TEST_CASE("a disk that is full: the old dataset stays as it was", "[tokenize]") {
    const ScratchFolder scratch;
    tokenize("--stories 20000 --seed 1 --out " + scratch / "out");
    const std::string before = Dataset(scratch / "out").train;
    // A limit on the size of files does what a full disk does; its signal is ignored so that the write fails instead.
    const Finished finished =
        run("trap '' XFSZ; ulimit -f 20; " + program("data/tokenize") + " --stories 200000 --out " + scratch / "out");
    CHECK(finished.exit_code == 2);
    CHECK(
        contains(finished.err, "error: cannot write " + scratch / "out/partial/train_000000.bin.tmp: File too large"));
    CHECK(listing(scratch / "out") == kListing);
    CHECK(Dataset(scratch / "out").train == before);
}

TEST_CASE("a run that was killed goes on after its last shard, to the same bytes", "[tokenize]") {
    const ScratchFolder scratch;
    write_documents(scratch / "in.jsonl", 4000);
    const std::string flags = scratch / "in.jsonl --shard-tokens 4001 --threads 2 --out ";
    tokenize(flags + scratch / "whole");
    tokenize("--stories 5000 --out " + scratch / "out");
    const std::string before = content(scratch / "out");
    REQUIRE(kill_when_there(scratch / "out/partial/train_000009.bin", flags + scratch / "out"));
    CHECK(fs::exists(scratch / "out/partial"));
    fs::rename(scratch / "out/partial", scratch / "partial");
    CHECK(content(scratch / "out") == before);  // usable until the new one is complete
    CHECK(open_shards(scratch / "out/train_*.bin").size() == 1);
    fs::rename(scratch / "partial", scratch / "out/partial");
    const std::string kept = run("stat -c %i " + scratch / "out/partial/train_000008.bin").out;
    const Finished again = run(program("data/tokenize") + " " + flags + scratch / "out");
    CHECK(again.exit_code == 0);
    CHECK(contains(again.out, "of the files were kept from a run before"));
    CHECK(run("stat -c %i " + scratch / "out/train_000008.bin").out == kept);
    CHECK(content(scratch / "out") == content(scratch / "whole"));

    // Another text, other flags, a shard that is gone: begun anew.
    for (const std::string change : {"text", "flags", "shard", "newest", "end"}) {
        write_documents(scratch / "in.jsonl", 4000);
        fs::remove_all(scratch / "out");
        REQUIRE(kill_when_there(scratch / "out/partial/train_000009.bin", flags + scratch / "out"));
        std::string text = read_file(scratch / "in.jsonl"), more;
        if (change == "text") text.replace(text.find("story 3 "), 8, "story 8 ");
        if (change == "end") text.resize(text.find("{\"text\": \"story 300 "));
        if (change == "flags") more = " --seed 5";
        if (change == "shard") fs::remove(scratch / "out/partial/train_000002.bin");
        if (change == "newest") fs::remove(newest_shard(scratch / "out/partial"));
        write_file_atomically(scratch / "in.jsonl", text);
        tokenize(flags + scratch / "new" + more);
        const Finished anew = run(program("data/tokenize") + " " + flags + scratch / "out" + more);
        CHECK(anew.exit_code == 0);
        CHECK_FALSE(contains(anew.out, "kept"));
        CHECK(contains(anew.err, "is not what") == (change == "text" || change == "end"));
        CHECK(content(scratch / "out") == content(scratch / "new"));
    }
}

TEST_CASE("a run that was killed while it replaced a dataset: the next one finishes that first", "[tokenize]") {
    const ScratchFolder scratch;
    const std::string out = scratch / "out";
    tokenize("--stories 30000 --seed 2 --shard-tokens 4000 --out " + scratch / "new");
    const std::string whole = content(scratch / "new");
    // After each number of moves; the first two states are those before and after the removal of the old files.
    for (int moves = -1; moves <= 9; moves++) {
        fs::remove_all(out);
        tokenize("--stories 60000 --seed 1 --shard-tokens 2000 --out " + out);
        fs::copy(scratch / "new", out + "/unfinished");
        if (moves >= 0) {
            run("rm " + out + "/*.*; touch " + out + "/unfinished/moving");
            int left = moves;
            for (const std::string name :
                 {"train_000000.bin", "train_000003.bin", "val_000000.bin", "tokenizer.json", "train_000001.bin",
                  "train_000002.bin", "train_000004.bin", "train_000005.bin", "train_000006.bin"})
                if (left-- > 0) fs::rename(out + "/unfinished/" + name, out + "/" + name);
        }
        CHECK(contains(error_of([&] { open_shards(out + "/train_*.bin"); }), "data/tokenize was interrupted"));
        refusal("--stories 1000 --tokenizer " + scratch / "none --out " + out);
        CHECK(content(out) == whole);
    }
    // A folder of that name that is no dataset says no less, until a run goes to its end.
    make_folders(out + "/unfinished");
    CHECK(run("trap '' XFSZ; ulimit -f 1; " + program("data/tokenize") + " --stories 60000 --out " + out).exit_code ==
          2);
    CHECK(fs::exists(out + "/unfinished"));
    CHECK_FALSE(fs::exists(out + "/partial"));
    tokenize("--stories 30000 --seed 2 --shard-tokens 4000 --out " + out);
    CHECK(content(out) == whole);
}

TEST_CASE("two runs do not write into one folder", "[tokenize]") {
    const ScratchFolder scratch;
    const Finished both =
        run("mkfifo " + scratch / "pipe; " + program("data/tokenize") + " - --out " + scratch / "out <" +
            scratch / "pipe & exec 3>" + scratch / "pipe; while [ ! -e " +
            scratch / "out/partial/input ]; do sleep 0.01; done; " + program("data/tokenize") +
            " --stories 1000 --out " + scratch / "out; echo second $?; echo text >&3; exec 3>&-; wait");
    CHECK(contains(both.out, "second 2"));
    CHECK(contains(both.err, "is another data/tokenize writing there?"));
    CHECK(Dataset(scratch / "out").train + Dataset(scratch / "out").val == "text\n");
}

// Input of data/tokenize: text, .jsonl and .parquet files, and the choice of documents for validation.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include "llmc/base/json.h"  // from_python_json
#include "llmc/base/rng.h"   // Rng
#include "llmc/data/documents.h"
#include "llmc/data/progress.h"
#include "test/data/dataset_testing.h"

namespace {
namespace fs = std::filesystem;

// The documents of a dataset of bytes, which a zero byte begins.
std::vector<std::string> documents_of(const std::string& text) {
    std::vector<std::string> documents;
    for (size_t at = 0; at < text.size();) {
        REQUIRE(text[at] == '\0');
        const size_t end = std::min(text.find('\0', at + 1), text.size());
        documents.push_back(text.substr(at + 1, end - at - 1));
        at = end;
    }
    return documents;
}
using Documents = std::vector<std::string>;

// Lines of JSON in this order.
void write_lines(const std::string& path, const Documents& documents) {
    std::string lines;
    for (const std::string& text : documents) lines += "{\"text\": \"" + text + "\"}\n";
    write_file_atomically(path, lines);
}

// A package `pyarrow` that reads rows from lines, null from an empty one: python3 here may have none.
void write_pyarrow(const ScratchFolder& scratch) {
    make_folders(scratch / "pyarrow");
    write_file_atomically(scratch / "pyarrow/__init__.py", "");
    write_file_atomically(scratch / "pyarrow/parquet.py", R"(
class Rows(list):
    def column(self, i): return self
    def to_pylist(self): return self
class ParquetFile:
    def __init__(self, path):
        self.rows = [eval(line) if line.strip() else None for line in open(path)]
        self.schema_arrow = type("", (), {"names": ["url", "body"]})
        self.metadata = type("", (), {"num_rows": len(self.rows)})
    def iter_batches(self, batch_size, columns):
        assert columns == ["body"]
        for i in range(0, len(self.rows), 2): yield Rows(self.rows[i : i + 2])
)");
}
}  // namespace

TEST_CASE("a line of JSON is a document: the string of a field, whatever else there is", "[documents]") {
    const ScratchFolder scratch;
    write_file_atomically(
        scratch / "in.jsonl",
        "{\"text\": \"first\", \"id\": 1}\r\n\n"
        "{\"n\": {\"text\": \"not this\", \"list\": [\"text\", 1.5e3, true]}, \"text\": \"a\\n\\\"b\\u00e9\"}\n"
        "  \t\n{\"text\": null}\n{\"text\": \"\"}\n{\"text\":\"\\ud83d\\ude00 é\", \"body\": \"last\"}");
    tokenize(scratch / "in.jsonl --val-fraction 0 --out " + scratch / "out");
    CHECK(documents_of(Dataset(scratch / "out").train) == Documents{"first", "a\n\"bé", "😀 é"});
    CHECK(Dataset(scratch / "out").number("documents") == 3);
    CHECK(contains(refusal(scratch / "in.jsonl --field body --out " + scratch / "no"),
                   scratch / "in.jsonl:1: no field \"body\"; there are: text, id; choose one with --field"));
}

TEST_CASE("JSON as Python reads and writes it", "[documents]") {
    CHECK(from_python_json(R"({"a": NaN, "b": [-Infinity, Infinity, 1e400, -0.5E+7], "c": 0})") ==
          R"({"a": 0  , "b": [0        , 0       , 0    , 0      ], "c": 0})");
    // What is neither stays what it is, and strings do.
    for (const std::string text : {R"({"NaN 1e400 \" -Infinity \u12": "\\ud83d"})", "nan", "-", "tru", "[x.]", "\"\\"})
        CHECK(from_python_json(text) == text);
    CHECK(from_python_json("01 1. 1e") == "00 0. 0e");
    CHECK(from_python_json(R"("\ud83d \udE00 \ud83d\ude00 \ud83d\ud83d\ude00 \u00e9 \ud83d")") ==
          R"("\ufffd \ufffd \ud83d\ude00 \ufffd\ud83d\ude00 \u00e9 \ufffd")");

    const ScratchFolder scratch;
    write_file_atomically(scratch / "in.jsonl",
                          "{\"text\": \"a\", \"score\": NaN}\n{\"x\": [1e400, -Infinity], \"text\": \"b\"}\n"
                          "{\"text\": \"lone \\ud83d here\"}\n");
    tokenize(scratch / "in.jsonl --val-fraction 0 --out " + scratch / "out");
    CHECK(documents_of(Dataset(scratch / "out").train) == Documents{"a", "b", "lone \xEF\xBF\xBD here"});
    // The place of a mistake is that in the file.
    write_file_atomically(scratch / "in.jsonl", "{\"score\": NaN, \"text\": \"a\", x}\n");
    CHECK(contains(refusal(scratch / "in.jsonl --val-fraction 0 --out " + scratch / "no"),
                   "in.jsonl:1: not valid JSON (byte 29 of the line)"));
}

TEST_CASE("bad lines are skipped and counted if asked", "[documents]") {
    const ScratchFolder scratch;
    std::string lines;
    for (int i = 0; i < 300; i++) lines += i % 100 == 7 ? "{\"text\": \n" : format("{\"text\": \"document %d\"}\n", i);
    lines += "{\"text\": 5}\n{\"no\": 1}\n[]\n{\"text\": \"zero \\u0000\"}\n";
    write_file_atomically(scratch / "in.jsonl", lines);
    CHECK(contains(refusal(scratch / "in.jsonl --out " + scratch / "out"), "in.jsonl:8: not valid JSON"));
    const Finished done =
        run(program("data/tokenize") + " " + scratch / "in.jsonl --skip-bad-lines --out " + scratch / "out");
    CHECK(done.exit_code == 0);
    CHECK(
        contains(done.err, "warning: 7 bad lines were skipped, the first: " + scratch / "in.jsonl:8: not valid JSON"));
    const Dataset dataset(scratch / "out");
    CHECK(documents_of(dataset.train).size() + documents_of(dataset.val).size() == 297);
    CHECK(dataset.number("documents") == 297);
    CHECK(dataset.number("skipped_lines") == 7);
    CHECK(contains(refusal(scratch / "in.jsonl --skip-bad-lines --field other --out " + scratch / "no"),
                   "304 lines were skipped, the first: " + scratch / "in.jsonl:1: no field \"other\""));
    CHECK_FALSE(fs::exists(scratch / "no"));
}

TEST_CASE("a .json file is an array of records, or lines", "[documents]") {
    const ScratchFolder scratch;
    const std::string file = scratch / "in.json", flags = " --val-fraction 0 --out " + scratch / "out";
    write_file_atomically(
        file, "\xEF\xBB\xBF \n[ {\"text\": \"a ] } \\\" \\\\\", \"n\": [{}, [1, 2]]},\n  {\n \"text\":\n\"b\"\n}\n]\n");
    tokenize(file + flags);
    CHECK(documents_of(Dataset(scratch / "out").train) == Documents{"a ] } \" \\", "b"});
    tokenize(file + " --format jsonl" + flags);  // lines would be a mistake
    CHECK(Dataset(scratch / "out").number("documents") == 2);
    tokenize(file + " --format text" + flags);
    CHECK(Dataset(scratch / "out").train == read_file(file));
    write_file_atomically(scratch / "C4.JSON", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    tokenize(scratch / "C4.JSON" + flags);
    CHECK(documents_of(Dataset(scratch / "out").train) == Documents{"a", "b"});
    const std::pair<std::string, std::string> wrong[] = {
        {"[{\"text\": \"a\"}, {\"text\": \"b]", file + " ends before the end of its array, after 1 elements"},
        {"[{\"text\": \"a\"}\n", file + " ends before the end of its array, after 0 elements: is the file whole?"},
        {"[{\"text\": \"a\"},", file + " ends before the end of its array, after 0 elements"},
        {"[{\"text\": \"a\"}, {\"text\": \"b}]", file + " ends before the end of its array, after 1 elements"},
        {"[{\"text\": \"a\"}, {\"text\": b}]", "element 2 of " + file + ": not valid JSON (byte 10 of the element)"},
        {"[{\"text\": \"a\"},\n", file + " ends before the end of its array, after 1 elements"},
        {"[{\"text\": \"a\"}] x", file + " goes on after the end of its array"},
        {"[{\"text\": \"a\"},, {\"text\": \"a\"}]", "element 2 of " + file + ": not valid JSON"},
        {"[[1], 2]", "element 1 of " + file + ": not a JSON object"},
        {"[]", "0 documents"},
        {"{\n \"text\": \"a\"\n}", file + ":1: not valid JSON"},
        {"hello", file + ":1: not valid JSON"},
    };
    for (const auto& [text, message] : wrong) {
        INFO(text);
        write_file_atomically(file, text);
        CHECK(contains(refusal(file + " --val-fraction 0 --out " + scratch / "no"), message));
        CHECK_FALSE(fs::exists(scratch / "no"));
    }
}

TEST_CASE("pages beside records are about them, and left out", "[documents]") {
    const ScratchFolder scratch;
    make_folders(scratch / "hub");
    write_file_atomically(scratch / "hub/README.md", "about");
    write_file_atomically(scratch / "hub/a.jsonl.gz", "\x1f\x8b\x08");
    write_file_atomically(scratch / "hub/dataset_infos.json", "{}");
    write_lines(scratch / "hub/b.jsonl", {"b"});
    const std::string flags = scratch / "hub --val-fraction 0 --out " + scratch / "out";
    const Finished done = run(program("data/tokenize") + " " + flags);
    CHECK(done.exit_code == 0);
    CHECK(done.err == "note: " + scratch /
                                     "hub: 3 of 4 files are left out: 1 .gz, 1 .json, 1 .md beside records; give such "
                                     "files by name\n");
    CHECK(documents_of(Dataset(scratch / "out").train) == Documents{"b"});
}

TEST_CASE("what is wrong with a line of JSON is said with file and line", "[documents]") {
    const ScratchFolder scratch;
    const std::pair<std::string, std::string> wrong[] = {
        {"{\"text\": \"cut", "not valid JSON (byte 14 of the line)"},
        {"{\"text\": \"a\"} b", "not valid JSON"},
        {"{\"text\": \"\xe9\"}", "not valid JSON"},
        {"[\"text\"]", "not a JSON object"},
        {"\"text\"", "not a JSON object"},
        {"{\"text\": 5}", "the field \"text\" is not a string"},
        {"{\"text\": {\"text\": \"a\"}}", "the field \"text\" is not a string"},
        {"{\"text\": [\"a\"]}", "the field \"text\" is not a string"},
        {"{\"title\": \"a\", \"n\": {\"text\": \"a\"}}", "no field \"text\"; there are: title, n;"},
        {"{}", "no field \"text\"; there are: none;"},
        {"{\"text\": \"a\\u0000b\"}", "has a zero byte at offset 1"},
    };
    for (const auto& [line, message] : wrong) {
        INFO(line);
        write_file_atomically(scratch / "in.jsonl", "{\"text\": \"fine\"}\n\n" + line + "\n{\"text\": \"fine\"}\n");
        const std::string said = refusal(scratch / "in.jsonl --val-fraction 0 --out " + scratch / "out");
        CHECK(contains(said, scratch / "in.jsonl:3"));
        CHECK(contains(said, message));
        CHECK_FALSE(fs::exists(scratch / "out"));
    }
}

TEST_CASE("rows of .parquet come through python3 and pyarrow", "[documents]") {
    const ScratchFolder scratch;
    write_pyarrow(scratch);
    const std::string with = "env PYTHONPATH=" + scratch.path + " " + program("data/tokenize") + " ";
    const std::string flags = " --field body --val-fraction 0 --out " + scratch / "out";
    write_file_atomically(scratch / "it's.parquet", "'one'\n\n'tw\\n\\xf6'\n'three'\nb'four'\n");
    const std::string file = "\"" + scratch / "it's.parquet\"";
    const Finished done = run(with + file + flags);
    INFO(done.err);
    REQUIRE(done.exit_code == 0);
    CHECK(documents_of(Dataset(scratch / "out").train) == Documents{"one", "tw\nö", "three", "four"});

    // Modules in the working directory are somebody else's.
    make_folders(scratch / "stranger");
    for (const std::string module : {"pyarrow", "struct", "signal"})
        write_file_atomically(scratch / ("stranger/" + module + ".py"), "open('taken', 'w')\nraise ImportError");
    const std::string home = fs::current_path();
    REQUIRE(run("cd " + scratch / "stranger && env PYTHONPATH=" + scratch.path + " " + home + "/" +
                program("data/tokenize") + " " + file + flags)
                .exit_code == 0);
    CHECK_FALSE(fs::exists(scratch / "stranger/taken"));

    const auto refused = [&](const std::string& command) {
        const Finished finished = run(command);
        CHECK(finished.exit_code == 2);
        CHECK(std::count(finished.err.begin(), finished.err.end(), '\n') == 1);
        return finished.err;
    };
    const std::string said = refused(with + file + " --out " + scratch / "no");
    CHECK(contains(said, scratch / "it's.parquet: no column 'text'; there are: url, body; choose one with --field"));
    write_file_atomically(scratch / "it's.parquet", "'one'\n2\n");
    CHECK(contains(refused(with + file + flags), "the column 'body' has a int: expected strings"));
    write_file_atomically(scratch / "it's.parquet", "no string\n");
    CHECK(contains(refused(with + file + flags), "it's.parquet: "));
    write_file_atomically(scratch / "pyarrow/__init__.py", "raise ImportError('none here')");
    CHECK(contains(refused(with + file + flags), "pip install pyarrow"));
    write_file_atomically(scratch / "python3", "#!/bin/sh\nexit 1\n");
    fs::permissions(scratch / "python3", fs::perms::owner_all);
    CHECK(contains(refused("env PATH=" + scratch.path + ":$PATH " + program("data/tokenize") + " " + file + flags),
                   "python3, which reads .parquet files, is missing or died"));
}

TEST_CASE("a text with separators is several documents, without the line breaks around them", "[documents]") {
    const ScratchFolder scratch;
    write_file_atomically(scratch / "in.txt",
                          "<|end|>\none\n<|end|>\r\n\ntwo\nlines\n\n<|end|>\n<|end|>three<|end|>\n");
    write_file_atomically(scratch / "other.txt", "four");
    tokenize(scratch / "in.txt " + scratch / "other.txt --document-separator '<|end|>' --val-fraction 0 --out " +
             scratch / "out");
    CHECK(documents_of(Dataset(scratch / "out").train) == Documents{"one", "two\nlines", "three", "four"});
    write_file_atomically(scratch / "in.txt", "a\n\nb\t\\\n\nc");
    tokenize(scratch / "in.txt --document-separator '\\n\\n' --val-fraction 0 --out " + scratch / "out");
    CHECK(documents_of(Dataset(scratch / "out").train) == Documents{"a", "b\t\\", "c"});
    tokenize(scratch / "in.txt --document-separator '\\t\\\\' --val-fraction 0 --out " + scratch / "out");
    CHECK(documents_of(Dataset(scratch / "out").train) == Documents{"a\n\nb", "c"});
}

TEST_CASE("standard input, as text and as lines of JSON", "[documents]") {
    const ScratchFolder scratch;
    const std::string command = program("data/tokenize") + " - --out " + scratch / "out ";
    REQUIRE(run("printf 'some text' | " + command + " --val-fraction 0.34").exit_code == 0);
    CHECK(Dataset(scratch / "out").train == "some ");
    CHECK(Dataset(scratch / "out").val == "text");
    CHECK(listing(scratch / "out") == "dataset.json tokenizer.json train_000000.bin val_000000.bin ");
    REQUIRE(run("printf '{\"text\":\"a\"}\\n{\"text\":\"b\"}' | " + command + "--format jsonl").exit_code == 0);
    CHECK(documents_of(Dataset(scratch / "out").train) == Documents{"a"});
    CHECK(documents_of(Dataset(scratch / "out").val) == Documents{"b"});
    const Finished broken = run("echo '{' | " + command + "--format jsonl --val-fraction 0");
    CHECK(contains(broken.err, "error: standard input:1: not valid JSON"));
    CHECK(contains(run(command + "</dev/null").err, "error: standard input is empty: expected text"));
}

TEST_CASE("a hash says which documents are for validation: of any order, and by any threads", "[documents]") {
    const ScratchFolder scratch;
    Documents documents;
    for (int i = 0; i < 2000; i++) documents.push_back("document " + std::to_string(i % 1900));
    write_lines(scratch / "in.jsonl", documents);
    const std::string flags = " --val-fraction 0.2 --out ";
    tokenize(scratch / "in.jsonl --threads 1" + flags + scratch / "one");
    const Dataset one(scratch / "one");
    const Documents train = documents_of(one.train), val = documents_of(one.val);
    CHECK(train.size() + val.size() == 2000);
    const std::set<std::string> held(val.begin(), val.end());
    for (const std::string& text : train) CHECK(held.count(text) == 0);  // the hundred that are there twice, too
    // Five standard deviations of a binomial distribution.
    CHECK(std::abs(double(held.size()) - 0.2 * 1900) < 5 * std::sqrt(1900 * 0.2 * 0.8));
    // In the order of the input.
    Documents expected;
    for (const std::string& text : documents)
        if (!held.count(text)) expected.push_back(text);
    CHECK(train == expected);
    for (const std::string threads : {"2", "5"}) {
        tokenize(scratch / "in.jsonl --threads " + threads + flags + scratch / "out");
        for (const std::string file : {"train_000000.bin", "val_000000.bin", "tokenizer.json", "dataset.json"})
            CHECK(read_file(scratch / "one/" + file) == read_file(scratch / "out/" + file));
    }

    Rng rng(1, Stream::tests);
    for (size_t i = documents.size(); i > 1; i--) std::swap(documents[i - 1], documents[rng.below(i)]);
    write_lines(scratch / "in.jsonl", documents);
    tokenize(scratch / "in.jsonl" + flags + scratch / "out");
    Documents shuffled = documents_of(Dataset(scratch / "out").val), sorted = val;
    std::sort(shuffled.begin(), shuffled.end());
    std::sort(sorted.begin(), sorted.end());
    CHECK(shuffled == sorted);
    tokenize(scratch / "in.jsonl --seed 2" + flags + scratch / "out");
    CHECK(documents_of(Dataset(scratch / "out").val) != documents_of(Dataset(scratch / "one").val));
}

TEST_CASE("of few documents the last are for validation, or those of files of their own", "[documents]") {
    const ScratchFolder scratch;
    write_lines(scratch / "five.jsonl", {"1", "2", "3", "4", "5"});
    const std::string in = scratch / "five.jsonl ", out = "--out " + scratch / "out";
    tokenize(in + out);
    CHECK(documents_of(Dataset(scratch / "out").val) == Documents{"5"});
    tokenize(in + "--val-fraction 0.5 " + out);
    CHECK(documents_of(Dataset(scratch / "out").train) == Documents{"1", "2", "3"});
    CHECK(documents_of(Dataset(scratch / "out").val) == Documents{"4", "5"});
    write_lines(scratch / "one.jsonl", {"1"});
    CHECK(contains(refusal(scratch / "one.jsonl " + out), "1 document: expected at least two"));
    write_file_atomically(scratch / "gz.jsonl", std::string("\x1F\x8B\x08\0\0", 5));
    CHECK(contains(refusal(scratch / "gz.jsonl " + out), "gz.jsonl is compressed (gzip)"));
    write_file_atomically(scratch / "nul.jsonl", std::string(100, '\0'));
    CHECK(contains(refusal(scratch / "nul.jsonl " + out), "nul.jsonl:1: not valid JSON"));
    tokenize("--val-input " + scratch / "one.jsonl " + in + out);
    CHECK(documents_of(Dataset(scratch / "out").train) == Documents{"1", "2", "3", "4", "5"});
    CHECK(documents_of(Dataset(scratch / "out").val) == Documents{"1"});
    write_lines(scratch / "none.jsonl", {"", ""});
    CHECK(contains(refusal(in + "--val-input " + scratch / "none.jsonl " + out), "0 for validation"));
}

TEST_CASE("a long text comes in pieces that no tokenizer would join", "[documents]") {
    std::string text;
    Rng rng(3, Stream::tests);
    while (text.size() < 3'000'000) text += rng.below(20) ? "word 12" : rng.below(2) ? "\n\n. " : " é\n";
    const size_t words = text.size();
    while (text.size() < 13'000'000) text += "…—";  // no place to cut, but between characters
    const std::vector<Source> sources = {
        {"", "text", DocumentFormat::text, false, int64_t(text.size()), std::make_shared<std::string>(text)}};
    DocumentReader reader(sources, {});
    std::string joined;
    size_t most = 0;
    int64_t bytes = 0;
    while (const std::optional<DocumentBatch> batch = reader.next()) {
        bytes += batch->source_bytes;
        for (const Piece& piece : batch->pieces) {
            CHECK(piece.at == int64_t(joined.size()));
            CHECK(piece.begins == joined.empty());
            CHECK(piece.document == 0);
            CHECK(piece.document_hash == xxh3(text.data(), batch->pieces[0].at == 0 ? piece.raw.size() : most));
            if (joined.empty()) most = piece.raw.size();
            joined += piece.raw;
            CHECK(piece.raw.size() <= (size_t(4) << 20) + 3);
            if (joined.size() == text.size()) continue;
            const unsigned char next = static_cast<unsigned char>(text[joined.size()]);
            if (joined.size() < words)
                CHECK((isalnum(piece.raw.back()) && (next == ' ' || next == '\n')));
            else
                CHECK((next & 0xC0) != 0x80);
        }
    }
    CHECK((joined == text));
    CHECK(bytes == int64_t(text.size()));
    CHECK(reader.num_documents() == 1);
    REQUIRE(reader.hashes().size() == 1);
    CHECK(reader.hashes()[0] == xxh3(text.data(), text.size()));
}

TEST_CASE("how far it is, in one line", "[documents]") {
    const ProgressState before{0.1, 100'000'000, 25'000'000}, now{0.3, 300'000'000, 75'000'000};
    CHECK(progress_line("tokenizing", now, before, 10) ==
          "tokenizing  300.0 MB of text | 30.0% | 20.0 MB/s | 75.0M tokens | ETA 35.0 s");
    CHECK(progress_line("looking", {0.5, 2'000'000, 0}, {0.5, 2'000'000, 0}, 0) == "looking  2.0 MB of text | 50.0%");
}

// Task files: reading returns what was written, in both formats, and other files are refused by name.
#include "llmc/eval/task_file.h"
#include <cstring>
#include "llmc/base/file.h"  // write_file_atomically
#include "test/eval/tasks_fixture.h"
#include "test/testing.h"

namespace {
using Ids = std::vector<int32_t>;

template <class T>
std::string with(std::string bytes, size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
}

std::string refusal(const std::string& bytes) {
    const std::string error = error_of([&] { TaskFile(bytes, "some.tasks"); });
    CHECK(error.starts_with("2: some.tasks"));
    return error;
}

Ids row_of(const TaskFile& file, int64_t i) {
    Ids ids(size_t(file.row(i).length()));
    file.copy_row(i, ids.data());
    return ids;
}

// Where the parts of small_tasks() begin.
constexpr size_t kTasks = 1024, kExamples = kTasks + 2 * 64, kRows = kExamples + 2 * 16, kTokens = kRows + 3 * 12;
}  // namespace

TEST_CASE("a file of tasks is read as it was written", "[task_file]") {
    for (const int width : {2, 4}) {
        const std::string bytes = small_tasks(width);
        // At an odd address, too.
        const std::string moved = "." + bytes;
        for (const std::string_view content : {std::string_view(bytes), std::string_view(moved).substr(1)}) {
            const TaskFile file(content, "data/small.tasks");
            CHECK(file.stem() == "small");
            REQUIRE(file.tasks().size() == 2);
            CHECK(file.tasks()[0].name == "choices");
            CHECK((file.tasks()[0].type == TaskType::multiple_choice && file.tasks()[0].baseline == 0.5));
            CHECK((file.tasks()[1].type == TaskType::language_modeling && file.tasks()[1].num_examples == 1));
            REQUIRE(file.examples().size() == 2);
            CHECK((file.examples()[0].gold == 1 && file.examples()[0].num_rows == 2));
            CHECK((file.examples()[1].task == 1 && file.examples()[1].first_row == 2));
            REQUIRE(file.rows().size() == 3);
            CHECK(row_of(file, 0) == Ids{1, 2, 3});
            CHECK(row_of(file, 1) == Ids{1, 2, 4, 5});
            CHECK(row_of(file, 2) == Ids{6, 7, 300});
            CHECK((file.row(1).start == 2 && file.row(1).end == 4));
            file.check(301, 3);
            CHECK(contains(error_of([&] { file.check(300, 3); }),
                           "2: data/small.tasks: example 1, of words, has token 300, and the model's vocabulary ends "
                           "at 300"));
            CHECK(contains(error_of([&] { file.check(301, 2); }),
                           "2: data/small.tasks: example 0, of choices, has a row of 4 tokens, and the model reads 2"));
        }
    }
    const std::string negative = with(small_tasks(4), kTokens + 4 * 7, int32_t(-1));
    CHECK(contains(error_of([&] { TaskFile(negative, "x").check(1 << 30, 4); }), "has token 4294967295"));
}

TEST_CASE("a file of tasks comes from the disk, and another one has another hash", "[task_file]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "some.tasks";
    CHECK(contains(error_of([&] { TaskFile{path}; }), "no such file; make one with scripts/make_core.py"));
    const std::string bytes = small_tasks(), wider = small_tasks(4);
    write_file_atomically(path, bytes);
    const TaskFile file(path), same(bytes, "same"), other(wider, "other");
    CHECK(row_of(file, 1) == Ids{1, 2, 4, 5});
    CHECK(file.hash() == same.hash());
    CHECK(file.hash() != other.hash());
}

TEST_CASE("what is no file of tasks is refused, with what is wrong", "[task_file]") {
    const std::string good = small_tasks();
    CHECK(contains(refusal(""), "has 0 bytes: a file of tasks begins with a header of 1024"));
    CHECK(contains(refusal(good.substr(0, 1023)), "has 1023 bytes"));
    CHECK(contains(refusal(with(good, 0, 20240520)), "its first number is 20240520, expected 20260901 or"));
    CHECK(contains(refusal(with(good, 4, 2)), "has version 2 of its format: expected 1"));
    CHECK(contains(refusal(with(good, 8, 3)), "has 3 bytes per token: expected 2 or 4"));
    CHECK(contains(refusal(with(good, 8, 4)), "8 tokens of 4 bytes"));
    for (const size_t at : {12, 16, 20, 24}) CHECK(contains(refusal(with(good, at, 0)), "at least one of each"));
    for (const size_t at : {12, 16, 20}) {
        CHECK(contains(refusal(with(good, at, -1)), "at least one of each"));
        CHECK(contains(refusal(with(good, at, INT32_MAX)), "its header promises"));
    }
    CHECK(contains(refusal(with(good, 24, INT64_MAX)), "promises 1220 and 9223372036854775807 tokens"));
    CHECK(contains(refusal(good.substr(0, good.size() - 1)), "has 1235 bytes, but its header promises 1220 and 8"));
    CHECK(contains(refusal(good + "xx"), "its header promises"));
    CHECK(contains(refusal(good.substr(0, kTasks + 70)), "its header promises"));

    CHECK(contains(refusal(with(good, kTasks, char(0))), "a task's name is not 1 to 47 plain letters"));
    CHECK(contains(refusal(with(good, kTasks + 2, ' ')), "a task's name is not"));
    std::string name = good;
    std::memset(name.data() + kTasks, 'x', 48);
    CHECK(contains(refusal(name), "a task's name is not"));
    CHECK(contains(refusal(good.substr(0, kTasks + 64) + good.substr(kTasks, 64) + good.substr(kExamples)),
                   "has two tasks choices"));
    for (const int type : {-1, 3})
        CHECK(contains(refusal(with(good, kTasks + 48, type)), "task choices is of type " + std::to_string(type)));
    for (const double baseline : {-0.1, 1.0, double(NAN)})
        CHECK(contains(refusal(with(good, kTasks + 56, baseline)), "expected at least 0 and less than 1"));
    CHECK(contains(refusal(with(good, kTasks + 52, 2)), "task choices has 1 examples, expected 2"));
    // No example is left for the second task.
    CHECK(contains(refusal(with(with(good, kTasks + 48, 2), kExamples, 1)), "example 0 has 2 rows: expected one"));

    for (const int task : {-1, 2})
        CHECK(contains(refusal(with(good, kExamples, task)), "example 0 is of task " + std::to_string(task) + " of 2"));
    for (const int gold : {-1, 2})
        CHECK(contains(refusal(with(good, kExamples + 4, gold)), "the answer of example 0 is row"));
    for (const int rows : {-1, 0, 1})
        CHECK(contains(refusal(with(good, kExamples + 8, rows)), "rows: expected at least two"));
    CHECK(contains(refusal(with(good, kExamples + 8, 4)), "example 0 asks for 4 rows, and 3 are left"));
    CHECK(contains(refusal(with(good, kExamples + 8, 3)), "example 1 asks for 1 rows, and 0 are left"));
    CHECK(contains(refusal(with(good, kExamples + 24, 2)), "example 1 has 2 rows: expected one"));
    for (const int context : {-1, 9, INT32_MAX})
        CHECK(contains(refusal(with(good, kExamples + 12, context)), "example 0 asks for " + std::to_string(context)));
    for (const int rest : {-1, 7, INT32_MAX})
        CHECK(contains(refusal(with(good, kRows, rest)), "example 0 asks for " + std::to_string(rest) + " tokens"));
    CHECK(contains(refusal(with(good, kRows + 24, 2)), "its examples have 3 rows and 7 tokens"));
    struct Span {
        int start, end;
    };
    for (const auto [start, end] : {Span{0, 3}, Span{-1, 3}, Span{3, 3}, Span{2, 4}, Span{2, INT32_MAX}, Span{2, -5}})
        CHECK(
            contains(refusal(with(with(good, kRows + 4, start), kRows + 8, end)), "row 0 of example 0 is scored from"));
}

TEST_CASE("llm.c's files are read as one task of multiple choice", "[task_file]") {
    const std::string good = tasks_fixture("tiny_questions.bin");
    const TaskFile file(good, "data/hellaswag_val.bin");
    REQUIRE(file.tasks().size() == 1);
    CHECK(file.tasks()[0].name == "hellaswag_val");
    CHECK((file.tasks()[0].baseline == 0.25 && file.tasks()[0].num_examples == 3));
    REQUIRE((file.examples().size() == 3 && file.rows().size() == 12));
    CHECK((file.examples()[2].first_row == 8 && file.examples()[2].num_rows == 4));
    CHECK((file.row(5).context_length == 24 && file.row(5).start == 24 && file.row(5).end == 25));
    CHECK(file.row(7).length() == 32);
    // Number by number: 65535, bytes, index, gold, completions, length of the context, context, ...
    const Ids numbers = Fixture("tasks").ints("tiny_questions.bin");
    const size_t first = 512;
    CHECK(file.examples()[0].gold == numbers[first + 3]);
    CHECK(row_of(file, 0) == Ids{numbers[first + 6], numbers[first + 8]});
    CHECK(row_of(file, 1) == Ids{numbers[first + 6], numbers[first + 10], numbers[first + 11]});
    file.check(301, 32);

    const auto changed = [&](size_t i, int value) { return with(good, 1024 + 2 * i, uint16_t(value)); };
    CHECK(contains(refusal(with(good, 4, 2)), "has version 2"));
    for (const int n : {0, -1}) CHECK(contains(refusal(with(good, 8, n)), "expected at least one"));
    CHECK(contains(refusal(good + "x"), "whole numbers of 16 bits"));
    CHECK(contains(refusal(good.substr(0, good.size() - 2)), "ends inside example 2 of 3: it was cut short"));
    CHECK(contains(refusal(good.substr(0, 1024)), "ends inside example 0 of 3"));
    CHECK(contains(refusal(with(good, 8, 4)), "ends inside example 3 of 4"));
    CHECK(contains(refusal(with(good, 8, 2)), "bytes after its last example"));
    CHECK(contains(refusal(changed(0, 1)), "example 0 begins with 1: expected 65535"));
    CHECK(contains(refusal(changed(1, 12)), "bytes, and says 12"));
    CHECK(contains(refusal(changed(3, 4)), "the answer of example 0 is completion 4 of 4"));
    CHECK(contains(refusal(changed(4, 1)), "of at least two"));
    CHECK(contains(refusal(changed(5, 60000)), "ends inside example 0"));
    CHECK(contains(refusal(changed(7, 60000)), "ends inside example 0"));
    // The second example's number of completions. The first one has 6 numbers, a context of 1, and 4 of 1 to 4 and
    // their lengths.
    const size_t second = 6 + 1 + 4 + 10;
    REQUIRE(numbers[first + second] == 65535);
    CHECK(contains(refusal(changed(second + 4, 3)), "example 1 has 3 completions, the first one 4"));
    // Without a context nothing tells of the first token; without tokens there is nothing to score.
    CHECK(contains(refusal(with(changed(5, 0).erase(1024 + 12, 2), 1026, uint16_t(40))), "is scored from token 0"));
    CHECK(contains(refusal(with(changed(7, 0).erase(1024 + 16, 2), 1026, uint16_t(40))), "is scored from token 1"));
}

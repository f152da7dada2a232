/*
Questions with known answers, as token ids, to score a model with (tasks.h). A file holds one or more tasks, and of each
its examples. An example is a few rows: one for each choice, or a single one whose end the model must know word for
word. The rows of an example share their beginning, its context. Two formats, told apart by their first number:

  20260901   ours: any tasks, such as CORE's 22 (scripts/make_core.py); in full in doc/formats.md
  20240522   llm.c's: one multiple-choice task, such as HellaSwag (scripts/make_hellaswag.py)

  const TaskFile file("data/core/core.tasks");
  file.check(V, T);                          every id below V, every row of at most T tokens
  for (const TaskExample& example : file.examples())
      for (int64_t r = example.first_row; r < example.first_row + example.num_rows; r++) {
          file.copy_row(r, ids);             file.row(r).length() of them, scored from row.start to before row.end
      }

The whole file is checked before any of it is used. A violation of the format is an Error that names the file and the
problem.
*/
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include "llmc/base/file.h"  // MappedFile

// Multiple choice has one context and several ends, a schema several contexts and one end: the row whose end is
// likeliest is the answer, by the mean over its tokens. Language modeling has one row: each token of its end must be
// the likeliest.
enum class TaskType : int32_t { multiple_choice = 0, schema = 1, language_modeling = 2 };

struct Task {
    std::string name;
    TaskType type;
    int64_t num_examples;
    double baseline;  // the accuracy of guessing
};

struct TaskRow {
    int64_t context, rest;  // where its tokens are in the file's
    int32_t context_length, rest_length;
    int32_t start, end;  // of the tokens to score, in the row; 1 <= start < end <= length()
    int64_t length() const { return int64_t(context_length) + rest_length; }
};

struct TaskExample {
    int32_t task, gold;  // the row that is the answer
    int64_t first_row;
    int32_t num_rows;
};

class TaskFile {
public:
    explicit TaskFile(const std::string& path);
    // The content of a file, which must stay in place; `path` names it in messages.
    TaskFile(std::string_view content, const std::string& path);

    const std::string& path() const { return path_; }
    std::string stem() const;  // "core" of data/core/core.tasks
    const std::vector<Task>& tasks() const { return tasks_; }
    const std::vector<TaskExample>& examples() const { return examples_; }
    const std::vector<TaskRow>& rows() const { return rows_; }
    const TaskRow& row(int64_t i) const { return rows_[size_t(i)]; }
    // All of row i's tokens.
    void copy_row(int64_t i, int32_t* out) const;

    // Throws an Error if the file does not fit the model: an id beyond its vocabulary, or a row longer than its
    // positions.
    void check(int64_t vocab_size, int64_t T) const;
    uint64_t hash() const;  // of the whole content

private:
    void parse(std::string_view content);
    void parse_ours(std::string_view content);
    void parse_llmc(std::string_view content);
    void copy_tokens(int64_t begin, int64_t n, int32_t* out) const;

    std::string path_;
    std::optional<MappedFile> file_;
    std::string_view content_;
    const char* tokens_ = nullptr;
    int bytes_per_token_ = 2;
    std::vector<Task> tasks_;
    std::vector<TaskExample> examples_;
    std::vector<TaskRow> rows_;
};

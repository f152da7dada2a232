/*
Questions with known answers, as token ids, to score a model with (tasks.h). A file holds one or more tasks with their
examples. An example is a few rows, one per choice, or a single row whose end the model must predict exactly. The rows
of an example may share their beginning, the context. Two formats (scripts/eval_files.py) by their first number:

  20260901   Anvil's: any tasks, such as CORE's 22 (scripts/make_core.py)
  20240522   llm.c's: one multiple-choice task, such as HellaSwag (scripts/make_hellaswag.py)

  const TaskFile file("data/core/core.tasks");
  file.check(V, T);                          every id is below V, every row has at most T tokens and one to predict
  for (const TaskExample& example : file.examples())
      for (int64_t r = example.first_row; r < example.first_row + example.num_rows; r++) {
          file.copy_row(r, ids);             file.row(r).length() ids, of which [row.start, row.end) are scored
      }

The whole file is checked before any of it is used. If it violates the format, an Error names the file and the problem.
*/
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include "llmc/base/file.h"  // MappedFile

// Multiple choice has one context and several ends, a schema several contexts and one end. The answer is the row whose
// end is most probable, by the mean log-probability of its tokens. Language modeling has one row: each token of its end
// must be the most probable one.
enum class TaskType : int32_t { multiple_choice = 0, schema = 1, language_modeling = 2 };

struct Task {
    std::string name;
    TaskType type;
    int64_t num_examples;
    double baseline;  // the accuracy of guessing
};

struct TaskRow {
    int64_t context, rest;  // the positions of its tokens among the file's
    int32_t context_length, rest_length;
    int32_t start, end;  // the tokens to score, in the row; 1 <= start < end <= length()
    int64_t length() const { return int64_t(context_length) + rest_length; }
};

struct TaskExample {
    int32_t task, gold;  // gold: the index of the right row
    int64_t first_row;
    int32_t num_rows;
};

class TaskFile {
public:
    explicit TaskFile(const std::string& path);
    // The content of a file, which must outlive this object; `path` names it in messages.
    TaskFile(std::string_view content, const std::string& path);
    // Rows in memory, each an example of language modeling. Of row i the tokens from starts[i] to its end are scored.
    TaskFile(const std::vector<std::vector<int32_t>>& rows, const std::vector<int32_t>& starts);

    const std::string& path() const { return path_; }
    std::string stem() const;  // "core" of data/core/core.tasks
    const std::vector<Task>& tasks() const { return tasks_; }
    const std::vector<TaskExample>& examples() const { return examples_; }
    const std::vector<TaskRow>& rows() const { return rows_; }
    const TaskRow& row(int64_t i) const { return rows_[size_t(i)]; }
    // Copies row i's tokens, length() of them, to `out`.
    void copy_row(int64_t i, int32_t* out) const;

    // Throws an Error if the file does not fit the model: an id outside its vocabulary, or a row longer than T + 1. The
    // model does not read the last token of a row.
    void check(int64_t vocab_size, int64_t T) const;
    uint64_t hash() const;  // of the whole content

private:
    void parse(std::string_view content);
    void parse_ours(std::string_view content);
    void parse_llmc(std::string_view content);
    void copy_tokens(int64_t begin, int64_t n, int32_t* out) const;

    std::string path_;
    std::optional<MappedFile> file_;
    std::vector<int32_t> made_;  // the tokens of rows in memory
    std::string_view content_;
    const char* tokens_ = nullptr;
    int bytes_per_token_ = 2;
    std::vector<Task> tasks_;
    std::vector<TaskExample> examples_;
    std::vector<TaskRow> rows_;
};

// The result of one task. tasks.h computes it, and logs store it.
struct TaskRecord {
    std::string name;
    int64_t examples = 0, right = 0;
    double centered = 0;  // rescaled accuracy; 0: as good as guessing, 1: all right
    double accuracy() const { return double(right) / double(examples); }
};

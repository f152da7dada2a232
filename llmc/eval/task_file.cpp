// See task_file.h; scripts/eval_files.py describes the formats byte by byte.
#include "llmc/eval/task_file.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include "llmc/base/check.h"  // require, ensure
#include "llmc/base/hash.h"   // xxh3

namespace {
static_assert(std::endian::native == std::endian::little, "files are read in place");

constexpr int32_t kOurMagic = 20260901, kLlmcMagic = 20240522, kVersion = 1;
constexpr int64_t kHeaderBytes = 1024, kNameBytes = 48;
constexpr const char* kRemake = "make it again with scripts/make_core.py or scripts/make_hellaswag.py";

struct Header {
    int32_t magic, version, bytes_per_token, num_tasks, num_examples, num_rows;
    int64_t num_tokens;
};
struct StoredTask {
    char name[kNameBytes];
    int32_t type, num_examples;
    double baseline;
};
struct StoredExample {
    int32_t task, gold, num_rows, context_length;
};
struct StoredRow {
    int32_t rest_length, start, end;
};
static_assert(sizeof(Header) == 32 && sizeof(StoredTask) == 64 && sizeof(StoredExample) == 16 &&
              sizeof(StoredRow) == 12);

// The i-th of the records that begin at `begin`, which may be unaligned.
template <class Record>
Record record(std::string_view content, int64_t begin, int64_t i) {
    Record value;
    std::memcpy(&value, content.data() + begin + i * int64_t(sizeof value), sizeof value);
    return value;
}

std::string name_in(const StoredTask& task, const std::string& path) {
    const std::string name(task.name, strnlen(task.name, sizeof task.name));
    const bool plain = std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < 127; });
    require(!name.empty() && name.size() < sizeof task.name && plain,
            "%s: a task's name is not 1 to %ld plain letters and a zero; %s", path.c_str(), kNameBytes - 1, kRemake);
    return name;
}
}  // namespace

TaskFile::TaskFile(const std::string& path) : path_(path) {
    std::error_code ignored;  // other problems are reported when it is opened
    require(std::filesystem::exists(path, ignored) || ignored,
            "%s: no such file; make one with scripts/make_core.py or scripts/make_hellaswag.py", path.c_str());
    file_.emplace(path);
    parse({file_->data(), file_->size()});
}

TaskFile::TaskFile(std::string_view content, const std::string& path) : path_(path) { parse(content); }

TaskFile::TaskFile(const std::vector<std::vector<int32_t>>& rows, const std::vector<int32_t>& starts)
    : bytes_per_token_(4), tasks_({{"rows", TaskType::language_modeling, int64_t(rows.size()), 0}}) {
    for (size_t i = 0; i < rows.size(); i++) {
        const auto length = int32_t(rows[i].size());
        ensure(starts[i] >= 1 && starts[i] < length);
        examples_.push_back({0, 0, int64_t(i), 1});
        rows_.push_back({int64_t(made_.size()), int64_t(made_.size()), 0, length, starts[i], length});
        made_.insert(made_.end(), rows[i].begin(), rows[i].end());
    }
    tokens_ = reinterpret_cast<const char*>(made_.data());
}

std::string TaskFile::stem() const { return std::filesystem::path(path_).stem(); }

uint64_t TaskFile::hash() const { return xxh3(content_.data(), content_.size()); }

void TaskFile::parse(std::string_view content) {
    content_ = content;
    require(int64_t(content.size()) >= kHeaderBytes,
            "%s has %zu bytes: a file of tasks begins with a header of %ld; %s", path_.c_str(), content.size(),
            kHeaderBytes, kRemake);
    const Header header = record<Header>(content, 0, 0);
    require(header.magic == kOurMagic || header.magic == kLlmcMagic,
            "%s is not a file of tasks: its first number is %d, expected %d or, of llm.c, %d; %s", path_.c_str(),
            header.magic, kOurMagic, kLlmcMagic, kRemake);
    require(header.version == kVersion, "%s has version %d of its format: expected %d; %s", path_.c_str(),
            header.version, kVersion, kRemake);
    header.magic == kOurMagic ? parse_ours(content) : parse_llmc(content);
    // Checks that are common to both formats.
    for (size_t e = 0; e < examples_.size(); e++) {
        const TaskExample& example = examples_[e];
        for (int64_t r = example.first_row; r < example.first_row + example.num_rows; r++)
            require(row(r).start >= 1 && row(r).start < row(r).end && row(r).end <= row(r).length(),
                    "%s: row %ld of example %zu is scored from token %d to before %d, and has %ld: expected at least "
                    "one, after the first; %s",
                    path_.c_str(), r - example.first_row, e, row(r).start, row(r).end, row(r).length(), kRemake);
    }
}

void TaskFile::parse_ours(std::string_view content) {
    const Header header = record<Header>(content, 0, 0);
    require(header.bytes_per_token == 2 || header.bytes_per_token == 4,
            "%s has %d bytes per token: expected 2 or 4; %s", path_.c_str(), header.bytes_per_token, kRemake);
    require(header.num_tasks > 0 && header.num_examples > 0 && header.num_rows > 0 && header.num_tokens > 0,
            "%s says that it holds %d tasks, %d examples, %d rows, %ld tokens: expected at least one of each; %s",
            path_.c_str(), header.num_tasks, header.num_examples, header.num_rows, header.num_tokens, kRemake);
    const int64_t size = int64_t(content.size());
    const int64_t task_begin = kHeaderBytes,
                  example_begin = task_begin + header.num_tasks * int64_t(sizeof(StoredTask)),
                  row_begin = example_begin + header.num_examples * int64_t(sizeof(StoredExample)),
                  token_begin = row_begin + header.num_rows * int64_t(sizeof(StoredRow));
    // A division, because the product with a wrong number may overflow.
    const int64_t left = size - token_begin;
    require(left >= 0 && left % header.bytes_per_token == 0 && left / header.bytes_per_token == header.num_tokens,
            "%s has %ld bytes, but its header promises %ld and %ld tokens of %d bytes; %s", path_.c_str(), size,
            token_begin, header.num_tokens, header.bytes_per_token, kRemake);
    tokens_ = content.data() + token_begin;
    bytes_per_token_ = header.bytes_per_token;

    std::vector<int64_t> promised;  // examples of each task, according to the header
    for (int64_t t = 0; t < header.num_tasks; t++) {
        const StoredTask stored = record<StoredTask>(content, task_begin, t);
        const std::string name = name_in(stored, path_);
        require(stored.type >= 0 && stored.type <= int32_t(TaskType::language_modeling),
                "%s: task %s is of type %d: expected 0 (multiple choice), 1 (schema) or 2 (language modeling); %s",
                path_.c_str(), name.c_str(), stored.type, kRemake);
        require(stored.baseline >= 0 && stored.baseline < 1,
                "%s: guessing is right in %g of task %s: expected at least 0 and less than 1; %s", path_.c_str(),
                stored.baseline, name.c_str(), kRemake);
        for (const Task& other : tasks_)
            require(other.name != name, "%s has two tasks %s; %s", path_.c_str(), name.c_str(), kRemake);
        tasks_.push_back({name, TaskType(stored.type), 0, stored.baseline});
        promised.push_back(stored.num_examples);
    }

    int64_t next_token = 0, next_row = 0;
    // The position of the next n tokens. Throws an Error if fewer are left.
    const auto take = [&](int64_t n, int64_t example) {
        require(n >= 0 && n <= header.num_tokens - next_token,
                "%s: example %ld asks for %ld tokens, and %ld are left; %s", path_.c_str(), example, n,
                header.num_tokens - next_token, kRemake);
        next_token += n;
        return next_token - n;
    };
    for (int64_t e = 0; e < header.num_examples; e++) {
        const StoredExample stored = record<StoredExample>(content, example_begin, e);
        require(stored.task >= 0 && stored.task < header.num_tasks, "%s: example %ld is of task %d of %d; %s",
                path_.c_str(), e, stored.task, header.num_tasks, kRemake);
        Task& task = tasks_[size_t(stored.task)];
        task.num_examples++;
        const bool one = task.type == TaskType::language_modeling;
        require(one ? stored.num_rows == 1 : stored.num_rows >= 2, "%s: example %ld has %d rows: expected %s; %s",
                path_.c_str(), e, stored.num_rows, one ? "one" : "at least two", kRemake);
        require(stored.num_rows <= header.num_rows - next_row, "%s: example %ld asks for %d rows, and %ld are left; %s",
                path_.c_str(), e, stored.num_rows, header.num_rows - next_row, kRemake);
        require(stored.gold >= 0 && stored.gold < stored.num_rows, "%s: the answer of example %ld is row %d of %d; %s",
                path_.c_str(), e, stored.gold, stored.num_rows, kRemake);
        examples_.push_back({stored.task, stored.gold, next_row, stored.num_rows});
        const int64_t context = take(stored.context_length, e);
        for (int32_t i = 0; i < stored.num_rows; i++) {
            const StoredRow row = record<StoredRow>(content, row_begin, next_row++);
            const int64_t rest = take(row.rest_length, e);
            rows_.push_back({context, rest, stored.context_length, row.rest_length, row.start, row.end});
        }
    }
    require(next_row == header.num_rows && next_token == header.num_tokens,
            "%s: its examples have %ld rows and %ld tokens, and its header promises %d and %ld; %s", path_.c_str(),
            next_row, next_token, header.num_rows, header.num_tokens, kRemake);
    for (size_t t = 0; t < tasks_.size(); t++)
        require(tasks_[t].num_examples > 0 && tasks_[t].num_examples == promised[t],
                "%s: task %s has %ld examples, expected %ld and at least one; %s", path_.c_str(),
                tasks_[t].name.c_str(), tasks_[t].num_examples, promised[t], kRemake);
}

// After the header come numbers of 16 bits, which include the tokens. For each example: 65535, its bytes, its index,
// the right row, the number of rows, the number of context tokens and these tokens; then for each row the number of
// tokens and these tokens.
void TaskFile::parse_llmc(std::string_view content) {
    const int32_t num_examples = record<int32_t>(content, 0, 2);
    const int64_t size = int64_t(content.size()) - kHeaderBytes;
    require(num_examples > 0 && size % 2 == 0,
            "%s says that it holds %d examples, in %ld bytes: expected at least one, and whole numbers of 16 bits; %s",
            path_.c_str(), num_examples, size, kRemake);
    tokens_ = content.data() + kHeaderBytes;
    int64_t next = 0, example_number = 0;
    const auto take = [&](int64_t n) {  // the position of the next n numbers
        require(n <= size / 2 - next, "%s ends inside example %ld of %d: it was cut short; %s", path_.c_str(),
                example_number, num_examples, kRemake);
        next += n;
        return next - n;
    };
    const auto number = [&] {
        int32_t value;
        copy_tokens(take(1), 1, &value);
        return value;
    };
    Task task{stem(), TaskType::multiple_choice, num_examples, 0};
    for (; example_number < num_examples; example_number++) {
        const int64_t begin = next;
        const int32_t mark = number();
        require(mark == 65535, "%s: example %ld begins with %d: expected 65535; %s", path_.c_str(), example_number,
                mark, kRemake);
        const int32_t bytes = number();
        number();  // the example's index in the whole data set
        const int32_t gold = number(), num_rows = number(), context_length = number();
        require(num_rows >= 2 && gold < num_rows,
                "%s: the answer of example %ld is completion %d of %d: expected one of at least two; %s", path_.c_str(),
                example_number, gold, num_rows, kRemake);
        if (example_number == 0) task.baseline = 1.0 / num_rows;
        require(task.baseline == 1.0 / num_rows, "%s: example %ld has %d completions, the first one %g; %s",
                path_.c_str(), example_number, num_rows, std::round(1 / task.baseline), kRemake);
        const int64_t context = take(context_length);
        examples_.push_back({0, gold, int64_t(rows_.size()), num_rows});
        for (int32_t i = 0; i < num_rows; i++) {
            const int32_t length = number();
            rows_.push_back({context, take(length), context_length, length, context_length, context_length + length});
        }
        require(2 * (next - begin) == bytes, "%s: example %ld has %ld bytes, and says %d; %s", path_.c_str(),
                example_number, 2 * (next - begin), bytes, kRemake);
    }
    require(next == size / 2, "%s has %ld bytes after its last example; %s", path_.c_str(), size - 2 * next, kRemake);
    tasks_.push_back(std::move(task));
}

void TaskFile::copy_tokens(int64_t begin, int64_t n, int32_t* out) const {
    const char* from = tokens_ + begin * bytes_per_token_;
    if (bytes_per_token_ == 4) {
        std::memcpy(out, from, size_t(n) * 4);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t id;
        std::memcpy(&id, from + 2 * i, 2);
        out[i] = id;
    }
}

void TaskFile::copy_row(int64_t i, int32_t* out) const {
    const TaskRow& r = row(i);
    copy_tokens(r.context, r.context_length, out);
    copy_tokens(r.rest, r.rest_length, out + r.context_length);
}

void TaskFile::check(int64_t vocab_size, int64_t T) const {
    std::vector<int32_t> ids;
    for (size_t e = 0; e < examples_.size(); e++) {
        const TaskExample& example = examples_[e];
        for (int64_t r = example.first_row; r < example.first_row + example.num_rows; r++) {
            const int64_t length = row(r).length();
            require(
                length <= T + 1,
                "%s: example %zu, of %s, has a row of %ld tokens, and the model reads %ld at once, all but the last: "
                "raise --seq-len, or make the file with shorter prompts (--max-tokens %ld of scripts/make_core.py)",
                path_.c_str(), e, tasks_[size_t(example.task)].name.c_str(), length, T, T + 1);
            ids.resize(size_t(length));
            copy_row(r, ids.data());
            for (const int32_t id : ids)
                require(id >= 0 && id < vocab_size,
                        "%s: example %zu, of %s, has token %u, and the model's vocabulary ends at %ld: make the file "
                        "with the model's tokenizer",
                        path_.c_str(), e, tasks_[size_t(example.task)].name.c_str(), uint32_t(id), vocab_size);
        }
    }
}

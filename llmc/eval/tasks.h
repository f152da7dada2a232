/*
Scores a model on tasks (task_file.h) by the probabilities of a row's tokens x; those in [start, end) count:

  nll = mean over t in [start, end) of -log p(x_t | x_0 ... x_(t-1))

Multiple choice and schemas: the answer is the row with the lowest nll, of equal ones the first (acc_norm of HellaSwag
as llm.c computes it). Language modeling: the answer is right if each x_t is the most probable token at its position; of
equally probable ones the one with the lowest id counts.

  accuracy = right / examples        centered = (accuracy - baseline) / (1 - baseline)        score = mean of centered

The mean is over the tasks of a file. For CORE's 22 tasks the score is the CORE metric (Li et al., 2024,
arXiv:2406.11794). Counts of examples are summed over ranks, so the result is the same at any number of ranks.
*/
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>
#include "llmc/base/bf16.h"       // to_float
#include "llmc/comm/ranks.h"      // Ranks
#include "llmc/eval/batches.h"    // each_batch
#include "llmc/eval/task_file.h"  // TaskFile, TaskRecord
#include "llmc/model/gpt.h"       // Gpt

struct RowScore {
    double nll = 0;
    bool matches = true;  // every token was the most probable one; only for language modeling
};

// The model's answer, the index of a row; -1 if no row has a finite score.
inline int32_t answer(const std::vector<RowScore>& rows) {
    int32_t best = -1;
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < rows.size(); i++)
        if (rows[i].nll < least) least = rows[i].nll, best = int32_t(i);
    return best;
}

// Examples of similar length for one forward pass.
struct TaskBatch {
    std::vector<size_t> examples;
    int64_t length = 0, num_rows = 0;
};

// Batches of all examples, the longest first, of at most B x T tokens unless one example has more. Lengths are rounded
// up to multiples of 32, because libraries make a plan for every shape. Batches do not depend on the number of ranks,
// so the scores do not, either.
inline std::vector<TaskBatch> task_batches(const TaskFile& file, int64_t B, int64_t T) {
    constexpr int64_t kUnit = 32;
    const auto length_of = [&](size_t e) {
        const TaskExample& example = file.examples()[e];
        int64_t length = 0;
        for (int64_t i = 0; i < example.num_rows; i++)
            length = std::max(length, file.row(example.first_row + i).length());
        return std::min(T, (length + kUnit - 1) / kUnit * kUnit);
    };
    std::vector<int64_t> lengths;
    for (size_t e = 0; e < file.examples().size(); e++) lengths.push_back(length_of(e));
    std::vector<size_t> order(lengths.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
    std::vector<TaskBatch> batches;
    for (const size_t e : order) {
        const int64_t rows = file.examples()[e].num_rows;
        if (batches.empty() || (batches.back().num_rows + rows) * batches.back().length > B * T)
            batches.push_back({{}, lengths[e], 0});
        batches.back().examples.push_back(e);
        batches.back().num_rows += rows;
    }
    return batches;
}

template <class Device, class Type>
class TaskScorer {
public:
    // B x T: the maximum number of tokens per forward pass; the model must have activations for them.
    TaskScorer(Gpt<Device, Type>& model, int64_t B, int64_t T)
        : model_(model), max_tokens_(B * T), tokens_(model.device, B * T), targets_(model.device, B * T) {}

    // Calls visit(e, scores) for each example e of a batch with the scores of its rows.
    template <class Visit>
    void score(const TaskFile& file, const TaskBatch& batch, Visit&& visit) {
        struct Row {
            int64_t index;
            bool is_matched;
        };
        std::vector<Row> rows;
        for (const size_t e : batch.examples) {
            const TaskExample& example = file.examples()[e];
            const bool is_matched = file.tasks()[size_t(example.task)].type == TaskType::language_modeling;
            for (int64_t i = 0; i < example.num_rows; i++) rows.push_back({example.first_row + i, is_matched});
        }
        // An example with more rows than fit is a batch of its own and processed in parts.
        const int64_t max_rows = max_tokens_ / batch.length;
        std::vector<RowScore> scores;
        for (int64_t first = 0; first < int64_t(rows.size()); first += max_rows) {
            const int64_t n = std::min(max_rows, int64_t(rows.size()) - first);
            // Rounded to powers of two, also to have few shapes.
            const int64_t B = std::min(max_rows, int64_t(std::bit_ceil(uint64_t(n)))), T = batch.length;
            ids_.assign(size_t(B * T), 0);
            next_.assign(size_t(B * T), 0);
            for (int64_t i = 0; i < n; i++) {
                const int64_t index = rows[size_t(first + i)].index, length = file.row(index).length();
                row_.resize(size_t(length));
                file.copy_row(index, row_.data());
                std::copy_n(row_.begin(), std::min(length, T), ids_.begin() + i * T);
                std::copy(row_.begin() + 1, row_.end(), next_.begin() + i * T);
            }
            model_.forward(tokens_.send(ids_.data(), B * T), B, T);
            model_.loss(targets_.send(next_.data(), B * T));
            losses_.resize(size_t(B * T));
            copy_to_host(model_.device, losses_.data(), model_.acts.losses, B * T);
            for (int64_t i = 0; i < n; i++) {
                const Row& row = rows[size_t(first + i)];
                scores.push_back(score_row(file.row(row.index), i * T, row.is_matched));
            }
        }
        auto next = scores.begin();
        for (const size_t e : batch.examples) {
            const auto end = next + file.examples()[e].num_rows;
            visit(e, std::vector<RowScore>(next, end));
            next = end;
        }
    }

private:
    Gpt<Device, Type>& model_;
    int64_t max_tokens_;
    typename Device::template ToDevice<int32_t> tokens_, targets_;
    std::vector<int32_t> ids_, next_, row_;  // of a batch: tokens, and targets; of a row
    std::vector<float> losses_;
    std::vector<Type> logits_;

    // The score of the row that begins at position `begin` of the batch.
    RowScore score_row(const TaskRow& row, int64_t begin, bool is_matched) {
        RowScore score;
        for (int64_t t = row.start; t < row.end; t++) score.nll += double(losses_[size_t(begin + t - 1)]);
        score.nll /= double(row.end - row.start);
        for (int64_t t = row.start; is_matched && score.matches && t < row.end; t++)
            score.matches = is_likeliest(begin + t - 1);
        return score;
    }

    // Whether the token after this position of the batch is the model's most probable one.
    bool is_likeliest(int64_t place) {
        // With a probability above 1/2 it is, and the logits are not needed: 0.68 is ln 2 = 0.693 minus a margin for
        // rounding.
        if (losses_[size_t(place)] < 0.68f) return true;
        logits_.resize(size_t(model_.shape.vocab_size));
        copy_to_host(model_.device, logits_.data(), model_.logits(place, 1), model_.shape.vocab_size);
        const int32_t target = next_[size_t(place)];
        const float own = to_float(logits_[size_t(target)]);
        if (std::isnan(own)) return false;
        // A softcap is monotonic, so it can be omitted.
        for (int32_t v = 0; v < int32_t(logits_.size()); v++) {
            const float other = to_float(logits_[size_t(v)]);
            if (other > own || (other == own && v < target)) return false;
        }
        return true;
    }
};

// The results of a file's tasks, in the file's order.
struct TaskScores {
    bool is_stopped = false;  // ended early: there is no result
    std::vector<TaskRecord> tasks;
    double score = 0;  // mean of the centered accuracies
};

// Collective: all ranks return the same result. The file must have passed check() for this model and T. `stop`: see
// batches.h.
template <class Device, class Type>
TaskScores score_tasks(Gpt<Device, Type>& model, const TaskFile& file, Ranks& ranks, int64_t B, int64_t T,
                       const StopAsked& stop = {}) {
    std::vector<int64_t> right(file.tasks().size());
    TaskScorer<Device, Type> scorer(model, B, T);
    const std::vector<TaskBatch> batches = task_batches(file, B, T);
    const bool is_complete = each_batch(ranks, int64_t(batches.size()), stop, [&](int64_t b) {
        scorer.score(file, batches[size_t(b)], [&](size_t e, const std::vector<RowScore>& rows) {
            const TaskExample& example = file.examples()[e];
            const bool one = file.tasks()[size_t(example.task)].type == TaskType::language_modeling;
            right[size_t(example.task)] += one ? rows[0].matches : answer(rows) == example.gold;
        });
    });
    if (!is_complete) return {.is_stopped = true, .tasks = {}};
    std::string record(right.size() * sizeof(int64_t), '\0');
    std::memcpy(record.data(), right.data(), record.size());
    const std::string sums = ranks.ask_first(record, [&](const std::vector<std::string>& records) {
        std::vector<int64_t> all(right.size()), theirs(right.size());
        for (size_t r = 0; r < records.size(); r++) {
            ranks.require_sense(records[r].size() == record.size(), int(r), "its right answers");
            std::memcpy(theirs.data(), records[r].data(), record.size());
            for (size_t t = 0; t < all.size(); t++) all[t] += theirs[t];
        }
        return std::string(reinterpret_cast<const char*>(all.data()), record.size());
    });
    ranks.require_sense(sums.size() == record.size(), 0, "all right answers");
    std::memcpy(right.data(), sums.data(), record.size());
    TaskScores scores;
    for (size_t t = 0; t < right.size(); t++) {
        const Task& task = file.tasks()[t];
        TaskRecord result{.name = task.name, .examples = task.num_examples, .right = right[t]};
        result.centered = (result.accuracy() - task.baseline) / (1 - task.baseline);
        scores.score += result.centered / double(right.size());
        scores.tasks.push_back(result);
    }
    return scores;
}

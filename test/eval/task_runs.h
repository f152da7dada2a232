/*
Helpers of the tests of task scores, on any device: scoring the fixture's files row by row.
*/
#pragma once
#include "llmc/eval/tasks.h"
#include "test/eval/tasks_fixture.h"
#include "test/model/model_testing.h"  // load_weights, kFixtureShape

inline constexpr int64_t kTaskT = 32;

// The model's score of every row of a file, computed in batches of at most B x length.
template <class Device, class T>
std::vector<RowScore> scores_of(Gpt<Device, T>& model, const TaskFile& file, int64_t B, int64_t length) {
    std::vector<RowScore> scores(file.rows().size(), RowScore{.nll = NAN});
    std::vector<int> seen(file.examples().size());
    TaskScorer<Device, T> scorer(model, B, length);
    for (const TaskBatch& batch : task_batches(file, B, length))
        scorer.score(file, batch, [&](size_t e, const std::vector<RowScore>& rows) {
            seen[e]++;
            std::copy(rows.begin(), rows.end(), scores.begin() + file.examples()[e].first_row);
        });
    CHECK(std::count(seen.begin(), seen.end(), 1) == std::ptrdiff_t(seen.size()));
    return scores;
}

inline Floats nlls(const std::vector<RowScore>& scores) {
    Floats all;
    for (const RowScore& score : scores) all.push_back(float(score.nll));
    return all;
}

// Compares with PyTorch's scores of the same rows in the fixture: the nll to within `tolerance` (relative L2), and the
// answers.
template <class Device, class T>
void check_tasks(Gpt<Device, T>& model, int64_t B, double tolerance) {
    const Fixture fixture("tasks");
    const std::string bytes = tasks_fixture("tiny.tasks"), more = tasks_fixture("tiny_questions.bin");
    const TaskFile file(bytes, "tiny.tasks"), questions(more, "tiny_questions.bin");
    file.check(kFixtureShape.vocab_size, kTaskT);
    questions.check(kFixtureShape.vocab_size, kTaskT);
    const std::vector<RowScore> scores = scores_of(model, file, B, kTaskT);
    CHECK(relative_l2(nlls(scores), fixture.floats("want.nll")) <= tolerance);
    CHECK(relative_l2(nlls(scores_of(model, questions, B, kTaskT)), fixture.floats("want.questions.nll")) <= tolerance);
    const Floats matches = fixture.floats("want.matches"), right = fixture.floats("want.right");
    for (const TaskExample& example : file.examples())
        if (file.tasks()[size_t(example.task)].type == TaskType::language_modeling)
            CHECK(scores[size_t(example.first_row)].matches == (matches[size_t(example.first_row)] == 1));

    OneRank alone;
    const TaskScores got = score_tasks(model, file, alone, B, kTaskT);
    REQUIRE(got.tasks.size() == 3);
    const double baselines[] = {0.25, 0.5, 0};
    double score = 0;
    for (size_t t = 0; t < 3; t++) {
        INFO(got.tasks[t].name);
        CHECK(double(got.tasks[t].right) == right[t]);
        const double accuracy = double(right[t]) / double(file.tasks()[t].num_examples);
        CHECK(got.tasks[t].accuracy() == accuracy);
        CHECK(got.tasks[t].centered == (accuracy - baselines[t]) / (1 - baselines[t]));
        score += got.tasks[t].centered / 3;
    }
    CHECK(std::fabs(got.score - score) <= 4 * 0x1p-52);
    // The model answers all of the fixture's questions right but the second.
    CHECK(score_tasks(model, questions, alone, B, kTaskT).tasks[0].right == 2);
}

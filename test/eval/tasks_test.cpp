// Task scores: against PyTorch's, against each row alone in double precision, in batches of any size, on any number of
// ranks.
#include "llmc/eval/tasks.h"
#include "llmc/comm/local.h"  // LocalGroup, LocalRanks
#include "llmc/cpu/kernels.h"
#include "test/eval/task_runs.h"

namespace {

struct Reference {
    Cpu cpu{1};
    Gpt<Cpu> gpt;
    explicit Reference(int64_t B) : gpt(cpu, kFixtureShape, B, kTaskT) { load_weights(gpt, Fixture("model")); }
};

// In llm.c's format: of each length a question whose two rows have it.
std::string questions_of_length(const std::vector<uint16_t>& lengths) {
    std::string bytes(1024, '\0');
    const int32_t header[] = {20240522, 1, int32_t(lengths.size())};
    std::memcpy(bytes.data(), header, sizeof header);
    for (const uint16_t length : lengths) {
        std::vector<uint16_t> numbers = {65535, uint16_t(2 * (length + 9)), 0, 0, 2, uint16_t(length - 1)};
        numbers.insert(numbers.end(), length - 1, uint16_t(7));
        numbers.insert(numbers.end(), {1, 8, 1, 9});
        bytes.append(reinterpret_cast<const char*>(numbers.data()), 2 * numbers.size());
    }
    return bytes;
}

// A row alone, its softmax in double precision.
RowScore brute_force(Gpt<Cpu>& model, const TaskFile& file, int64_t r) {
    const TaskRow& row = file.row(r);
    std::vector<int32_t> ids(size_t(row.length()));
    file.copy_row(r, ids.data());
    RowScore score;
    for (int64_t t = row.start; t < row.end; t++) {
        model.forward(ids.data(), 1, t);
        const float* logits = model.logits(t - 1, 1);
        double sum = 0;
        for (int64_t v = 0; v < model.shape.vocab_size; v++) sum += std::exp(double(logits[v]));
        score.nll += (std::log(sum) - double(logits[ids[size_t(t)]])) / double(row.end - row.start);
        score.matches &= std::max_element(logits, logits + model.shape.vocab_size) - logits == ids[size_t(t)];
    }
    return score;
}

}  // namespace

TEST_CASE("scores and answers agree with PyTorch", "[tasks]") {
    for (const int64_t B : {1, 2, 64}) {
        Reference model(B);
        INFO("batches of " << B);
        check_tasks(model.gpt, B, kModelTolerance);
    }
}

TEST_CASE("scores are those of each row alone, to the same bits in batches of any size", "[tasks]") {
    Reference model(16);
    const std::string bytes = tasks_fixture("tiny.tasks");
    const TaskFile file(bytes, "tiny.tasks");
    std::vector<RowScore> want;
    for (size_t r = 0; r < file.rows().size(); r++) want.push_back(brute_force(model.gpt, file, int64_t(r)));
    std::vector<RowScore> first;
    for (const int64_t B : {1, 3, 5, 16}) {
        INFO("batches of " << B);
        const std::vector<RowScore> got = scores_of(model.gpt, file, B, kTaskT);
        // Each of the means is of losses that are rounded once or twice.
        CHECK(relative_l2(nlls(got), nlls(want)) <= 4 * kEpsF32);
        for (const TaskExample& example : file.examples())
            if (file.tasks()[size_t(example.task)].type == TaskType::language_modeling)
                CHECK(got[size_t(example.first_row)].matches == want[size_t(example.first_row)].matches);
        if (first.empty()) first = got;
        CHECK(nlls(got) == nlls(first));
    }
    // Logits a few at a time, as under a large vocabulary, and rows that are not of a whole unit's length.
    model.gpt.acts.head_rows = 5;
    CHECK(nlls(scores_of(model.gpt, file, 16, kTaskT)) == nlls(first));
}

TEST_CASE("rows in memory are scored to their last token, also those of one more than the model reads", "[tasks]") {
    Reference model(4);
    std::vector<std::vector<int32_t>> rows;
    for (const int32_t length : {33, 2, 32, 33, 7}) {
        rows.emplace_back();
        for (int32_t t = 0; t < length; t++) rows.back().push_back((t * 37 + length * 11) % 300);
    }
    const TaskFile file(rows, {1, 1, 31, 32, 3});
    file.check(kFixtureShape.vocab_size, kTaskT);
    const std::vector<RowScore> got = scores_of(model.gpt, file, 4, kTaskT);
    std::vector<RowScore> want;
    for (size_t r = 0; r < rows.size(); r++) want.push_back(brute_force(model.gpt, file, int64_t(r)));
    CHECK(relative_l2(nlls(got), nlls(want)) <= 4 * kEpsF32);
    for (size_t r = 0; r < rows.size(); r++) CHECK(got[r].matches == want[r].matches);
}

TEST_CASE("batches hold every example once, are full, and begin with the longest", "[tasks]") {
    const std::string bytes = questions_of_length({5, 90, 33, 64, 65, 10, 100, 2, 32, 31, 96, 97});
    const TaskFile file(bytes, "lengths.bin");
    for (const int64_t B : {1, 2, 3, 5, 40})
        for (const int64_t T : {100, 128, 1000}) {
            std::vector<size_t> seen;
            int64_t before = T;
            for (const TaskBatch& batch : task_batches(file, B, T)) {
                int64_t longest = 0;
                for (const size_t e : batch.examples) longest = std::max(longest, file.row(int64_t(2 * e)).length());
                CHECK(batch.num_rows == 2 * int64_t(batch.examples.size()));
                CHECK((longest <= batch.length && batch.length <= before && batch.length < longest + 32));
                CHECK((batch.length == T || batch.length % 32 == 0));
                CHECK((batch.examples.size() == 1 || batch.num_rows * batch.length <= B * T));
                before = batch.length;
                seen.insert(seen.end(), batch.examples.begin(), batch.examples.end());
            }
            std::sort(seen.begin(), seen.end());
            for (size_t e = 0; e < file.examples().size(); e++) REQUIRE(seen.at(e) == e);
            CHECK(seen.size() == file.examples().size());
        }
    // One after the other while they fit.
    CHECK(task_batches(file, 3, 128)[0].examples == std::vector<size_t>{6});
    CHECK(task_batches(file, 4, 128)[0].examples == std::vector<size_t>{6, 11});
    CHECK(task_batches(file, 40, 128).size() == 1);
}

TEST_CASE("of equal rows the first is the answer, and no row that is not finite", "[tasks]") {
    const auto answer_of = [](const std::vector<double>& values) {
        std::vector<RowScore> rows;
        for (const double nll : values) rows.push_back({.nll = nll});
        return answer(rows);
    };
    CHECK(answer_of({3, 1, 2}) == 1);
    CHECK(answer_of({1, 2, 1}) == 0);
    CHECK(answer_of({NAN, 2, 1}) == 2);
    CHECK(answer_of({INFINITY, 2}) == 1);
    CHECK(answer_of({NAN, INFINITY}) == -1);
}

TEST_CASE("of equally likely tokens the one with the lowest id counts; a ruined model knows nothing", "[tasks]") {
    Reference model(2);
    // Tokens 3 and 4 are equally likely everywhere, and no other is.
    for (const Parameter& p : model.gpt.parameters) {
        float* weight = model.gpt.weights.at(p);
        std::fill_n(weight, p.size(), p.name == "ln_f.bias" ? 1.f : 0.f);
        if (p.name == "wte.weight") std::fill_n(weight + 3 * kFixtureShape.channels, 2 * kFixtureShape.channels, 1.f);
    }
    std::string bytes = tasks_fixture("tiny.tasks");
    const TaskFile file(bytes, "tiny.tasks");
    const TaskExample& last = file.examples().back();
    const TaskRow& row = file.row(last.first_row);
    const auto set = [&](int64_t t, uint16_t id) {  // the last row's tokens end with the file
        std::memcpy(bytes.data() + bytes.size() - size_t(2 * (row.length() - t)), &id, 2);
    };
    for (int64_t t = row.start; t < row.end; t++) set(t, 3);
    const auto matches = [&] { return scores_of(model.gpt, file, 2, kTaskT)[size_t(last.first_row)].matches; };
    CHECK(matches());
    for (const int64_t t : {int64_t(row.start), int64_t(row.end) - 1})
        for (const uint16_t other : {4, 2, 300}) {
            set(t, other);
            CHECK(!matches());
            set(t, 3);
        }
    set(row.start - 1, 9);  // not scored
    CHECK(matches());
    OneRank alone;
    for (int64_t i = 0; i < model.gpt.weights.size; i++) model.gpt.weights.data[i] = NAN;
    for (const TaskRecord& task : score_tasks(model.gpt, file, alone, 2, kTaskT).tasks) CHECK(task.right == 0);
}

TEST_CASE("scores are the same at any number of ranks", "[tasks]") {
    const std::string bytes = tasks_fixture("tiny.tasks");
    const TaskFile file(bytes, "tiny.tasks");
    Reference one(1);
    OneRank alone;
    const TaskScores want = score_tasks(one.gpt, file, alone, 1, kTaskT);
    for (const int world_size : {2, 3, 40}) {  // with 40, some have nothing to do
        LocalGroup group(world_size);
        std::vector<TaskScores> got(size_t(world_size), TaskScores{});
        group.run([&](int rank) {
            LocalRanks ranks(group, rank);
            Reference model(1);
            got[size_t(rank)] = score_tasks(model.gpt, file, ranks, 1, kTaskT);
        });
        for (const TaskScores& scores : got) {
            CHECK(scores.score == want.score);
            for (size_t t = 0; t < want.tasks.size(); t++) CHECK(scores.tasks[t].right == want.tasks[t].right);
        }
    }
}

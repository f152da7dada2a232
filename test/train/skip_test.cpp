// Steps whose loss or gradient is not finite are skipped without any change of weights and moments, but not forever.
#include <cstring>
#include "llmc/train/step.h"  // Stepper
#include "test/program.h"

namespace {

// A model in memory, and the data of a TinyRuns folder.
struct InMemory {
    static constexpr int64_t B = 2, T = 16;
    Cpu cpu{1};
    Gpt<Cpu> model;
    Optimizer<Cpu> optimizer;
    DataLoader data;
    Stepper<Cpu> stepper;

    InMemory(const TinyRuns& runs)
        : model(cpu, {2, 2, 32, T, 60}, B, T),
          optimizer(cpu, model.parameters, {}),
          data({.pattern = runs.path("data/train_*.bin"), .batch_size = B, .seq_len = T, .vocab_size = 60}),
          stepper(model, optimizer, {B, T, 2, 1.0}, 0) {
        model.initialize_weights(1);
    }

    StepResult step() {
        stepper.start(data, OptimizerConfig().rates(1e-3));
        return stepper.finish();
    }
    float* weight(const std::string& name) {
        for (const Parameter& p : model.parameters)
            if (p.name == name) return model.weights.at(p);
        FAIL("no parameter " << name);
        return nullptr;
    }
    // Weights and both moments, as bits: NaN equals itself.
    std::string bits() const {
        std::string all;
        for (const float* from : {model.weights.data, optimizer.state(0, 0), optimizer.state(1, 0)})
            all.append(reinterpret_cast<const char*>(from), size_t(model.weights.size) * sizeof(float));
        return all;
    }
};

}  // namespace

TEST_CASE("a loss that is not finite leaves weights and moments as they are", "[skip]") {
    const TinyRuns runs;
    for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        InMemory at(runs);
        REQUIRE(at.step().applied);
        float* const weight = at.weight("h.1.mlp.c_fc.bias");
        const float sane = weight[3];
        weight[3] = poison;
        const std::string before = at.bits();
        const StepResult skipped = at.step();
        CHECK_FALSE(skipped.applied);
        CHECK_FALSE(std::isfinite(skipped.loss));
        CHECK((at.bits() == before));
        // Nothing of it is left in gradients or activations.
        weight[3] = sane;
        const StepResult next = at.step();
        CHECK(next.applied);
        CHECK(std::isfinite(next.norm));
        CHECK((at.bits() != before));
    }
}

TEST_CASE("a gradient that overflows under a finite loss leaves weights and moments as they are", "[skip]") {
    const TinyRuns runs;
    InMemory at(runs);
    REQUIRE(at.step().applied);
    // The gradient of c_fc is a sum of (gradient after it) x (its input). The input is made 1e37 times as large, and
    // c_fc as small, which leaves the loss as it was; ln_f makes logits and gradients 1e8 times as large.
    const int64_t C = at.model.shape.channels;
    for (int64_t i = 0; i < C; i++) at.weight("h.1.ln_2.weight")[i] *= 1e37f, at.weight("ln_f.weight")[i] *= 1e8f;
    for (int64_t i = 0; i < 4 * C * C; i++) at.weight("h.1.mlp.c_fc.weight")[i] *= 1e-37f;
    const std::string before = at.bits();
    const StepResult skipped = at.step();
    CHECK(std::isfinite(skipped.loss));
    CHECK_FALSE(std::isfinite(skipped.norm));
    CHECK_FALSE(skipped.applied);
    CHECK((at.bits() == before));
}

TEST_CASE("a loss that overflows over finite gradients leaves weights and moments as they are", "[skip]") {
    const TinyRuns runs;
    InMemory at(runs);
    REQUIRE(at.step().applied);
    // The final norm ends in W, ..., W, and so do the rows of wte but one, that of a token to come, which is its
    // negative: logits of 3e38 and -3e38, whose difference has no float; their softmax is 1 and 0. (Squares of
    // gradients still have one.)
    const int64_t C = at.model.shape.channels, V = at.model.shape.vocab_size;
    const float W = std::sqrt(3e38f / float(C));
    const LoaderState state = at.data.state();
    const int32_t rare = at.data.next().targets[0];
    at.data.restore(state);
    std::fill_n(at.weight("ln_f.weight"), C, 0.f);
    std::fill_n(at.weight("ln_f.bias"), C, W);
    for (int64_t i = 0; i < V * C; i++) at.weight("wte.weight")[i] = i / C == rare ? -W : W;
    const std::string before = at.bits();
    const StepResult skipped = at.step();
    CHECK_FALSE(std::isfinite(skipped.loss));
    CHECK(std::isfinite(skipped.norm));
    CHECK_FALSE(skipped.applied);
    CHECK((at.bits() == before));
}

TEST_CASE("a step that one rank votes against, or has no data for, leaves weights and moments as they are", "[skip]") {
    const TinyRuns runs;
    InMemory at(runs);
    REQUIRE(at.step().applied);
    std::string before = at.bits();
    at.stepper.start(at.data, OptimizerConfig().rates(1e-3), {Vote::bad_data, Vote::written});
    const StepResult against = at.stepper.finish();
    CHECK_FALSE(against.applied);
    CHECK(against.count(Vote::bad_data) == 1);
    CHECK(against.count(Vote::written) == 1);
    CHECK(against.updates == 1);
    CHECK((at.bits() == before));
    at.stepper.rethrow_data_error();  // there is none
    REQUIRE(at.step().applied);

    // Windows of 16 tokens, two a micro-batch and two micro-batches a step: this one is the second's, in the next step.
    const std::string shard = runs.path("data/train_000000.bin");
    const size_t place = size_t(kShardHeaderBytes) + 2 * (6 * 16 + 5);
    const std::string good = read_file(shard).substr(place, 2);
    InMemory other(runs);
    REQUIRE(other.step().applied);
    overwrite(shard, place, std::string("\x3c\0", 2));
    before = other.bits();
    for (int turn : {0, 1}) {
        other.stepper.start(other.data, OptimizerConfig().rates(1e-3), {Vote::written});
        const StepResult refused = other.stepper.finish();
        CHECK_FALSE(refused.applied);
        CHECK(refused.count(Vote::bad_data) == 1);
        CHECK(refused.count(Vote::written) == 1);
        CHECK((other.bits() == before));
        CHECK(contains(error_of([&] { other.stepper.rethrow_data_error(); }), "token 101 has the id 60, outside"));
        // A GPU has started the step after it by then. It is not applied either, even if its data are good again.
        if (turn == 0) overwrite(shard, place, good);
    }
}

TEST_CASE("ten skipped steps in a row end the run, and the checkpoint from before is still there", "[skip]") {
    const TinyRuns runs;
    // Checkpoints of 3 and 6, then one step that ruins the weights.
    must_succeed(runs.train("a", {{"steps", "6"}, {"checkpoint-every", "3"}}));
    must_succeed(runs.train("again", {{"steps", "6"}, {"checkpoint-every", "3"}}));
    const std::string out = runs.path("a");
    const Finished finished =
        runs.resume("a", {{"steps", "40"}, {"learning-rate", "1e30"}, {"grad-clip", "0"}, {"lr-schedule", "constant"}});
    CHECK(finished.exit_code == 4);
    std::string want;
    for (int step = 8; step <= 17; step++)
        want += format("warning: step %d skipped, parameters unchanged: not finite\n", step);
    want +=
        "error: the loss or the gradient was not finite in 10 steps in a row, up to step 17: resume from an earlier "
        "checkpoint with a lower --learning-rate or a --grad-clip\n";
    CHECK(finished.err == want);
    CHECK(records_in(out, "skip").size() == 10);
    // Those due at 9, 12 and 15 would have pushed the good ones out (--keep is 2).
    CHECK(checkpoint_steps(out) == std::vector<int64_t>{3, 6});
    CHECK(difference(step_folder(out, 6), step_folder(runs.path("again"), 6)) == "");
    // What the message advises works, and it advises nothing that cannot be done.
    must_succeed(runs.resume("a", {{"steps", "12"}}));
    const Finished at_once = runs.train("b", {{"steps", "40"}, {"learning-rate", "1e30"}, {"warmup-steps", "0"}});
    CHECK(at_once.exit_code == 4);
    CHECK(contains(at_once.err, ": start again with a lower --learning-rate or a --grad-clip\n"));
    CHECK(state_in(step_folder(out, 12)).updates == 12);
}

TEST_CASE("skipped steps are counted across a resume, and are no updates", "[skip]") {
    const TinyRuns runs;
    const std::string out = runs.path("a");
    // The first step ruins the weights; the last one saves, whatever it saves.
    const FlagMap ruinous = {{"steps", "5"},        {"learning-rate", "1e30"},   {"grad-clip", "0"},
                             {"warmup-steps", "0"}, {"lr-schedule", "constant"}, {"val-data", ""}};
    must_succeed(runs.train("a", ruinous));
    const RunState state = state_in(step_folder(out, 5));
    CHECK(state.step == 5);
    CHECK(state.updates == 1);
    CHECK(state.skipped_in_a_row == 4);
    CHECK(state.tokens == 5 * 96);
    const Finished finished = runs.resume("a", {{"steps", "40"}});
    CHECK(finished.exit_code == 4);
    CHECK(contains(finished.err, "in 10 steps in a row, up to step 11"));
}

// Models with large linear layers in FP8: against PyTorch's arithmetic, with all kinds of activation checkpointing, and
// in training.
#include "llmc/model/linear.h"
#include <numeric>
#include <set>
#include "llmc/cpu/kernels.h"
#include "test/model/linear_testing.h"  // kFp8Cases, learn, check_learned
#include "test/testing.h"
#include "test/train/rank_runs.h"  // TinyRuns, tensor_difference

TEST_CASE("loss and gradients of models in FP8 agree with PyTorch", "[linear]") {
    for (const ArchitectureCase& c : kFp8Cases)
        for (const Recomputation& recompute : kRecomputations) {
            INFO(c.fixture << ", recompute " << recompute);
            Cpu cpu;
            check_learned(c, learn<float>(cpu, c, {recompute, true}), 4 * kEpsF32, kModelTolerance);
        }
}

TEST_CASE("loss and gradients of a model in MX agree with PyTorch", "[linear]") {
    for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::block}) {
        INFO("recompute " << int(recompute));
        Cpu cpu;
        check_learned(kMxCase, learn<float>(cpu, kMxCase, {recompute, true, 0, 0, true}), 4 * kEpsF32, kModelTolerance);
    }
}

// SwiGLU, and the same bits whatever is recomputed.
TEST_CASE("in MX a step does not depend on what is recomputed", "[linear]") {
    const ArchitectureCase c = {"fp8_llama_wide", 2, 16, small_shape("llama", {2, 2, 128, 16, 61, 1, 128})};
    const auto gradients = [&](ActivationPolicy policy) {
        Cpu cpu;
        Gpt<Cpu> model(cpu, c.shape, c.B, c.T, policy);
        model.initialize_weights(7);
        model.zero_gradients();
        std::vector<int32_t> tokens(size_t(c.B * c.T));
        for (size_t i = 0; i < tokens.size(); i++) tokens[i] = int32_t(i * 7 % 61);
        model.begin_step();
        model.forward(tokens.data(), c.B, c.T);
        model.loss_and_gradient(tokens.data(), 1.f / float(tokens.size()));
        model.backward(tokens.data());
        model.end_step();
        Floats all;
        for (const Parameter& p : model.parameters) {
            const Floats one = from_device(cpu, p, model.gradients.at(p));
            all.insert(all.end(), one.begin(), one.end());
        }
        return all;
    };
    const Floats want = gradients({Recompute::none, true, 0, 0, true}), fp32 = gradients(Recompute::none);
    for (const Recompute recompute : {Recompute::norms, Recompute::block})
        CHECK(same_bits(gradients({recompute, true, 0, 0, true}), want));
    // Eight roundings to e4m3 on the way up and down, of 2^-3 / sqrt(12) at most each.
    CHECK(relative_l2(want, fp32) <= std::sqrt(8.) * 0.125 / std::sqrt(12.));
    CHECK(relative_l2(want, fp32) > 0.01);
}

TEST_CASE("with the magnitudes of an equal step, delayed scales are the tensors' own", "[linear]") {
    for (const ArchitectureCase& c : kFp8Cases)
        for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::block}) {
            Cpu cpu;
            check_delayed_scales<float>(cpu, c, recompute);
        }
}

TEST_CASE("in FP8 an MLP with SwiGLU has the bits of its ops one after another", "[linear]") {
    for (const bool is_delayed : {false, true})
        for (const bool has_biases : {false, true}) {
            Cpu cpu;
            check_swiglu_mlp<float>(cpu, is_delayed, has_biases);
        }
}

TEST_CASE("weights are converted once a step, and outside of one nothing is", "[linear]") {
    const ArchitectureCase& c = kFp8Cases[0];
    const Fixture fixture(c.fixture);
    const std::vector<int32_t> tokens = fixture.ints("tokens"), targets = fixture.ints("targets");
    Cpu cpu;
    Gpt<Cpu> model(cpu, c.shape, c.B, c.T, {Recompute::none, true}), exact(cpu, c.shape, c.B, c.T);
    model.initialize_weights(1), exact.initialize_weights(1);
    const auto loss = [&](Gpt<Cpu>& of) {
        of.forward(tokens.data(), c.B, c.T);
        return of.loss(targets.data());
    };
    const auto change = [](Gpt<Cpu>& of) {
        for (const Parameter& p : of.parameters)
            if (p.name == "h.1.mlp.c_fc.weight" || p.name == "h.0.attn.c_attn.weight")
                of.set_weight(p, randn(size_t(p.size()), 5, 0.1f).data());
    };
    const double want = loss(exact);
    CHECK(loss(model) == want);
    model.begin_step();
    const double first = loss(model);
    CHECK(first != want);
    change(model), change(exact);
    CHECK(loss(model) == first);
    model.end_step();
    const double want_now = loss(exact);
    CHECK(loss(model) == want_now);
    model.begin_step();
    const double second = loss(model);
    CHECK(second != first);
    CHECK(second != want_now);
    model.end_step();
    // What backward would need is not there.
    loss(model);
    CHECK(contains(error_of([&] { model.backward(tokens.data()); }), "1: internal"));
}

TEST_CASE("in FP8 inputs are kept as bytes, and weights twice", "[linear]") {
    const int64_t C = 256, F = 1024, N = 512;
    const auto layer = [&](ActivationPolicy policy) {  // what one layer more takes
        const auto bytes = [&](int64_t layers) {
            return Activations<bf16>({layers, 4, C, 128, 61}, 4, 128, {policy.recompute, policy.fp8, 64}).bytes();
        };
        return int64_t(bytes(3) - bytes(2));
    };
    const int64_t codes_of_weights = 2 * (3 * C * C + C * C + 2 * C * F) + 4 * 128, inp_scales = 4 * 128;
    CHECK(layer({Recompute::none, true}) - layer(Recompute::none) ==
          N * (3 * C + F) - 2 * N * (2 * C + F) + codes_of_weights + inp_scales);
    for (const Recompute recompute : {Recompute::norms, Recompute::block})
        CHECK(layer({recompute, true}) - layer(recompute) == codes_of_weights);
}

TEST_CASE("in MX each 32 codes have a byte more", "[linear]") {
    const int64_t C = 256, F = 1024, N = 512;
    const auto layer = [&](bool mx) {  // what one layer more takes
        const auto bytes = [&](int64_t layers) {
            return Activations<bf16>({layers, 4, C, 128, 61}, 4, 128, {Recompute::none, true, 64, 0, mx}).bytes();
        };
        return int64_t(bytes(3) - bytes(2));
    };
    const int64_t weights = 3 * C * C + C * C + 2 * C * F, inputs = N * (3 * C + F), scales_per_tensor = 2 * 4 * 128;
    CHECK(layer(true) - layer(false) == (2 * weights + inputs) / kMxBlock - scales_per_tensor);
}

TEST_CASE("a model or a batch that does not suit FP8 is refused", "[linear]") {
    const auto error = [](const GptShape& shape, int64_t B, int64_t T) {
        return error_of([&] { check_fp8_model(shape, B, T); });
    };
    CHECK(error({1, 2, 128, 16, 61, 0, 48}, 3, 16) == "");
    CHECK(error({1, 2, 128, 8, 61}, 2, 8) == "");
    CHECK(error({1, 1, 64, 16, 61, 0, 512}, 3, 16) ==
          "2: --dtype fp8: this model has no linear layer of 128 channels or more on both sides, and smaller ones gain "
          "nothing by it: leave --dtype away");
    CHECK(
        error({1, 2, 128, 15, 61}, 2, 15) ==
        "2: --dtype fp8: a micro-batch of 2 x 15 tokens: their product must be a multiple of 16; change --batch-size");
    CHECK(linear_size({1, 4, 64, 16, 61, 2, 48}, kQkv).OC == 128);
    CHECK(suits_fp8({1, 4, 128, 16, 61, 2, 48}, kProjection));
    CHECK_FALSE(suits_fp8({1, 4, 128, 16, 61, 2, 48}, kDown));
}

namespace {

// One block whose four layers are all in FP8; four micro-batches of 2 x 16 tokens per step.
const FlagMap kFp8 = {{"dtype", "fp8"},     {"device", "cpu"},       {"num-layers", "1"},
                      {"channels", "128"},  {"mlp-channels", "128"}, {"total-batch-size", "128"},
                      {"grad-clip", "1.5"}, {"grad-sum", "tree"},    {"steps", "8"}};

}  // namespace

TEST_CASE("a run in FP8 goes on after a stop, and on two ranks, with the same bits", "[linear]") {
    const TinyRuns runs;
    must_succeed(runs.train("whole", kFp8));
    must_succeed(runs.train("parts", with(kFp8, {{"steps", "5"}})));  // all of them warm-up
    must_succeed(runs.resume("parts", {{"steps", "8"}}));
    CHECK(difference(step_folder(runs.path("whole"), 8), step_folder(runs.path("parts"), 8)) == "");
    must_succeed(runs.train("ranks", with(kFp8, {{"virtual-ranks", "2"}})));
    CHECK(losses_in(runs.path("ranks")) == losses_in(runs.path("whole")));
    CHECK(tensor_difference(step_folder(runs.path("ranks"), 8), step_folder(runs.path("whole"), 8)) == "");
}

namespace {

// Two blocks, because the last one is not recomputed.
const FlagMap kTwo = with(kFp8, {{"num-layers", "2"}});
const FlagMap kDelayed = with(kTwo, {{"fp8-scaling", "delayed"}, {"fp8-amax-history", "2"}});

constexpr size_t kDelayedTensors = 2 * size_t(kDelayedPerBlock);  // of two blocks

// update_amax's state in a checkpoint.
Floats amax_state(const std::string& folder) {
    Floats state(size_t(AmaxState::size_of(kDelayedTensors, 2)));
    ShardedTensors(folder, kOptimizerStem).read(state.data(), kAmax, 0, int64_t(state.size()));
    return state;
}

std::vector<int64_t> saturated_in(const std::string& out_dir) {
    std::vector<int64_t> counts;
    for (const auto& [step, line] : records_by_step(out_dir, "step")) {
        int64_t count = -1;
        if (contains(line, "fp8_saturated")) from_json({{"", "fp8_saturated", &count, ""}}, line, out_dir);
        counts.push_back(count);
    }
    return counts;
}

}  // namespace

TEST_CASE("delayed scaling goes on after a stop, on two ranks and when it recomputes, with the same bits", "[linear]") {
    const TinyRuns runs;
    must_succeed(runs.train("whole", kDelayed));
    must_succeed(runs.train("parts", with(kDelayed, {{"steps", "5"}, {"virtual-ranks", "2"}})));
    const Floats after_5 = amax_state(step_folder(runs.path("parts"), 5));
    must_succeed(runs.resume("parts", {{"steps", "8"}, {"recompute", "block"}}));
    CHECK(difference(step_folder(runs.path("whole"), 8), step_folder(runs.path("parts"), 8)) == "");
    CHECK(saturated_in(runs.path("parts")) == saturated_in(runs.path("whole")));  // recomputed, not counted again
    must_succeed(runs.train("ranks", with(kDelayed, {{"virtual-ranks", "2"}})));
    CHECK(losses_in(runs.path("ranks")) == losses_in(runs.path("whole")));
    CHECK(saturated_in(runs.path("ranks")) == saturated_in(runs.path("whole")));
    CHECK(tensor_difference(step_folder(runs.path("ranks"), 8), step_folder(runs.path("whole"), 8)) == "");

    // Each tensor has an entry, and gradients, of a mean over 128 tokens, are far smaller than inputs.
    const Floats after_8 = amax_state(step_folder(runs.path("whole"), 8));
    const Floats amax(&after_8[2], &after_8[size_t(2 + kDelayedPerBlock)]);
    CHECK(std::set<float>(amax.begin(), amax.end()).size() == amax.size());
    for (const LinearKind kind : kLinearKinds) {
        const float inp = amax[size_t(delayed_tensor(0, kind, false))],
                    dout = amax[size_t(delayed_tensor(0, kind, true))];
        CHECK((dout > 0 && dout < 0.1f && inp > dout && inp < 100));
    }

    // Each step replaces the older of two entries by its own magnitudes, and the larger is for the next step's scales.
    CHECK((after_5[0] == 1 && after_5[1] == 2 && after_8[0] == 0 && after_8[1] == 2));
    for (size_t i = 2; i < 2 + kDelayedTensors; i++) {
        const float *const five = &after_5[i], *const eight = &after_8[i];
        CHECK(*eight == std::max(eight[kDelayedTensors], eight[2 * kDelayedTensors]));
        CHECK(std::set<float>{five[kDelayedTensors], five[2 * kDelayedTensors], eight[kDelayedTensors],
                              eight[2 * kDelayedTensors]}
                  .size() == 4);
    }

    // The scales are the tensors' own until the history is full, and then they are not.
    must_succeed(runs.train("current", kTwo));
    const auto delayed = losses_in(runs.path("whole")), current = losses_in(runs.path("current"));
    REQUIRE((delayed.size() == 8 && current.size() == 8));
    for (size_t step = 0; step < 2; step++) CHECK(delayed[step] == current[step]);
    CHECK(delayed[2].first != current[2].first);
    const std::vector<int64_t> saturated = saturated_in(runs.path("whole"));
    CHECK((saturated[0] == 0 && saturated[1] == 0));
    CHECK(std::accumulate(saturated.begin(), saturated.end(), int64_t(0)) > 0);
    for (const int64_t count : saturated_in(runs.path("current"))) CHECK(count == -1);

    // Without a history of its length it begins anew, as a checkpoint of current scaling does.
    const auto next = [&](const std::string& from, const std::string& name, const FlagMap& flags) {
        must_succeed(runs.resume(
            from, with({{"steps", "9"}, {"out-dir", runs.path(name)}, {"resume", runs.path(from)}}, flags)));
        return losses_in(runs.path(name)).back();
    };
    const auto anew = next("whole", "on_current", {{"fp8-scaling", "current"}});
    CHECK(next("whole", "longer", {{"fp8-amax-history", "3"}}) == anew);
    CHECK(next("whole", "as_it_was", {}) != anew);
    CHECK(next("current", "on_delayed", {{"fp8-scaling", "delayed"}}) ==
          next("current", "still_current", {{"fp8-scaling", "current"}}));
}

// Rounding to FP8 is an error of random sign, 3.6% of a product's term at most, in hundreds of terms a sum: it
// is noise in the gradient, less than that of a batch of 128 tokens. Measured over 40 steps, with two seeds: means of
// the loss 0.1% and 0.4% apart, those of the two seeds 3%. And where the model is looked at, it is not in FP8.
TEST_CASE("a run in FP8 learns like one in fp32 and is validated in fp32", "[linear]") {
    const TinyRuns runs;
    const FlagMap flags = with(kFp8, {{"steps", "40"}, {"learning-rate", "3e-3"}, {"val-every", "40"}});
    must_succeed(runs.train("fp8", flags));
    must_succeed(runs.train("delayed", with(flags, {{"fp8-scaling", "delayed"}})));
    must_succeed(runs.train("mx", with(flags, {{"fp8-scaling", "mx"}})));
    must_succeed(runs.train("fp32", with(flags, {{"dtype", "fp32"}})));
    const auto want = steps_in(runs.path("fp32"));
    const auto mean = [](const std::vector<StepRecord>& steps) {
        REQUIRE(steps.size() == 40);
        double sum = 0;
        for (const StepRecord& step : steps) sum += step.loss / 40;
        return sum;
    };
    CHECK(want[39].loss < 0.8 * want[0].loss);
    for (const std::string name : {"fp8", "delayed", "mx"}) {
        INFO(name);
        const auto got = steps_in(runs.path(name));
        CHECK(std::fabs(mean(got) - mean(want)) <= 0.01 * mean(want));
        CHECK(got[0].loss != want[0].loss);
    }
    // Weights and checkpoints are what they always are: without --dtype fp8 the run goes on in fp32, and looks at
    // itself first, as the run before has done at its end.
    const std::string seen = records_by_step(runs.path("fp8"), "val").at(40);
    must_succeed(runs.resume(
        "fp8", {{"steps", "41"}, {"dtype", "fp32"}, {"out-dir", runs.path("on")}, {"resume", runs.path("fp8")}}));
    CHECK(records_by_step(runs.path("on"), "val").at(40) == seen);
}

TEST_CASE("train_gpt says what FP8 needs", "[linear]") {
    const TinyRuns runs;
    const Finished narrow = runs.train("narrow", with(kFp8, {{"channels", "32"}, {"mlp-channels", "64"}}));
    CHECK(narrow.exit_code == 2);
    CHECK(contains(narrow.err, "error: --dtype fp8: this model has no linear layer of 128 channels"));
    const Finished odd =
        runs.train("odd", with(kFp8, {{"batch-size", "3"}, {"seq-len", "8"}, {"total-batch-size", "0"}}));
    CHECK(odd.exit_code == 2);
    CHECK(contains(odd.err, "error: --dtype fp8: a micro-batch of 3 x 8 tokens"));
    const Finished without = runs.train("without", {{"dtype", "fp32"}, {"fp8-scaling", "delayed"}});
    CHECK(without.exit_code == 2);
    CHECK(contains(without.err, "error: --fp8-scaling delayed without --dtype fp8: give both, or leave it out"));
    const FlagMap mx = with(kFp8, {{"fp8-scaling", "mx"}, {"total-batch-size", "0"}});
    const Finished tokens = runs.train("tokens", with(mx, {{"batch-size", "6"}, {"seq-len", "8"}}));
    CHECK(tokens.exit_code == 2);
    CHECK(contains(tokens.err,
                   "error: --fp8-scaling mx: a micro-batch of 6 x 8 tokens: their product must be a multiple "
                   "of 32; change --batch-size"));
    const Finished uneven = runs.train("uneven", with(mx, {{"mlp-channels", "144"}}));
    CHECK(uneven.exit_code == 2);
    CHECK(contains(uneven.err,
                   "error: --fp8-scaling mx: a linear layer of 128 by 144 channels: both must be multiples "
                   "of 32; choose another --fp8-scaling"));
    const Finished plan = runs.train("plan", with(kFp8, {{"dry-run", "true"}}));
    must_succeed(plan);
    CHECK(contains(plan.out, "  1 layers, with their weights in fp8\n"));
}

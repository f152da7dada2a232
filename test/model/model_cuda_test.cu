// The whole model on the CUDA kernels: against PyTorch in fp32, against the CPU in bf16, and its training steps.
#include <cstring>
#include "llmc/cpu/kernels.h"
#include "llmc/cuda/cuda_kernels.h"
#include "llmc/cuda/limits.h"  // kOldestFp8
#include "llmc/model/gpt.h"
#include "llmc/optim/optimizer.h"       // AdamW
#include "llmc/optim/schedule.h"        // learning_rate
#include "llmc/train/step.h"            // Stepper
#include "test/cuda_testing.h"          // OnDevice, ON_DEVICE
#include "test/model/bf16_models.h"     // check_bf16_model, kBf16Shape, bf16_shape
#include "test/model/linear_testing.h"  // kFp8Cases
#include "test/model/model_testing.h"   // load_weights, kFixtureShape, from_device
#include "test/models.h"                // Gpt
#include "test/program.h"               // TinyRuns

TEST_CASE("on a GPU, loss and every gradient agree with PyTorch in fp32", "[model]" ON_DEVICE) {
    const Fixture fixture("model");
    Cuda cuda;
    const auto recompute = GENERATE(Recompute::none, Recompute::norms, Recompute::block);
    Gpt<Cuda, float> model(cuda, kFixtureShape, kB, kT, recompute);
    load_weights(model, fixture);
    const OnDevice<int32_t> tokens(cuda, fixture.ints("tokens")), targets(cuda, fixture.ints("targets"));
    const double want_loss = double(fixture.floats("want.loss")[0]);

    model.forward(tokens.data, kB, kT);
    CHECK(std::fabs(model.loss(targets.data) - want_loss) <= 4 * kEpsF32 * want_loss);
    // All rows of logits at once, and ten at a time.
    for (const int64_t head_rows : {kN, int64_t(12)}) {
        model.acts.head_rows = head_rows;
        model.zero_gradients();
        model.forward(tokens.data, kB, kT);
        const double loss = model.loss_and_gradient(targets.data, 1.f / kN);
        CHECK(std::fabs(loss - want_loss) <= 4 * kEpsF32 * want_loss);
        model.backward(tokens.data);
        for (const Parameter& p : model.parameters) {
            INFO(p.name << ", recompute " << int(recompute) << ", " << head_rows << " rows of logits at a time");
            CHECK(relative_l2(from_device(cuda, p, model.gradients.at(p)), fixture.floats("grad." + p.name)) <=
                  kModelTolerance);
        }
    }
}

// A library may choose another order of sums where it adds.
TEST_CASE("on a GPU, a step's first products write their gradients, whatever was there, and later ones add",
          "[model]" ON_DEVICE) {
#ifdef ANVIL_EMULATED
    constexpr double kTolerance = 0;
#else
    constexpr double kTolerance = kModelTolerance;
#endif
    Cuda cuda;
    const ParameterList fp32(kFixtureShape), bf16_gpt2(kBf16Shape), padded = sharded_list(bf16_shape("nanochat"));
    check_gradients_begin_anew<float>(cuda, fp32, kB, kT, Recompute::none, kTolerance);
    check_gradients_begin_anew<bf16>(cuda, bf16_gpt2, kBf16B, kBf16T, Recompute::block, kTolerance);
    check_gradients_begin_anew<bf16>(cuda, padded, kB16, kT16, Recompute::none, kTolerance);
    if (cuda.compute_capability < kOldestFp8) return;
    const ArchitectureCase& c = kFp8Cases[0];
    check_gradients_begin_anew<bf16>(cuda, ParameterList(c.shape), c.B, c.T, {Recompute::none, true}, kTolerance);
}

TEST_CASE("on a GPU, twenty AdamW steps agree with PyTorch in fp32", "[model][once]" ON_DEVICE) {
    const Fixture start("model"), run("adamw_run");
    Cuda cuda;
    Gpt<Cuda, float> model(cuda, kFixtureShape, kB, kT);
    load_weights(model, start);
    Optimizer<Cuda, float> optimizer(cuda, model.parameters, {});  // AdamW as PyTorch was told to
    const Schedule schedule{.kind = "cosine", .max = 3e-3, .min = 3e-4, .warmup_steps = 5, .steps = 20};
    const std::vector<int32_t> batches = run.ints("tokens_and_target");  // (20, B, T + 1)
    const Floats want_loss = run.floats("want.loss"), want_norm = run.floats("want.norm");
    OnDevice<StepScalars> scalars(cuda, std::vector{StepScalars()});
    Cuda::ToDevice<int32_t> tokens(cuda, kN), targets(cuda, kN);
    for (int step = 0; step < (kWatched ? 2 : 20); step++) {
        std::vector<int32_t> host_tokens, host_targets;
        for (int64_t b = 0; b < kB; b++) {
            const int32_t* row = batches.data() + (step * kB + b) * (kT + 1);
            host_tokens.insert(host_tokens.end(), row, row + kT);
            host_targets.insert(host_targets.end(), row + 1, row + kT + 1);
        }
        model.zero_gradients();
        fill_zero(cuda, &scalars.data->sums, 1);
        const int32_t* on_device = tokens.send(host_tokens.data(), kN);
        model.forward(on_device, kB, kT);
        model.add_loss_and_gradient(scalars.data, targets.send(host_targets.data(), kN), 1.f / kN, 1);
        model.backward(on_device);
        model.op.add_squares(cuda, &scalars.data->sums.squares, model.gradients.data, model.gradients.size);
        model.op.decide_step(cuda, scalars.data, 2, kN);
        optimizer.update(model.weights, model.gradients, optimizer.config.rates(learning_rate(schedule, step)),
                         scalars.data);
        const StepScalars got = scalars.values()[0];
        INFO("step " << step);
        CHECK(std::fabs(got.loss - want_loss[size_t(step)]) <= kModelTolerance * want_loss[size_t(step)]);
        CHECK(std::fabs(got.norm - want_norm[size_t(step)]) <= kModelTolerance * want_norm[size_t(step)]);
        CHECK(got.updates == step + 1);
    }
    if (kWatched) return;
    for (const Parameter& p : model.parameters) {
        INFO(p.name);
        const Floats got = without_key_bias(p.name, from_device(cuda, p, model.weights.at(p)));
        CHECK(relative_l2(got, without_key_bias(p.name, run.floats("want." + p.name))) <= kModelTolerance);
    }
}

TEST_CASE("on a GPU, the bf16 model's loss and gradients are those of the CPU's but for roundings",
          "[model]" ON_DEVICE) {
    Cuda cuda;
    check_bf16_model(cuda);
}

TEST_CASE("on a GPU, recomputing whole blocks changes no bit, and a second run neither", "[model]" ON_DEVICE) {
    Cuda cuda;
    std::vector<Floats> first;
    for (const Recomputation& recompute :
         {Recomputation(Recompute::none), {Recompute::none}, {Recompute::block}, {Recompute::block, 1}}) {
        Gpt<Cuda, bf16> model(cuda, kBf16Shape, kBf16B, kBf16T, recompute);
        model.initialize_weights(7);
        const auto [loss, gradients] = learn(cuda, model, kBf16B, kBf16T);
        if (first.empty()) first = gradients;
        for (size_t i = 0; i < gradients.size(); i++) {
            INFO(model.parameters.parameters[i].name << ", recompute " << recompute);
            CHECK(same_bits(gradients[i], first[i]));
        }
    }
}

// GELU of the stored sum, rounded, where the first pass had the product's own: what the second layer of an MLP learns
// from differs by the roundings of the sum and of either result, each up to half a unit at random. doc/numerics.md says
// so.
TEST_CASE("on a GPU, recomputing the norms gives the same loss, and gradients but for a rounding",
          "[model]" ON_DEVICE) {
    Cuda cuda;
    const auto learned = [&](Recompute recompute) {
        Gpt<Cuda, bf16> model(cuda, kBf16Shape, kBf16B, kBf16T, recompute);
        model.initialize_weights(7);
        return learn(cuda, model, kBf16B, kBf16T);
    };
    const auto [loss, gradients] = learned(Recompute::none);
    const auto [again, others] = learned(Recompute::norms);
    CHECK(again == loss);
    for (size_t i = 0; i < gradients.size(); i++) CHECK(relative_l2(others[i], gradients[i]) <= kEpsBf16);
}

namespace {

// A bf16 model in training, and all its state as bits.
struct Training {
    static constexpr int64_t B = 2, T = 16;
    Cuda cuda;
    Gpt<Cuda, bf16> model;
    Optimizer<Cuda, bf16> optimizer;
    DataLoader data;
    Stepper<Cuda, bf16> stepper;

    explicit Training(const TinyRuns& runs)
        : model(cuda, {2, 1, 64, T, 60}, B, T),
          optimizer(cuda, model.parameters, {}),
          data({.pattern = runs.path("data/train_*.bin"), .batch_size = B, .seq_len = T, .vocab_size = 60}),
          stepper(model, optimizer, {B, T, 2, 1.0}, 0) {
        model.initialize_weights(1, [&](size_t i, const float* values) { optimizer.set_masters(i, values); });
    }

    std::string bits() {
        std::string all;
        const auto add = [&](const auto* data, int64_t n) {
            std::vector<std::remove_const_t<std::remove_pointer_t<decltype(data)>>> host(static_cast<size_t>(n));
            copy_to_host(cuda, host.data(), data, n);
            all.append(reinterpret_cast<const char*>(host.data()), host.size() * sizeof host[0]);
        };
        add(model.weights.data, model.weights.size);
        for (const float* from : {optimizer.master_weights(0), optimizer.state(0, 0), optimizer.state(1, 0)})
            add(from, model.weights.size);
        return all;
    }
};

}  // namespace

TEST_CASE("on a GPU, a step that is not finite changes no bit and the next one goes on", "[model]" ON_DEVICE) {
    const TinyRuns runs;
    Training at(runs);
    at.stepper.start(at.data, OptimizerConfig().rates(1e-3));
    REQUIRE(at.stepper.finish().applied);
    const Parameter& p = at.model.parameters.parameters.back();
    const std::vector<bf16> sane = [&] {
        std::vector<bf16> values(static_cast<size_t>(p.size()));
        copy_to_host(at.cuda, values.data(), at.model.weights.at(p), p.size());
        return values;
    }();
    std::vector<bf16> poisoned = sane;
    poisoned[3] = to_bf16(std::nanf(""));
    copy_to_device(at.cuda, at.model.weights.at(p), poisoned.data(), p.size());
    const std::string before = at.bits();
    at.stepper.start(at.data, OptimizerConfig().rates(1e-3));
    const StepResult skipped = at.stepper.finish();
    CHECK_FALSE(skipped.applied);
    CHECK(skipped.updates == 1);
    CHECK((at.bits() == before));
    copy_to_device(at.cuda, at.model.weights.at(p), sane.data(), p.size());
    at.stepper.start(at.data, OptimizerConfig().rates(1e-3));
    const StepResult next = at.stepper.finish();
    CHECK(next.applied);
    CHECK(next.updates == 2);
    CHECK((at.bits() != before));
}

TEST_CASE("on a GPU, two steps under way give the bits of one after the other", "[model][once]" ON_DEVICE) {
    const TinyRuns runs;
    Training serial(runs), ahead(runs);
    std::vector<double> losses;
    for (int step = 0; step < 6; step++) {
        serial.stepper.start(serial.data, OptimizerConfig().rates(1e-3));
        losses.push_back(serial.stepper.finish().loss);
    }
#ifdef ANVIL_EMULATED
    emulator::options().lazy_streams = true;  // nothing is done before somebody waits
#endif
    ahead.stepper.start(ahead.data, OptimizerConfig().rates(1e-3));
    for (int step = 0; step < 6; step++) {
        if (step < 5) ahead.stepper.start(ahead.data, OptimizerConfig().rates(1e-3));
        CHECK(ahead.stepper.finish().loss == losses[size_t(step)]);
    }
    CHECK((ahead.bits() == serial.bits()));
#ifdef ANVIL_EMULATED
    emulator::options().lazy_streams = false;
#endif
}

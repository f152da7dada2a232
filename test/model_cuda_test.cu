// The whole model made of the CUDA kernels: against PyTorch in fp32, against the CPU in bf16, and its training steps.
#include <cstring>
#include "llmc/cpu/ops.h"
#include "llmc/cuda/ops.cuh"
#include "llmc/model/gpt.h"
#include "llmc/optim/optimizer.h"  // AdamW
#include "llmc/optim/schedule.h"   // learning_rate
#include "llmc/train/step.h"       // Stepper
#include "test/cuda_testing.h"     // OnDevice, ON_DEVICE
#include "test/model_testing.h"    // load_weights, kFixtureShape, from_device
#include "test/program.h"          // TinyRuns

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

TEST_CASE("on a GPU, twenty AdamW steps agree with PyTorch in fp32", "[model]" ON_DEVICE) {
    const Fixture start("model"), run("adamw_run");
    Cuda cuda;
    Gpt<Cuda, float> model(cuda, kFixtureShape, kB, kT);
    load_weights(model, start);
    AdamW<Cuda, float> adamw(cuda, model.parameters, {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
    const Schedule schedule{.kind = "cosine", .max = 3e-3, .min = 3e-4, .warmup_steps = 5, .steps = 20};
    const std::vector<int32_t> batches = run.ints("tokens_and_target");  // (20, B, T + 1)
    const Floats want_loss = run.floats("want.loss"), want_norm = run.floats("want.norm");
    OnDevice<StepScalars> scalars(cuda, std::vector{StepScalars()});
    Cuda::ToDevice<int32_t> tokens(cuda, kN), targets(cuda, kN);
    for (int step = 0; step < 20; step++) {
        std::vector<int32_t> host_tokens, host_targets;
        for (int64_t b = 0; b < kB; b++) {
            const int32_t* row = batches.data() + (step * kB + b) * (kT + 1);
            host_tokens.insert(host_tokens.end(), row, row + kT);
            host_targets.insert(host_targets.end(), row + 1, row + kT + 1);
        }
        model.zero_gradients();
        fill_zero(cuda, &scalars.data->loss, 1);
        const int32_t* on_device = tokens.send(host_tokens.data(), kN);
        model.forward(on_device, kB, kT);
        model.add_loss_and_gradient(scalars.data, targets.send(host_targets.data(), kN), 1.f / kN, 1);
        model.backward(on_device);
        global_norm_squared(cuda, &scalars.data->norm_squared, model.gradients.data, model.gradients.size);
        decide_step(cuda, scalars.data, 2);
        adamw.step(model.weights, model.gradients, learning_rate(schedule, step), scalars.data);
        const StepScalars got = scalars.values()[0];
        INFO("step " << step);
        CHECK(std::fabs(got.loss - want_loss[size_t(step)]) <= kModelTolerance * want_loss[size_t(step)]);
        CHECK(std::fabs(got.norm - want_norm[size_t(step)]) <= kModelTolerance * want_norm[size_t(step)]);
        CHECK(got.updates == step + 1);
    }
    for (const Parameter& p : model.parameters) {
        INFO(p.name);
        const Floats got = without_key_bias(p.name, from_device(cuda, p, model.weights.at(p)));
        CHECK(relative_l2(got, without_key_bias(p.name, run.floats("want." + p.name))) <= kModelTolerance);
    }
}

namespace {

const GptShape kBf16Shape{2, 2, 128, 80, 300};  // heads of 64
constexpr int64_t kBf16B = 2, kBf16T = 77;

Ints random_tokens(int64_t n, uint64_t seed) {
    Rng rng(seed, Stream::tests);
    Ints tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens) token = int32_t(rng.below(300));
    return tokens;
}

// Loss and all gradients of one batch.
template <class Device, class T>
std::pair<double, std::vector<Floats>> learn(Device& device, Gpt<Device, T>& model) {
    const int64_t n = kBf16B * kBf16T;
    const Ints host_tokens = random_tokens(n, 1), host_targets = random_tokens(n, 2);
    typename Device::template ToDevice<int32_t> tokens(device, n), targets(device, n);
    const int32_t* on_device = tokens.send(host_tokens.data(), n);
    model.zero_gradients();
    model.forward(on_device, kBf16B, kBf16T);
    const double loss = model.loss_and_gradient(targets.send(host_targets.data(), n), 1 / float(n));
    model.backward(on_device);
    std::vector<Floats> gradients;
    for (const Parameter& p : model.parameters) gradients.push_back(from_device(device, p, model.gradients.at(p)));
    return {loss, gradients};
}

}  // namespace

// Every activation is rounded to bf16, an error of up to half a unit, kEpsBf16 / 2 of it, at random. Through a block
// there are eight such roundings one behind the other, and the residual stream adds one a branch; the gradient comes
// back through as many. About 2 * (8 + 1) * layers + the ends = 40 independent errors: sqrt(40) / 2 = 3 units of the
// gradient's norm, if all weighed as much as the last; and the loss, a mean over all, is off by less than one.
TEST_CASE("on a GPU, the bf16 model's loss and gradients are those of the CPU's but for roundings",
          "[model]" ON_DEVICE) {
    Cpu cpu;
    Gpt<Cpu, float> exact(cpu, kBf16Shape, kBf16B, kBf16T);
    Cuda cuda;
    Gpt<Cuda, bf16> model(cuda, kBf16Shape, kBf16B, kBf16T);
    for (const Parameter& p : model.parameters) {
        Floats values(size_t(p.size()));
        initialize(model.parameters, p, values.data(), 7);
        values = rounded<bf16>(values);
        exact.set_weight(p, values.data());
        model.set_weight(p, values.data());
    }
    const auto [want_loss, want] = learn(cpu, exact);
    const auto [loss, got] = learn(cuda, model);
    CHECK(std::fabs(loss - want_loss) <= kEpsBf16 * want_loss);
    size_t i = 0;
    for (const Parameter& p : model.parameters) {
        INFO(p.name);
        const Floats want_kept = without_key_bias(p.name, want[i]);  // the key's is zero but for roundings
        CHECK(relative_l2(without_key_bias(p.name, got[i]), want_kept) <= 3 * kEpsBf16);
        i++;
    }
}

TEST_CASE("on a GPU, recomputing whole blocks changes no bit, and a second run neither", "[model]" ON_DEVICE) {
    Cuda cuda;
    std::vector<Floats> first;
    for (const Recompute recompute : {Recompute::none, Recompute::none, Recompute::block}) {
        Gpt<Cuda, bf16> model(cuda, kBf16Shape, kBf16B, kBf16T, recompute);
        model.initialize_weights(7);
        const auto [loss, gradients] = learn(cuda, model);
        if (first.empty()) first = gradients;
        for (size_t i = 0; i < gradients.size(); i++) {
            INFO(model.parameters.parameters[i].name << ", recompute " << int(recompute));
            CHECK(same_bits(gradients[i], first[i]));
        }
    }
}

namespace {

// A bf16 model in training, and all its state as bits.
struct Training {
    static constexpr int64_t B = 2, T = 16;
    Cuda cuda;
    Gpt<Cuda, bf16> model;
    AdamW<Cuda, bf16> adamw;
    DataLoader data;
    Stepper<Cuda, bf16> stepper;

    explicit Training(const TinyRuns& runs)
        : model(cuda, {2, 1, 64, T, 60}, B, T),
          adamw(cuda, model.parameters, {}),
          data({.pattern = runs.path("data/train_*.bin"), .batch_size = B, .seq_len = T, .vocab_size = 60}),
          stepper(model, adamw, {B, T, 2, 1.0}, 0) {
        model.initialize_weights(1, [&](const Parameter& p, const float* values) { adamw.set_master(p, values); });
    }

    std::string bits() {
        std::string all;
        const auto add = [&](const auto* data, int64_t n) {
            std::vector<std::remove_const_t<std::remove_pointer_t<decltype(data)>>> host(static_cast<size_t>(n));
            copy_to_host(cuda, host.data(), data, n);
            all.append(reinterpret_cast<const char*>(host.data()), host.size() * sizeof host[0]);
        };
        add(model.weights.data, model.weights.size);
        for (const float* from : {adamw.masters->data, adamw.m.data, adamw.v.data}) add(from, model.weights.size);
        return all;
    }
};

}  // namespace

TEST_CASE("on a GPU, a step that is not finite changes no bit and the next one goes on", "[model]" ON_DEVICE) {
    const TinyRuns runs;
    Training at(runs);
    at.stepper.start(at.data, 1e-3);
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
    at.stepper.start(at.data, 1e-3);
    const StepResult skipped = at.stepper.finish();
    CHECK_FALSE(skipped.applied);
    CHECK(skipped.updates == 1);
    CHECK((at.bits() == before));
    copy_to_device(at.cuda, at.model.weights.at(p), sane.data(), p.size());
    at.stepper.start(at.data, 1e-3);
    const StepResult next = at.stepper.finish();
    CHECK(next.applied);
    CHECK(next.updates == 2);
    CHECK((at.bits() != before));
}

TEST_CASE("on a GPU, two steps under way give the bits of one after the other", "[model]" ON_DEVICE) {
    const TinyRuns runs;
    Training serial(runs), ahead(runs);
    std::vector<double> losses;
    for (int step = 0; step < 6; step++) {
        serial.stepper.start(serial.data, 1e-3);
        losses.push_back(serial.stepper.finish().loss);
    }
#ifdef ANVIL_EMULATED
    emulator::options().lazy_streams = true;  // nothing is done before somebody waits
#endif
    ahead.stepper.start(ahead.data, 1e-3);
    for (int step = 0; step < 6; step++) {
        if (step < 5) ahead.stepper.start(ahead.data, 1e-3);
        CHECK(ahead.stepper.finish().loss == losses[size_t(step)]);
    }
    CHECK((ahead.bits() == serial.bits()));
#ifdef ANVIL_EMULATED
    emulator::options().lazy_streams = false;
#endif
}

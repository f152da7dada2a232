/*
Compares training with masked targets, on any device, with PyTorch's cross_entropy with ignore_index.
*/
#pragma once
#include <cmath>
#include <vector>
#include "llmc/optim/schedule.h"       // learning_rate
#include "llmc/train/step.h"           // Stepper
#include "test/fixture.h"              // Fixture
#include "test/model/model_testing.h"  // load_weights, kFixtureShape, kModelTolerance
#include "test/testing.h"

// The fixture's rows, one per batch.
struct MaskedRows {
    std::vector<int32_t> sequences, learned;
    int64_t row = 0;
    Batch batch = {};

    const Batch& next() {
        const int32_t* const tokens = sequences.data() + row * (kT + 1);
        batch.tokens.assign(tokens, tokens + kT);
        batch.targets.assign(tokens + 1, tokens + kT + 1);
        for (int64_t t = 0; t < kT; t++)
            if (!learned[size_t(row * kT + t)]) batch.targets[size_t(t)] = -1;
        row++;
        return batch;
    }
};

// Runs up to twenty steps, and compares the weights after all twenty. A step has three micro-batches with different
// numbers of targets; some have none.
template <class Device>
void check_masked_steps(Device& device, int steps = 20) {
    const Fixture start("model"), run("masked_run");
    Gpt<Device> model(device, kFixtureShape, 1, kT);
    load_weights(model, start);
    Optimizer<Device> optimizer(device, model.parameters, {});
    Stepper<Device> stepper(model, optimizer, {.B = 1, .T = kT, .accumulation = kB, .grad_clip = 2}, 0);
    const Schedule schedule{.kind = "cosine", .max = 3e-3, .min = 3e-4, .warmup_steps = 5, .steps = 20};
    MaskedRows rows{run.ints("tokens_and_target"), run.ints("learned")};
    const Floats want_loss = run.floats("want.loss"), want_norm = run.floats("want.norm");
    for (int step = 0; step < steps; step++) {
        stepper.start(rows, OptimizerConfig().rates(learning_rate(schedule, step)));
        const StepResult got = stepper.finish();
        INFO("step " << step);
        CHECK(std::fabs(got.loss - want_loss[size_t(step)]) <= kModelTolerance * want_loss[size_t(step)]);
        CHECK(std::fabs(got.norm - want_norm[size_t(step)]) <= kModelTolerance * want_norm[size_t(step)]);
        int64_t targets = 0;
        for (int64_t i = 0; i < kN; i++) targets += rows.learned[size_t(step * kN + i)];
        CHECK(got.targets() == targets);
        CHECK(got.applied);
    }
    if (steps < 20) return;
    for (const Parameter& p : model.parameters)
        if (p.name == "wte.weight")
            CHECK(relative_l2(from_device(device, p, model.weights.at(p)), run.floats("want.wte.weight")) <=
                  kModelTolerance);
}

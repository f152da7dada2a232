// The whole model against PyTorch: loss, logits, the gradient of every parameter, and twenty steps of training.
#include <cstring>
#include "llmc/cpu/kernels.h"
#include "llmc/model/gpt.h"
#include "llmc/optim/optimizer.h"  // AdamW
#include "llmc/optim/schedule.h"   // learning_rate
#include "test/fixture.h"
#include "test/model/architectures.h"   // kArchitectureCases
#include "test/model/linear_testing.h"  // kFp8Cases
#include "test/model/model_testing.h"   // load_weights, kFixtureShape, kModelTolerance
#include "test/op_testing.h"            // bell
#include "test/testing.h"

TEST_CASE("loss, logits and every gradient agree with PyTorch", "[model]") {
    const Fixture fixture("model");
    Cpu cpu;
    Gpt<Cpu> model(cpu, kFixtureShape, kB, kT);
    load_weights(model, fixture);
    const std::vector<int32_t> tokens = fixture.ints("tokens"), targets = fixture.ints("targets");
    const double want_loss = double(fixture.floats("want.loss")[0]);

    model.forward(tokens.data(), kB, kT);
    CHECK(std::fabs(model.loss(targets.data()) - want_loss) <= 4 * kEpsF32 * want_loss);

    const int64_t V = kFixtureShape.vocab_size, Vp = kFixtureShape.padded_vocab_size();
    const float* logits = model.logits(0, kN);
    Floats got;
    for (int64_t n = 0; n < kN; n++) got.insert(got.end(), logits + n * Vp, logits + n * Vp + V);
    CHECK(relative_l2(got, fixture.floats("want.logits")) <= kModelTolerance);

    // Two passes of half the weight give the same sum: gradients accumulate. And so do chunks of 10 rows of logits.
    struct Case {
        int passes;
        int64_t head_rows;
    };
    for (const auto [passes, head_rows] : {Case{1, kN}, Case{2, kN}, Case{1, 10}}) {
        model.acts.head_rows = head_rows;
        model.zero_gradients();
        for (int pass = 0; pass < passes; pass++) {
            model.forward(tokens.data(), kB, kT);
            const double loss = model.loss_and_gradient(targets.data(), 1.f / float(kN * passes));
            CHECK(std::fabs(loss - want_loss) <= 4 * kEpsF32 * want_loss);
            model.backward(tokens.data());
        }
        for (const Parameter& p : model.parameters) {
            INFO(p.name << " after " << passes << " passes, " << head_rows << " rows of logits at a time");
            CHECK(relative_l2(without_padding(p, model.gradients.at(p)), fixture.floats("grad." + p.name)) <=
                  kModelTolerance);
        }
        const Parameter& wte = *model.parameters.begin();
        REQUIRE(wte.name == "wte.weight");
        for (int64_t i = wte.exported_rows * kFixtureShape.channels; i < wte.size(); i++)
            REQUIRE(model.gradients.at(wte)[i] == 0);
    }
}

TEST_CASE("a step's first products write their gradients, whatever was there, and later ones add", "[model]") {
    Cpu cpu;
    for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::block}) {
        INFO("recompute " << int(recompute));
        check_gradients_begin_anew<float>(cpu, ParameterList(kFixtureShape), kB, kT, recompute);
        for (const ArchitectureCase& c : kArchitectureCases) {
            INFO(c.fixture);
            check_gradients_begin_anew<float>(cpu, ParameterList(c.shape), c.B, c.T, recompute);
        }
        for (const ArchitectureCase& c : kFp8Cases) {
            INFO(c.fixture);
            check_gradients_begin_anew<float>(cpu, ParameterList(c.shape), c.B, c.T, {recompute, true});
        }
    }
    const ParameterList padded = sharded_list(architecture_case("nano_d5").shape);
    int64_t used = 0;
    for (const Parameter& p : padded) used += aligned_elements(p.size());
    CHECK(padded.buffer_size > used);
    check_gradients_begin_anew<float>(cpu, padded, 2, 19, Recompute::none);
}

TEST_CASE("a backward pass needs the head's gradient of this step", "[model]") {
    Cpu cpu;
    Gpt<Cpu> model(cpu, kFixtureShape, 1, 4);
    const std::vector<int32_t> tokens = {1, 2, 3, 4};
    model.zero_gradients();
    model.forward(tokens.data(), 1, 4);
    model.loss(tokens.data());
    CHECK(contains(error_of([&] { model.backward(tokens.data()); }), "1: internal"));
    model.loss_and_gradient(tokens.data(), 0.25f);
    model.backward(tokens.data());
}

TEST_CASE("loss and gradients agree with PyTorch under GPT-2's vocabulary, 50257 in 50304", "[model]") {
    const Fixture fixture("model_gpt2_shape");
    const GptShape shape{1, 2, 32, 16, 50257};
    constexpr int64_t kLength = 16;
    Cpu cpu;
    Gpt<Cpu> model(cpu, shape, 1, kLength);
    for (const Parameter& p : model.parameters) {
        const bool embedding = p.name == "wte.weight";  // too large to be stored: made by formula on both sides
        const Floats from = embedding ? bell(50257, 50257 * 32, 0.25f) : fixture.floats(p.name);
        std::copy(from.begin(), from.end(), model.weights.at(p));
    }
    const std::vector<int32_t> tokens = fixture.ints("tokens"), targets = fixture.ints("targets");
    const double want_loss = double(fixture.floats("want.loss")[0]);

    model.zero_gradients();
    model.forward(tokens.data(), 1, kLength);
    CHECK(std::fabs(model.loss_and_gradient(targets.data(), 1.f / kLength) - want_loss) <= 4 * kEpsF32 * want_loss);
    check_close("losses", Floats(model.acts.losses, model.acts.losses + kLength), fixture.floats("want.losses"),
                8 * kEpsF32);
    model.backward(tokens.data());

    for (const Parameter& p : model.parameters) {
        INFO(p.name);
        const float* gradient = model.gradients.at(p);
        if (p.name != "wte.weight") {
            CHECK(relative_l2(without_padding(p, gradient), fixture.floats("grad." + p.name)) <= kModelTolerance);
            continue;
        }
        Floats rows, squares(32);
        for (const int32_t row : fixture.ints("wte_rows"))
            rows.insert(rows.end(), gradient + row * 32, gradient + (row + 1) * 32);
        CHECK(relative_l2(rows, fixture.floats("grad.wte.weight.rows")) <= kModelTolerance);
        for (int64_t c = 0; c < 32; c++) {
            double sum = 0;
            for (int64_t v = 0; v < shape.padded_vocab_size(); v++)
                sum += double(gradient[v * 32 + c]) * gradient[v * 32 + c];
            squares[size_t(c)] = float(sum);
        }
        CHECK(relative_l2(squares, fixture.floats("grad.wte.weight.squares")) <=
              2 * kModelTolerance);  // a square doubles it
    }
}

TEST_CASE("twenty AdamW steps with warm-up, decay and clipping agree with PyTorch", "[model]") {
    const Fixture start("model"), run("adamw_run");
    Cpu cpu;
    Gpt<Cpu> model(cpu, kFixtureShape, kB, kT);
    load_weights(model, start);
    Optimizer<Cpu> optimizer(cpu, model.parameters, {});  // AdamW as PyTorch was told to
    StepScalars scalars;
    int clipped = 0;
    const Schedule schedule{.kind = "cosine", .max = 3e-3, .min = 3e-4, .warmup_steps = 5, .steps = 20};
    constexpr double kClip = 2;  // as in dev/fixtures/reference_training.py: active in most steps, but not in all
    const std::vector<int32_t> batches = run.ints("tokens_and_target");  // (20, B, T + 1)
    const Floats want_loss = run.floats("want.loss"), want_norm = run.floats("want.norm"),
                 want_lr = run.floats("want.lr");

    for (int step = 0; step < 20; step++) {
        std::vector<int32_t> tokens, targets;
        for (int64_t b = 0; b < kB; b++) {
            const int32_t* row = batches.data() + (step * kB + b) * (kT + 1);
            tokens.insert(tokens.end(), row, row + kT);
            targets.insert(targets.end(), row + 1, row + kT + 1);
        }
        model.zero_gradients();
        model.forward(tokens.data(), kB, kT);
        const double loss = model.loss_and_gradient(targets.data(), 1.f / kN);
        model.backward(tokens.data());
        scalars.sums = {};
        scalars.sums.loss.add(loss);
        scalars.sums.targets = kN;
        model.op.add_squares(cpu, &scalars.sums.squares, model.gradients.data, model.gradients.size);
        model.op.decide_step(cpu, &scalars, kClip, kN);
        const double norm = scalars.norm;
        const double rate = learning_rate(schedule, step);
        INFO("step " << step);
        CHECK(std::fabs(loss - want_loss[size_t(step)]) <= kModelTolerance * want_loss[size_t(step)]);
        CHECK(std::fabs(norm - want_norm[size_t(step)]) <= kModelTolerance * want_norm[size_t(step)]);
        CHECK(float(rate) == want_lr[size_t(step)]);
        clipped += norm > kClip;
        optimizer.update(model.weights, model.gradients, optimizer.config.rates(rate), &scalars);
    }
    CHECK((clipped > 0 && clipped < 20));
    for (const Parameter& p : model.parameters) {
        INFO(p.name);
        const Floats got = without_key_bias(p.name, without_padding(p, model.weights.at(p)));
        CHECK(relative_l2(got, without_key_bias(p.name, run.floats("want." + p.name))) <= kModelTolerance);
    }
}

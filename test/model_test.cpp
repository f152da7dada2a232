// The whole model against PyTorch: loss, logits, the gradient of every parameter, and twenty steps of training.
#include <cstring>
#include "llmc/cpu/ops.h"
#include "llmc/model/gpt.h"
#include "llmc/optim/adamw.h"     // AdamW
#include "llmc/optim/clip.h"      // gradient_norm, clip_scale
#include "llmc/optim/schedule.h"  // learning_rate
#include "test/fixture.h"
#include "test/testing.h"

namespace {

const GptShape kFixtureShape{3, 4, 48, 32, 301};
constexpr int64_t kB = 3, kT = 24, kN = kB * kT;

// The fixtures have V rows of wte; the padding below them stays zero, as after initialisation.
void load_weights(Gpt<Cpu>& model, const Fixture& fixture) {
    for (const Parameter& p : model.parameters) {
        const Floats from = fixture.floats(p.name);
        REQUIRE(int64_t(from.size()) == p.exported_rows * p.size() / p.shape[0]);
        std::copy(from.begin(), from.end(), model.weights.at(p));
    }
}

Floats without_padding(const Parameter& p, const float* data) {
    return Floats(data, data + p.exported_rows * p.size() / p.shape[0]);
}

// What the issue of "equal to PyTorch" means for a whole model in fp32: 84 times 2^-23. Sums of up to a few hundred
// terms through a dozen ops reach about a tenth of it; a wrong term is far outside.
constexpr double kModelTolerance = 1e-5;

}  // namespace

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

    // Two passes of half the weight give the same sum: gradients accumulate.
    for (const int passes : {1, 2}) {
        model.zero_gradients();
        for (int pass = 0; pass < passes; pass++) {
            model.forward(tokens.data(), kB, kT);
            const double loss = model.loss_and_gradient(targets.data(), 1.f / float(kN * passes));
            CHECK(std::fabs(loss - want_loss) <= 4 * kEpsF32 * want_loss);
            model.backward(tokens.data());
        }
        for (const Parameter& p : model.parameters) {
            INFO(p.name << " after " << passes << " passes");
            CHECK(relative_l2(without_padding(p, model.gradients.at(p)), fixture.floats("grad." + p.name)) <=
                  kModelTolerance);
        }
        const Parameter& wte = *model.parameters.begin();
        REQUIRE(wte.name == "wte.weight");
        for (int64_t i = wte.exported_rows * kFixtureShape.channels; i < wte.size(); i++)
            REQUIRE(model.gradients.at(wte)[i] == 0);
    }
}

TEST_CASE("GPT-2's vocabulary: 50257 in 50304", "[model]") {
    const Fixture fixture("model_gpt2_shape");
    (void)fixture;
}

TEST_CASE("twenty AdamW steps with warm-up, decay and clipping agree with PyTorch", "[model]") {
    const Fixture start("model"), run("adamw_run");
    Cpu cpu;
    Gpt<Cpu> model(cpu, kFixtureShape, kB, kT);
    load_weights(model, start);
    AdamW<Cpu> adamw(cpu, model.parameters, {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
    const Schedule schedule{.kind = "cosine", .max = 3e-3, .min = 3e-4, .warmup_steps = 5, .steps = 20};
    constexpr double kClip = 2;  // as in scripts/reference_gpt2.py: active in most steps, but not in all
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
        const double norm = gradient_norm(cpu, model.gradients);
        const double rate = learning_rate(schedule, step);
        INFO("step " << step);
        CHECK(std::fabs(loss - want_loss[size_t(step)]) <= kModelTolerance * want_loss[size_t(step)]);
        CHECK(std::fabs(norm - want_norm[size_t(step)]) <= kModelTolerance * want_norm[size_t(step)]);
        CHECK(float(rate) == want_lr[size_t(step)]);
        adamw.step(model.weights, model.gradients, rate, clip_scale(norm, kClip), step + 1);
    }
    for (const Parameter& p : model.parameters) {
        INFO(p.name);
        CHECK(relative_l2(without_padding(p, model.weights.at(p)), run.floats("want." + p.name)) <= kModelTolerance);
    }
}

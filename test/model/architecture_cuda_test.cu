// Every architecture on the CUDA kernels: against PyTorch in fp32, against the CPU in bf16, and its training steps.
#include "llmc/cpu/kernels.h"
#include "llmc/cuda/cuda_kernels.h"
#include "llmc/model/gpt.h"
#include "llmc/optim/optimizer.h"      // Optimizer
#include "llmc/optim/recipe.h"         // find_recipe
#include "test/cuda_testing.h"         // OnDevice, ON_DEVICE
#include "test/model/architectures.h"  // kArchitectureCases
#include "test/model/bf16_models.h"    // check_bf16_architectures
#include "test/model/model_testing.h"  // load_weights, kModelTolerance, from_device
#include "test/model/recipe_runs.h"    // RecipeRun
#include "test/models.h"               // Gpt

namespace {

void check_against_pytorch(const ArchitectureCase& c, Recompute recompute) {
    INFO(c.fixture << ", recompute " << int(recompute));
    const Fixture fixture(c.fixture);
    const int64_t N = c.B * c.T;
    Cuda cuda;
    Gpt<Cuda, float> model(cuda, c.shape, c.B, c.T, recompute);
    load_weights(model, fixture);
    const OnDevice<int32_t> tokens(cuda, fixture.ints("tokens")), targets(cuda, fixture.ints("targets"));
    const OnDevice<int32_t> starts(cuda, fixture.has("starts") ? fixture.ints("starts") : std::vector<int32_t>(1));
    const double want_loss = double(fixture.floats("want.loss")[0]);
    model.zero_gradients();
    model.forward(tokens.data, c.B, c.T, fixture.has("starts") ? starts.data : nullptr);
    const double loss = model.loss_and_gradient(targets.data, 1.f / float(N));
    CHECK(std::fabs(loss - want_loss) <= 4 * kEpsF32 * want_loss);
    model.backward(tokens.data);
    for (const Parameter& p : model.parameters) {
        INFO(p.name);
        CHECK(relative_l2(from_device(cuda, p, model.gradients.at(p)), fixture.floats("grad." + p.name)) <=
              kModelTolerance);
    }
}

}  // namespace

TEST_CASE("on a GPU, loss and every gradient of each architecture agree with PyTorch in fp32",
          "[architecture]" ON_DEVICE) {
    for (const ArchitectureCase& c : kArchitectureCases) check_against_pytorch(c, Recompute::none);
}

TEST_CASE("on a GPU, every architecture recomputes what PyTorch has", "[architecture][once]" ON_DEVICE) {
    for (const ArchitectureCase& c : kArchitectureCases)
        for (const Recompute recompute : {Recompute::norms, Recompute::block})
            if (!kWatched || recompute == Recompute::block) check_against_pytorch(c, recompute);
}

TEST_CASE("on a GPU, twenty steps of nanochat's whole optimizer agree with PyTorch in fp32",
          "[architecture][once]" ON_DEVICE) {
    const RecipeRun& run = kRecipeRuns[0];
    const ArchitectureCase& c = architecture_case(run.start);
    const Fixture start(run.start), want(run.fixture);
    const Recipe recipe = run.recipe();
    const int64_t N = c.B * c.T;
    Cuda cuda;
    Gpt<Cuda, float> model(cuda, c.shape, c.B, c.T);
    load_weights(model, start);
    Optimizer<Cuda, float> optimizer(cuda, model.parameters, recipe.rules);
    const Floats want_loss = want.floats("want.loss");
    for (int step = 0; step < (kWatched ? 2 : RecipeRun::kSteps); step++) {
        INFO("step " << step);
        const auto [host_tokens, host_targets] = run.batch(want, step);
        const OnDevice<int32_t> tokens(cuda, host_tokens), targets(cuda, host_targets);
        model.zero_gradients();
        model.forward(tokens.data, c.B, c.T);
        const double loss = model.loss_and_gradient(targets.data, 1.f / float(N));
        model.backward(tokens.data);
        CHECK(std::fabs(loss - want_loss[size_t(step)]) <= kModelTolerance * want_loss[size_t(step)]);
        const OnDevice<StepScalars> scalars(cuda, std::vector{StepScalars{.updates = step + 1, .applied = 1}});
        optimizer.update(model.weights, model.gradients, recipe.rates(step, RecipeRun::kSteps), scalars.data);
    }
    if (kWatched) return;
    for (const Parameter& p : model.parameters) {
        INFO(p.name);
        CHECK(relative_l2(from_device(cuda, p, model.weights.at(p)), want.floats("want." + p.name)) <= kModelTolerance);
    }
}

TEST_CASE("on a GPU, every architecture's loss and gradients in bf16 are the CPU's but for roundings",
          "[architecture][once]" ON_DEVICE) {
    Cuda cuda;
    check_bf16_architectures(cuda, kWatched ? 2 : 0);  // the last two have what the others have
}

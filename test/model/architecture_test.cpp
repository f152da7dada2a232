// Every architecture against PyTorch: loss, logits, the gradient of every parameter, and twenty steps of whole recipes.
#include "llmc/cpu/kernels.h"
#include "llmc/model/gpt.h"
#include "llmc/optim/optimizer.h"  // Optimizer
#include "llmc/optim/recipe.h"     // find_recipe
#include "test/fixture.h"
#include "test/model/architectures.h"  // kArchitectureCases
#include "test/model/model_testing.h"  // load_weights, kModelTolerance
#include "test/model/recipe_runs.h"    // RecipeRun
#include "test/testing.h"

TEST_CASE("loss, logits and every gradient of each architecture agree with PyTorch", "[architecture]") {
    for (const ArchitectureCase& c : kArchitectureCases)
        for (const Recomputation& recompute : kRecomputations) {
            INFO(c.fixture << ", recompute " << recompute);
            const Fixture fixture(c.fixture);
            const int64_t N = c.B * c.T, V = c.shape.vocab_size, Vp = c.shape.padded_vocab_size();
            Cpu cpu;
            Gpt<Cpu> model(cpu, c.shape, c.B, c.T, recompute);
            load_weights(model, fixture);
            const std::vector<int32_t> tokens = fixture.ints("tokens"), targets = fixture.ints("targets");
            std::vector<int32_t> starts;
            if (fixture.has("starts")) starts = fixture.ints("starts");
            const int32_t* from = starts.empty() ? nullptr : starts.data();
            const double want_loss = double(fixture.floats("want.loss")[0]);

            model.forward(tokens.data(), c.B, c.T, from);
            CHECK(std::fabs(model.loss(targets.data()) - want_loss) <= 4 * kEpsF32 * want_loss);
            const float* logits = model.logits(0, N);
            Floats got;
            for (int64_t n = 0; n < N; n++)
                for (int64_t v = 0; v < V; v++) got.push_back(capped(logits[n * Vp + v], c.shape.architecture.softcap));
            CHECK(relative_l2(got, fixture.floats("want.logits")) <= kModelTolerance);

            // Twice with half the weight: gradients accumulate.
            model.zero_gradients();
            for (int pass = 0; pass < 2; pass++) {
                model.forward(tokens.data(), c.B, c.T, from);
                model.loss_and_gradient(targets.data(), 0.5f / float(N));
                model.backward(tokens.data());
            }
            for (const Parameter& p : model.parameters) {
                INFO(p.name);
                CHECK(relative_l2(without_padding(p, model.gradients.at(p)), fixture.floats("grad." + p.name)) <=
                      kModelTolerance);
            }
        }
}

TEST_CASE("twenty steps of nanochat's and of modded-nanogpt's whole optimizer agree with PyTorch", "[architecture]") {
    for (const RecipeRun& run : kRecipeRuns) {
        const ArchitectureCase& c = architecture_case(run.start);
        const Fixture start(run.start), want(run.fixture);
        const Recipe recipe = run.recipe();
        const int64_t N = c.B * c.T;
        Cpu cpu;
        Gpt<Cpu> model(cpu, c.shape, c.B, c.T);
        load_weights(model, start);
        Optimizer<Cpu> optimizer(cpu, model.parameters, recipe.rules);
        const Floats want_loss = want.floats("want.loss");
        for (int step = 0; step < RecipeRun::kSteps; step++) {
            INFO(run.fixture << ", step " << step);
            const auto [tokens, targets] = run.batch(want, step);
            model.zero_gradients();
            model.forward(tokens.data(), c.B, c.T);
            const double loss = model.loss_and_gradient(targets.data(), 1.f / float(N));
            model.backward(tokens.data());
            CHECK(std::fabs(loss - want_loss[size_t(step)]) <= kModelTolerance * want_loss[size_t(step)]);
            run.check_rates(want, recipe.rates(step, RecipeRun::kSteps), step);
            const StepScalars scalars{.updates = step + 1, .applied = 1};
            optimizer.update(model.weights, model.gradients, recipe.rates(step, RecipeRun::kSteps), &scalars);
        }
        for (const Parameter& p : model.parameters) {
            INFO(run.fixture << ": " << p.name);
            CHECK(relative_l2(without_padding(p, model.weights.at(p)), want.floats("want." + p.name)) <=
                  kModelTolerance);
        }
    }
}

/*
The training runs of dev/fixtures/reference_training.py: twenty steps of whole recipes, on any device, and their
batches.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>
#include "llmc/optim/recipe.h"         // Recipe, find_recipe
#include "test/fixture.h"              // Fixture
#include "test/model/architectures.h"  // architecture_case
#include "test/testing.h"

struct RecipeRun {
    static constexpr int kSteps = 20;
    const char *fixture, *start;  // fixtures: of the run; of the model and its weights
    const char* name;             // of the recipe

    // The recipe of the PyTorch run: nanochat's for 2^13 tokens per step, with warm-ups of a few steps instead of
    // hundreds, and with the weight decay of depth 24.
    Recipe recipe() const {
        Recipe r = find_recipe(name);
        if (!r.always_scaled) return r;
        const double by_batch = std::sqrt(double(1 << 13) / double(1 << 19));
        const double by_width = std::sqrt(768 / double(architecture_case(start).shape.channels));
        for (GroupRule& rule : r.rules.groups)
            rule.learning_rate *= (rule.by_batch ? by_batch : 1) * (rule.by_width ? by_width : 1);
        r.rules.muon_learning_rate *= by_batch;
        r.rules.muon.weight_decay = 0.0597;
        r.warmup_steps = 4;
        r.momentum.warmup_steps = 6;
        return r;
    }

    // The tokens and targets of a step.
    std::pair<std::vector<int32_t>, std::vector<int32_t>> batch(const Fixture& run, int step) const {
        const ArchitectureCase& c = architecture_case(start);
        const std::vector<int32_t> all = run.ints("tokens_and_target");  // (steps, B, T + 1)
        std::vector<int32_t> tokens, targets;
        for (int64_t b = 0; b < c.B; b++) {
            const int32_t* row = all.data() + (step * c.B + b) * (c.T + 1);
            tokens.insert(tokens.end(), row, row + c.T);
            targets.insert(targets.end(), row + 1, row + c.T + 1);
        }
        return {tokens, targets};
    }

    // Compares the schedules' values with the fixture's, up to the rounding of its floats.
    void check_rates(const Fixture& run, const Rates& rates, int step) const {
        const auto check = [&](const std::string& series, double got) {
            if (!run.has("want." + series)) return;
            const auto want = double(run.floats("want." + series)[size_t(step)]);
            INFO(series);
            CHECK(std::fabs(got - want) <= kEpsF32 * want);
        };
        check("lr", rates.muon / recipe().rules.muon_learning_rate);
        check("momentum", rates.muon_momentum);
        check("weight_decay", rates.muon_weight_decay);
    }
};

inline const RecipeRun kRecipeRuns[] = {{"nano_run", "nano_d4", "nanochat"}, {"stage_a_run", "stage_a", "stage-a"}};

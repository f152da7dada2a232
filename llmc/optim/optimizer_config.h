/*
The hyperparameters of an optimizer, as data: for each group of parameters, the update rule (update_rules.h) and its
numbers. A recipe (recipe.h) consists of these and of schedules.

  OptimizerConfig config;                          AdamW with GPT-2's numbers
  config.rule(ParameterGroup::head).beta2 = 0.96;
  const OptimizerConfig with_muon = with_rule(config, "muon");          update_rules.h
*/
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include "llmc/ops/muon.h"           // MuonNorms
#include "llmc/ops/newton_schulz.h"  // NewtonSchulzOptions
#include "llmc/model/parameters.h"   // ParameterGroup

// The elements of a stage in runs: 50 MB of two fp32 moments and master weights, 3 ms of PCIe 4.0, so that the start of
// a copy does not matter and three of them fit beside any model.
inline constexpr int64_t kStageElements = int64_t(1) << 22;

// The update rule of one group of parameters. The defaults are GPT-2's.
struct GroupRule {
    double learning_rate = 1;  // at the peak of the schedule
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
    // Which of them are scaled (llmc/run/scaling.h): the rate by batch size and by width, the decay by run length.
    bool by_batch = true, by_width = false, decay_by_length = true;
    std::string name = "adamw";  // of the rule
};

// Muon's hyperparameters, for all groups that it updates. The switches turn on parts of nanochat's variant
// (llmc/ops/muon.h).
struct MuonConfig {
    double momentum = 0.95, beta2 = 0.9, weight_decay = 0.1;
    double margin = 1.01;      // MuonStep::margin
    bool shaped_decay = true;  // tall matrices decay faster (MuonStep::rate); false: only by the learning rate
    bool equal_rows = true, fixed_norm = true, second_moment = true, cautious = true;
    MuonNorms norms = MuonNorms::none;
    double floor = 0.35, radius = 1;  // MuonStep::floor, radius
    NewtonSchulzOptions newton_schulz = NewtonSchulzOptions::polar_express();
};

// The values that change from step to step.
struct Rates {
    std::array<double, kNumParameterGroups> groups;  // learning rates
    double muon, muon_momentum, muon_weight_decay;
    double average = 0;  // by how much averages of the weights move to those after the step; 0: none
};

struct OptimizerConfig {
    std::array<GroupRule, kNumParameterGroups> groups = decayed_groups();
    double muon_learning_rate = 1;
    MuonConfig muon = {};
    // State of a parameter's size is stored in bf16, rounded with this seed (llmc/ops/moments.h); else in fp32.
    bool bf16_moments = false;
    // bf16 weights have fp32 master weights; false: they are rounded stochastically themselves (--memory lean).
    bool master_weights = true;
    uint64_t seed = 0;
    // State and master weights lie in host memory, and a stage of up to this many elements at a time is copied to the
    // device and back (offload.h); 0: they lie in the device's memory.
    int64_t stage_elements = 0;
    // So much of them; the rest, rounded down to whole stages, lies in the device's memory.
    int offload_percent = 100;
    bool averages = false;  // the state has averages of the weights, which need fp32 weights

    GroupRule& rule(ParameterGroup group) { return groups[size_t(group)]; }
    const GroupRule& rule(ParameterGroup group) const { return groups[size_t(group)]; }

    // Rates with every group at this fraction of its peak learning rate.
    Rates rates(double fraction) const {
        Rates rates{.groups = {},
                    .muon = muon_learning_rate * fraction,
                    .muon_momentum = muon.momentum,
                    .muon_weight_decay = muon.weight_decay};
        for (size_t g = 0; g < groups.size(); g++) rates.groups[g] = groups[g].learning_rate * fraction;
        return rates;
    }

private:
    // Matrices and embeddings decay; vectors and scalars do not.
    static std::array<GroupRule, kNumParameterGroups> decayed_groups() {
        std::array<GroupRule, kNumParameterGroups> groups;
        using enum ParameterGroup;
        for (const ParameterGroup group : {matrices, embedding, positions, head, value_embeddings})
            groups[size_t(group)].weight_decay = 0.1;
        return groups;
    }
};

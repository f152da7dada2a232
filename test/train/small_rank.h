/*
A rank with a small model and its optimizer. The ranks are threads of a LocalGroup.

  LocalGroup group(2);
  group.run([&](int rank) { SmallRank self(group, rank); ... });
*/
#pragma once
#include <memory>
#include <string>
#include "llmc/checkpoint/saving.h"  // Gpt, Optimizer, plan_sharding, each_state
#include "llmc/comm/local.h"         // LocalGroup, LocalRanks, LocalComm
#include "test/testing.h"            // Rng

// A small model whose weights and optimizer state are filled with random numbers.
struct SmallRank {
    Cpu cpu{1};
    LocalRanks ranks;
    LocalComm<Cpu> comm;
    ParameterList list{GptShape{2, 2, 32, 16, 60}};
    ShardingPlan plan;
    std::unique_ptr<Gpt<Cpu>> model;
    std::unique_ptr<Optimizer<Cpu>> optimizer;
    TokenFacts tokens;
    RunLog log;  // silent

    SmallRank(LocalGroup& group, int rank) : ranks(group, rank), comm(group, rank, cpu) {
        plan = plan_sharding(list, {.world_size = group.world_size});
        list.place(plan.offsets, plan.buffer_size);
        model = std::make_unique<Gpt<Cpu>>(cpu, list, 2, 16, Recompute::none, comm);
        optimizer = std::make_unique<Optimizer<Cpu>>(cpu, model->parameters, plan, rank, OptimizerConfig{});
        fill(1);
    }
    // Fills the weights as on all other ranks, and the optimizer state with numbers of this rank only.
    void fill(uint64_t seed) {
        Rng weights(seed, Stream::tests), state(seed + 1 + uint64_t(ranks.rank), Stream::tests);
        for (int64_t i = 0; i < model->weights.size; i++) model->weights.data[i] = float(weights.normal());
        each_state(ShardedState<Cpu, float>{*optimizer}, ranks.rank, [&](const StatePart& part) {
            for (int64_t i = 0; i < part.size(); i++) static_cast<float*>(part.data)[i] = float(state.normal());
        });
    }
};

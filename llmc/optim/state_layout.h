/*
The layout of a rank's optimizer state: offsets, size in memory and in checkpoints, and which pieces are updated
together. It follows from the sharding plan and the update rules alone, without a device.

  const StateLayout layout(list, plan, rank, config);
  layout.memory_bytes(sizeof(bf16));            bytes that the Optimizer allocates
*/
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>
#include "llmc/optim/sharding.h"      // ShardingPlan, ShardPiece
#include "llmc/optim/update_rules.h"  // UpdateRule, UpdateRules

// Elements [begin, end) of a state tensor of a whole parameter; the states of its matrices are concatenated.
struct StateRange {
    int64_t begin, end;

    int64_t size() const { return end - begin; }
};
StateRange state_range(size_t tensor, const ShardPiece& piece, const Parameter& parameter,
                       const OptimizerConfig& config);

struct StateLayout {
    // The pieces of one call of a rule: matrices must have the same shape.
    struct Batch {
        size_t rule;         // index in UpdateRules
        int64_t rows, cols;  // 0 if it is no matrix
        std::vector<size_t> pieces;
    };

    int64_t num_elements;                                         // of all pieces, aligned; also of master weights
    std::array<int64_t, kMostStateTensors> sizes = {};            // of each state tensor, bytes of all pieces
    std::vector<std::array<int64_t, kMostStateTensors>> offsets;  // of each piece, where its bytes of each begin
    std::vector<std::vector<Batch>> batches;                      // of each bucket

    bool master_weights;  // if weights are not fp32

    StateLayout(const ParameterList& list, const ShardingPlan& plan, int rank, const OptimizerConfig& config);

    // The sizes of a rule's scratch buffers (UpdateRule::scratch_bytes).
    std::vector<size_t> scratch_bytes(size_t rule, size_t weight_size) const;
    size_t master_bytes(size_t weight_size) const;
    // State, any master weights, and scratch.
    size_t memory_bytes(size_t weight_size) const;
};

// Bytes of a rank's state in a checkpoint, including any master weights, but not tensors smaller than the parameter,
// such as Muon's second moments.
int64_t state_bytes(const ParameterList& list, const ShardingPlan& plan, int rank, const OptimizerConfig& config,
                    bool master_weights);
// Of every rank.
std::vector<int64_t> state_bytes(const ParameterList& list, const ShardingPlan& plan, const OptimizerConfig& config,
                                 bool master_weights);

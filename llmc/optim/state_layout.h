/*
The layout of a rank's optimizer state: offsets, size in memory and in checkpoints, and which pieces are updated
together. It follows from the sharding plan and the update rules alone, without a device.

  const StateLayout layout(list, plan, rank, config);
  layout.memory_bytes(sizeof(bf16));            bytes that the Optimizer allocates
*/
#pragma once
#include <algorithm>
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

    // Consecutive pieces of a bucket, all of them or, if the state lies in host memory, up to
    // OptimizerConfig::stage_elements: what is copied to the device at a time. It is one range of each state tensor and
    // one of the master weights.
    struct Stage {
        size_t bucket;
        size_t first_batch, end_batch;  // of the bucket's batches
        // In bytes, of each state tensor and, last, of the master weights.
        std::array<int64_t, kMostStateTensors + 1> begin, end;

        int64_t size(size_t tensor) const { return end[tensor] - begin[tensor]; }
    };
    static constexpr size_t kMasters = kMostStateTensors;

    int64_t num_elements;                                         // of all pieces, aligned; also of master weights
    std::array<int64_t, kMostStateTensors> sizes = {};            // of each state tensor, bytes of all pieces
    std::vector<std::array<int64_t, kMostStateTensors>> offsets;  // of each piece, where its bytes of each begin
    std::vector<std::vector<Batch>> batches;                      // of each bucket
    std::vector<Stage> stages;                                    // in the order of update: the last bucket first
    bool is_offloaded;                                            // state and master weights lie in host memory

    bool master_weights;  // if weights are not fp32

    StateLayout(const ParameterList& list, const ShardingPlan& plan, int rank, const OptimizerConfig& config);

    // The sizes of a rule's scratch buffers (UpdateRule::scratch_bytes).
    std::vector<size_t> scratch_bytes(size_t rule, size_t weight_size) const;
    // Beside weights of this size. Tensors of state with them.
    bool has_masters(size_t weight_size) const { return weight_size < sizeof(float) && master_weights; }
    size_t num_tensors(size_t weight_size) const { return kMasters + has_masters(weight_size); }
    size_t master_bytes(size_t weight_size) const;
    // Of the device: state, any master weights, and scratch. If the state lies in host memory, the slots for its stages
    // and scratch.
    size_t memory_bytes(size_t weight_size) const;
    // Of the host: state and master weights, if they lie there.
    size_t host_bytes(size_t weight_size) const { return is_offloaded ? whole_bytes(weight_size) : 0; }
    // Of a slot that holds any stage; most_bytes: its part for one tensor.
    size_t slot_bytes(size_t weight_size) const;
    int64_t most_bytes(size_t tensor) const {
        int64_t most = 0;
        for (const Stage& stage : stages) most = std::max(most, stage.size(tensor));
        return most;
    }
    // One for the stage that comes in, one for the update, one for the stage that goes out: stages are of different
    // sizes, and with two slots copies of one direction would wait for those of the other, for half of their time. No
    // more than stages, because a stage must be back in host memory before it is copied from there again.
    size_t num_slots() const { return std::min<size_t>(3, stages.size()); }
    // Bytes that a step copies to the device, and as many back.
    size_t copied_bytes(size_t weight_size) const;

private:
    size_t whole_bytes(size_t weight_size) const;
};

// Bytes of a rank's state in a checkpoint, including any master weights, but not tensors smaller than the parameter,
// such as Muon's second moments.
int64_t state_bytes(const ParameterList& list, const ShardingPlan& plan, int rank, const OptimizerConfig& config,
                    bool master_weights);
// Of every rank.
std::vector<int64_t> state_bytes(const ParameterList& list, const ShardingPlan& plan, const OptimizerConfig& config,
                                 bool master_weights);

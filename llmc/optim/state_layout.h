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
    static constexpr size_t kMasters = kMostStateTensors;
    using Extent = std::array<int64_t, kMasters + 1>;  // bytes of each state tensor and of the master weights

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
        Extent begin, end;
        bool is_offloaded;

        int64_t size(size_t tensor) const { return end[tensor] - begin[tensor]; }
    };

    int64_t num_elements;                                         // of all pieces, aligned; also of master weights
    std::array<int64_t, kMostStateTensors> sizes = {};            // of each state tensor, bytes of all pieces
    std::vector<std::array<int64_t, kMostStateTensors>> offsets;  // of each piece, where its bytes of each begin
    std::vector<std::vector<Batch>> batches;                      // of each bucket
    std::vector<Stage> stages;                                    // in the order of update: the last bucket first
    std::vector<size_t> offloaded;                                // whose state lies in host memory, in the same order
    Extent kept = {};  // of the first pieces, whose state stays in the device's memory: without offloading, all of them

    bool master_weights;  // if weights are not fp32

    StateLayout(const ParameterList& list, const ShardingPlan& plan, int rank, const OptimizerConfig& config);

    // The sizes of a rule's scratch buffers (UpdateRule::scratch_bytes).
    std::vector<size_t> scratch_bytes(size_t rule, size_t weight_size) const;
    // Beside weights of this size. Tensors of state with them.
    bool has_masters(size_t weight_size) const { return weight_size < sizeof(float) && master_weights; }
    size_t num_tensors(size_t weight_size) const { return kMasters + has_masters(weight_size); }
    size_t master_bytes(size_t weight_size) const;
    // Of the device: what is kept of state and master weights, slots for the stages of the rest, and scratch.
    size_t memory_bytes(size_t weight_size) const;
    size_t kept_bytes(size_t weight_size) const;
    // Of the host: the state and master weights that lie there. A step copies them to the device and back.
    size_t host_bytes(size_t weight_size) const;
    // Of a slot that holds any stage; most_bytes: its part for one tensor.
    size_t slot_bytes(size_t weight_size) const;
    int64_t most_bytes(size_t tensor) const {
        int64_t most = 0;
        for (const size_t stage : offloaded) most = std::max(most, stages[stage].size(tensor));
        return most;
    }
    // One for the stage that comes in, one for the update, one for the stage that goes out: stages are of different
    // sizes, and with two slots copies of one direction would wait for those of the other, for half of their time. No
    // more than stages, because a stage must be back in host memory before it is copied from there again.
    size_t num_slots() const { return std::min<size_t>(3, offloaded.size()); }
    bool is_offloaded(const ShardPiece& piece) const {
        return piece.state_offset * int64_t(sizeof(float)) >= kept[kMasters];
    }
};

// What a rank's optimizer takes, the most of all ranks: memory_bytes(), master_bytes(), kept_bytes(), host_bytes().
struct OptimizerMemory {
    size_t device = 0, master_weights = 0, kept = 0, host = 0;
};
OptimizerMemory optimizer_memory(const ParameterList& list, const ShardingPlan& plan, const OptimizerConfig& config,
                                 size_t weight_size);
// For --offload optimizer:auto: sets the smallest offload_percent for which fits(memory), or 100. Returns its memory.
template <class Fits>
OptimizerMemory least_offload(const ParameterList& list, const ShardingPlan& plan, OptimizerConfig& config,
                              size_t weight_size, Fits&& fits) {
    const auto memory_with = [&](int percent) {
        config.offload_percent = percent;
        return optimizer_memory(list, plan, config, weight_size);
    };
    for (int low = -1, high = 100;;) {
        if (high - low == 1) return memory_with(high);
        const int percent = low < 0 ? 0 : (low + high) / 2;  // 0 by itself, because it needs no slots
        (fits(memory_with(percent)) ? high : low) = percent;
    }
}

// Bytes of a rank's state in a checkpoint, including any master weights, but not tensors smaller than the parameter,
// such as Muon's second moments.
int64_t state_bytes(const ParameterList& list, const ShardingPlan& plan, int rank, const OptimizerConfig& config,
                    bool master_weights);
// Of every rank.
std::vector<int64_t> state_bytes(const ParameterList& list, const ShardingPlan& plan, const OptimizerConfig& config,
                                 bool master_weights);

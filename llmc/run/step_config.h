/*
What a training step is asked to do and what it says afterwards, without the step itself: flags, checkpoints and plans
need these values, but not the model (step.h).
*/
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include "llmc/base/bf16.h"              // bf16
#include "llmc/comm/comm.h"              // GradientSum
#include "llmc/model/activations.h"      // Recomputation
#include "llmc/ops/step_scalars.h"       // StepSums
#include "llmc/optim/gradient_layout.h"  // gradient_layout, ShardingPlan

struct StepConfig {
    int64_t B, T, accumulation;  // sequences per micro-batch, tokens per sequence, micro-batches of this rank
    double grad_clip;            // 0: none
    int64_t world_size = 1;      // the ranks that exchange gradients; with islands, those of this island
    bool tree_sum = false;
    bool bf16_gradients = false;  // gradients are sent as bf16
    GradientSum gradient_sum = GradientSum::automatic;
    int zero_stage = 1;        // 2: also shard gradients
    bool bf16_sums = false;    // with zero_stage 2, also of one rank: gradients summed so far are kept as bf16
    bool noise_scale = false;  // also sum the squares of the gradients of a step's parts() (noise_scale.h)
    double dropout = 0;        // p; the mask depends on the seed and the step's number, not on the number of ranks
    uint64_t dropout_seed = 0;
    bool graph = false;  // use a CUDA graph, where possible (why_no_graph)
    Recomputation recompute = Recompute::none;
    // If ranks have unequal shares: the sequences of all ranks in a step, and the index of this rank's first one.
    // step_sequences == 0: every rank has as many as this one.
    int64_t step_sequences = 0, first_sequence = 0;
    int64_t most_accumulation = 0;        // of any step, if that grows; less than accumulation: it does not
    int64_t islands = 1, first_rank = 0;  // first_rank: of this island, numbered among the ranks of all islands

    int64_t sequences() const { return step_sequences > 0 ? step_sequences : B * accumulation * world_size; }
    int64_t sequences_before(int rank) const { return step_sequences > 0 ? first_sequence : rank * accumulation * B; }
    int64_t num_tokens() const { return sequences() * T; }
    int64_t tokens_of_all() const { return num_tokens() * islands; }
    // The parts of a step whose gradients the noise scale compares with that of the whole step: one per rank, or with
    // one rank, one per micro-batch. Of the micro-batches only the first one is measured: the others' gradients are
    // added to it in place.
    int64_t parts() const { return world_size > 1 ? world_size : accumulation; }
    int64_t parts_measured() const { return world_size > 1 ? world_size : 1; }
    int64_t most_micro_batches() const { return std::max(accumulation, most_accumulation); }
    // tree_sum's buffers
    int levels() const { return tree_sum ? std::bit_width(uint64_t(most_micro_batches() - 1)) : 0; }
    bool has_halves() const { return bf16_gradients && world_size > 1; }
    bool shards_gradients() const { return zero_stage == 2 && (world_size > 1 || bf16_sums); }
};

// Why a step cannot be captured as a CUDA graph; empty if it can.
inline std::string why_no_graph(const StepConfig& config, bool on_gpu) {
    if (!on_gpu) return "there is none on a CPU";
    if (config.world_size > 1) return "of several ranks, collectives of one step are waited for in the next";
    if (config.dropout > 0) return "dropout has a mask of its own in every step";
    return "";
}

// Bytes of scratch memory for Comm::all_to_all_sum(). None on a CPU, where ranks read each other's gradients, and none
// for bf16, which uses the fp32 gradients as scratch.
inline size_t scratch_bytes(const ShardingPlan& plan, const StepConfig& config, bool on_gpu) {
    if (!on_gpu || config.gradient_sum != GradientSum::all_to_all || config.has_halves() || config.world_size == 1)
        return 0;
    int64_t largest = 0;
    for (const Bucket& bucket : plan.buckets) largest = std::max(largest, bucket.shard * plan.shards);
    return aligned(size_t(largest) * sizeof(float));
}
// Bytes of the model's gradients, and of the stepper's own gradient buffers.
inline size_t gradient_bytes(const ShardingPlan& plan, const StepConfig& config, bool on_gpu) {
    const GradientLayout layout = gradient_layout(plan, config.shards_gradients());
    const size_t size = size_t(layout.buffer_size), kept = size_t(layout.kept_size());
    const size_t sums = size_t(config.levels()) * sizeof(float) +
                        (layout.is_sharded() ? config.bf16_sums ? sizeof(bf16) : sizeof(float) : 0);
    return size * sizeof(float) + sums * kept + (config.has_halves() ? size * sizeof(bf16) : 0) +
           scratch_bytes(plan, config, on_gpu);
}

// What a rank tells all ranks, or requests of them, with a step; StepSums::votes counts the ranks.
//   stop, out_of_time  the run should end
//   written            the writing of this rank's part of a checkpoint is over
//   committed          by rank 0: the commit of the checkpoint is over
//   bad_data           this rank's data cannot be used: the step is applied on no rank
enum class Vote { stop, out_of_time, written, committed, bad_data };

struct StepResult {
    double loss;      // in nats, mean over the targets of all ranks that are not ignored, before the update
    double norm;      // of the gradient, before clipping
    bool applied;     // false: loss or gradient was not finite; weights and moments are unchanged, bit for bit
    int64_t updates;  // steps so far that changed the weights, including this one
    StepSums sums;
    double seconds = 0;  // on the device: since the end of the step before or, after a pause, since this one's start

    // The squared norm of a part's gradient, averaged over the parts. A part's gradient is the mean over its own tokens
    // (noise_scale.h).
    double part_squared(const StepConfig& config) const {
        const double share = double(config.num_tokens()) / double(targets()), parts = double(config.parts());
        return sums.part_squares.value() * (parts * (parts / double(config.parts_measured()))) * share * share;
    }
    int64_t targets() const { return int64_t(sums.targets); }  // those that are not ignored
    int64_t count(Vote vote) const { return int64_t(sums.votes[int(vote)]); }
};

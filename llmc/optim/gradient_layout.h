/*
Where gradients are stored, as element offsets. With ZeRO-1 like the weights (sharding.h). With ZeRO-2 (Rajbhandari et
al., 2020, arXiv:1910.02054, stage 2) no rank ever has them all. A bucket has memory while a backward pass fills it and
while it is reduced; then another bucket takes its place, and only this rank's shard of each is kept.

  const GradientLayout layout = gradient_layout(plan, sharded);
  Gpt model(..., gradient_list(list, plan, layout));     its gradients, bucket b of them at layout.offsets[b]

Two buckets share memory if a layer's backward pass lies between the end of one and the beginning of the other, so that
the reduction of the first has compute to overlap with. With one bucket per layer that makes three layers, plus the
embeddings of a model with a tied head, which a pass begins and ends with.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>
#include "llmc/model/parameters.h"  // ParameterList
#include "llmc/optim/sharding.h"    // ShardingPlan

struct GradientLayout {
    std::vector<int64_t> offsets;  // of each bucket
    int64_t buffer_size = 0;
    // If sharded: where a rank's own shard of each bucket begins in a buffer of shards_size elements. Otherwise empty.
    std::vector<int64_t> shard_offsets;
    int64_t shards_size = 0;
    // If sharded: for each bucket the buckets that share its memory, itself included.
    std::vector<std::vector<size_t>> neighbors;

    bool is_sharded() const { return !shard_offsets.empty(); }
    // Elements that are summed over micro-batches.
    int64_t kept_size() const { return is_sharded() ? shards_size : buffer_size; }
};

GradientLayout gradient_layout(const ShardingPlan& plan, bool sharded);

// The list with the offsets of the gradients, which may overlap.
ParameterList gradient_list(const ParameterList& list, const ShardingPlan& plan, const GradientLayout& layout);

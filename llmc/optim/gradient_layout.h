/*
Where gradients are stored, as element offsets. With ZeRO-1 their layout is that of the weights (sharding.h). With
ZeRO-2 (Rajbhandari et al., 2020, arXiv:1910.02054, stage 2) no rank ever has all of them: a bucket has memory only
while a backward pass fills it and while it is reduced. Then another bucket reuses the memory, and only this rank's
shard is kept.

  const GradientLayout layout = gradient_layout(plan, sharded);
  Gpt model(..., gradient_list(list, plan, layout));     its gradients, bucket b of them at layout.offsets[b]

Two buckets may share memory if a layer's backward pass lies between the end of one and the beginning of the other, so
that the reduction of the first one overlaps with compute. With one bucket per layer, the buffer then holds three
layers, plus the embeddings if they are tied to lm_head, because a pass begins and ends with them.
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

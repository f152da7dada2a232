/*
Where gradients lie, in elements. With ZeRO-1 as weights do (sharding.h). With ZeRO-2 (Rajbhandari et al., 2020,
arXiv:1910.02054, stage 2) no rank ever has them all: a bucket has memory while a backward pass fills it and while it is
reduced, then another takes its place, and what is kept is this rank's shard of each.

  const GradientLayout layout = gradient_layout(plan, sharded);
  Gpt model(..., gradient_list(list, plan, layout));     its gradients, bucket b of them at layout.offsets[b]

Two buckets share memory if a layer's backward pass lies between the end of one and the beginning of the other, so that
the reduction of the first has something to overlap with. With a bucket for each layer that makes three layers, and the
embeddings of a model that ties its head to them, which a pass begins and ends with.
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
    // Sharded: where a rank's own shard of each bucket begins in a buffer of shards_size. Else empty.
    std::vector<int64_t> shard_offsets;
    int64_t shards_size = 0;
    // Sharded: of each bucket those that lie where it does, itself among them.
    std::vector<std::vector<size_t>> neighbors;

    bool is_sharded() const { return !shard_offsets.empty(); }
    // Of what is summed over micro-batches.
    int64_t kept_size() const { return is_sharded() ? shards_size : buffer_size; }
};

GradientLayout gradient_layout(const ShardingPlan& plan, bool sharded);

// The list with the offsets that gradients have. Parameters may overlap there.
ParameterList gradient_list(const ParameterList& list, const ShardingPlan& plan, const GradientLayout& layout);

/*
ZeRO-1 (Rajbhandari et al., 2020, arXiv:1910.02054, stage 1): every rank has all weights and gradients (with ZeRO-2 not
all gradients: gradient_layout.h), but the optimizer's state and the master weights of an element are on one rank only,
its owner. The plan determines the owners, and the order of parameters in memory, so that communication needs no copies:

  const ShardingPlan plan = plan_sharding(list, {.world_size = 8, .whole_matrices = true});
  list.place(plan.offsets, plan.buffer_size);            before any Buffer is made of the list
  for (const Bucket& bucket : plan.buckets)              in the order in which backward completes them
      comm.reduce_scatter(gradients + bucket.offset, bucket.shard);
  for (const ShardPiece& piece : plan.pieces[rank]) ...  what this rank updates

A bucket consists of world_size equal shards, and rank r owns shard r. It takes one reduce-scatter and one all-gather.
With fewer shards (--shard-ranks: one per rank of a host, for example), consecutive ranks form groups of that many
ranks, and each group has one owner of every shard.

- By element, for update rules such as AdamW. Buckets hold whole layers in the order of backward, the embeddings last,
  and a large untied head first, by itself. A shard may begin at any multiple of kParameterAlignment; the end of the
  bucket is padding, less than that for each rank.
- Whole matrices, for rules such as Muon, whose step needs all of a matrix. Each layer is split into halves with equal
  elements and equal Newton-Schulz work: [FC, Q, K | V, O, PROJ], in GPT-2 6 C^2 each, and with fewer key and value
  heads as well. world_size / 2 consecutive layers make a bucket in which every cut falls between matrices. That needs
  world_size / 2 to divide the layers, matrices of a multiple of kParameterAlignment elements, and a layer that has such
  halves (with SwiGLU's three large matrices none has). Otherwise LPT (matrix_buckets.h) assigns the parameters of a
  bucket to ranks, each with all its matrices, because forward needs them next to each other, and shards are padded to
  the largest. The number of layers per bucket is the one that costs least (matrix_buckets.cpp defines the cost).
- The rest, beside whole matrices: by element as without them, between their buckets, where backward completes it. The
  matrices that not every layer has are in it, and those much smaller than the others (gates of value embeddings), each
  whole on one rank.

A shard of whole matrices cannot be smaller than the largest matrix: with more ranks than matrices some own none, and
padding grows with the ranks. table() shows it; sharding by element has no such limit.

Matrices, and every other parameter, begin at multiples of kParameterAlignment. Q, K and V are contiguous, so K and V
begin at such multiples only if C is a multiple of 8. A piece's state always does.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/model/parameters.h"  // ParameterList, Parameter

struct ShardingOptions {
    int world_size = 1;
    int shards = 0;               // shards per bucket, a divisor of world_size; 0: world_size
    bool whole_matrices = false;  // for rules such as Muon; everything else is sharded by element
    int64_t bucket_elements = 0;  // by element: layers are combined up to this size; 0: depends on the number of ranks
    int64_t piece_elements = 0;   // by element: no piece is larger; a multiple of kParameterAlignment; 0: no limit
};

// 32 MiB of gradients in fp32; beyond 8 ranks 4 MiB per rank, because a ring's latency grows with its ranks.
// (Megatron-LM's buckets: 1M elements per rank, and at least 40M.)
inline int64_t usual_bucket_elements(int world_size) { return (int64_t(1) << 20) * std::max(8, world_size); }

// A part of a parameter, all of it in one shard.
struct ShardPiece {
    size_t parameter;            // its number in the list
    int64_t begin, end;          // elements of the parameter
    size_t bucket;               // its number in the plan
    int64_t state_offset;        // where its state begins in the owner's buffers of state_size elements
    int64_t rows = 0, cols = 0;  // if it is one whole matrix

    int64_t size() const { return end - begin; }
    bool is_matrix() const { return rows > 0; }
};

struct Bucket {
    int64_t offset, shard;  // elements; `shards` of them in all
    int64_t ready_after;    // backward: complete when this layer's gradients are; -1: when the embeddings' are
    int64_t needed_by;      // forward: the first layer that reads it; -1: the embeddings
    int64_t padding;        // elements that belong to no parameter
    // Backward: first written after this layer's gradients are complete. Number of layers + 1: written from the start
    // of backward on, which includes lm_head.
    int64_t written_after;
};

struct ShardingPlan {
    int world_size;
    int shards;                    // shards per bucket; rank r is an owner of shard r % shards
    std::vector<int64_t> offsets;  // of each parameter of the list
    int64_t buffer_size;           // of a Buffer, in elements
    std::vector<Bucket> buckets;   // in the order of backward; together they are the Buffer, without gaps, up to what
                                   // does not learn and is whole on every rank
    std::vector<std::vector<ShardPiece>> pieces;  // of each rank, in the order of its state
    std::vector<int64_t> state_size;              // of each rank: elements of all pieces, each aligned

    // FLOPs of a rank's Newton-Schulz iterations in a step (5 of them, 4 m^2 n + 2 m^3 each for a matrix of m <= n).
    double newton_schulz_flops(int rank) const;
    int64_t learned_size() const;  // elements of all buckets
    int64_t padding() const;
    // The largest Newton-Schulz work of a rank divided by the mean; without whole matrices, the same for state. 1 is
    // perfect balance.
    double imbalance() const;
    // One line per rank, or the range if there are many: its bytes of state (llmc/optim/state_layout.h), matrices and
    // Newton-Schulz FLOPs; then padding and balance. For `plan`.
    std::string table(const std::vector<int64_t>& state_bytes) const;
};

ShardingPlan plan_sharding(const ParameterList& list, const ShardingOptions& options);

// One rank, one bucket, parameters in the order of the list.
ShardingPlan whole_plan(const ParameterList& list, bool whole_matrices = false);

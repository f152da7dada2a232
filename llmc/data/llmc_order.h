/*
The rows of --data-order llmc: the same batches as llm.c's train_gpt2.cu (Karpathy, 2024, llmc/dataloader.h at f1e2ace),
so that its published runs can be reproduced.

A shard is cut into blocks of world_size * B * T tokens; the last target of a block is the first token of the next.
Tokens at the end of a shard that fill no block are left out. Rank r's batch is the r-th part of B * T tokens of a
block, and each T of these are a row. Without shuffling, blocks come in order, shard after shard, as in train_gpt2.py.
With shuffling, each rank draws permutations of its own from a Mersenne twister seeded with 42 + rank, whatever the seed
of the run. At the beginning of an epoch it permutes the shards, starting from their previous order. When a shard's turn
comes, it permutes the shard's blocks, starting from sorted order. So ranks read different shards, a step may see a
token twice, and the order depends on B and on the number of ranks.

A state counts the blocks of the epoch. Restoring it draws all random numbers again from the first.
*/
#pragma once
#include <cstdint>
#include <random>
#include <vector>
#include "llmc/data/loader.h"  // LoaderConfig
#include "llmc/data/rows.h"    // RowSource

class LlmcOrder : public RowSource {
public:
    // The shards must outlive this object. Throws an Error if one of them is smaller than a block.
    LlmcOrder(const std::vector<TokenShard>& shards, const LoaderConfig& config);

    void read(int32_t* row) override;  // only this rank's rows; those of others can only be skipped
    void skip(int64_t rows) override { row_ += rows; }
    LoaderState state() const override;
    void restore(const LoaderState& state) override;
    int64_t num_rows(uint64_t) const override { return blocks_of_epoch_ * rows_of_block(); }
    size_t shard_after(size_t shard) const override;

private:
    int64_t rows_of_block() const { return config_.world_size * int64_t(config_.batch_size); }
    int64_t blocks_of(size_t shard) const;
    void go_to(int64_t block);
    void begin();
    void begin_shard(size_t turn);

    const std::vector<TokenShard>& shards_;
    const LoaderConfig config_;
    int64_t blocks_of_epoch_ = 0;

    // Rows since `restored_`, which counts the blocks before them. In each step all rows of rank 0 come first, then
    // those of rank 1, ...
    int64_t restored_ = 0, row_ = 0;

    // The current shard, and the number of this rank's first block in it.
    std::mt19937 random_;
    std::vector<int64_t> shard_order_, block_order_;
    size_t turn_ = 0;
    int64_t first_ = 0;
};

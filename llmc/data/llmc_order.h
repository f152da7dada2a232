/*
The rows of --data-order llmc: the batches of llm.c's train_gpt2.cu, one by one (Karpathy, 2024, llmc/dataloader.h at
f1e2ace), so that its published runs can be followed.

A shard is cut into blocks of world_size * B * T tokens, the last target of one being the first token of the next; what
fills no block at its end is left out. A batch of rank r is its part of a block, the r-th B * T tokens, and T of these
are a row. Not shuffled, blocks come in order, shard after shard, as in train_gpt2.py, too. Shuffled, each rank draws
for itself from a Mersenne twister that begins with 42 + rank, whatever the seed: at the beginning of an epoch the
shards are exchanged (from where the last epoch left them), and when a shard's turn comes, its blocks (from order). So
ranks walk through different shards, a step may have a token twice, and another B or number of ranks is another order.

A state counts the blocks of the epoch. Restoring one draws the random numbers again from the first.
*/
#pragma once
#include <cstdint>
#include <random>
#include <vector>
#include "llmc/data/loader.h"  // LoaderConfig
#include "llmc/data/rows.h"    // RowSource

class LlmcOrder : public RowSource {
public:
    // The shards must outlive this object. Throws if one of them does not hold a block.
    LlmcOrder(const std::vector<TokenShard>& shards, const LoaderConfig& config);

    void read(int32_t* row) override;  // of this rank; those of others can only be skipped
    void skip(int64_t rows) override { row_ += rows; }
    LoaderState state() const override;
    void restore(const LoaderState& state) override;
    int64_t num_rows(uint64_t) const override { return blocks_of_epoch_ * rows_of_block(); }

private:
    int64_t rows_of_block() const { return config_.world_size * int64_t(config_.batch_size); }
    int64_t blocks_of(size_t shard) const;
    void go_to(int64_t block);
    void begin();
    void begin_shard(size_t turn);

    const std::vector<TokenShard>& shards_;
    const LoaderConfig config_;
    int64_t blocks_of_epoch_ = 0;

    // Rows since `restored_`, a number of blocks since the first: of each step all of rank 0, then of rank 1, ...
    int64_t restored_ = 0, row_ = 0;

    // The shard whose turn it is, in which this rank's blocks begin with number first_.
    std::mt19937 random_;
    std::vector<int64_t> shard_order_, block_order_;
    size_t turn_ = 0;
    int64_t first_ = 0;
};

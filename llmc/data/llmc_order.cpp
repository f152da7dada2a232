// See llmc_order.h.
#include "llmc/data/llmc_order.h"
#include <numeric>
#include <utility>
#include "llmc/base/check.h"   // require, ensure
#include "llmc/data/shards.h"  // TokenShard

namespace {
constexpr uint32_t kSeed = 42;

void exchange(std::vector<int64_t>& items, std::mt19937& random) {
    for (size_t i = items.size(); i-- > 1;) std::swap(items[i], items[random() % (i + 1)]);
}
}  // namespace

LlmcOrder::LlmcOrder(const std::vector<TokenShard>& shards, const LoaderConfig& config)
    : shards_(shards), config_(config) {
    const int64_t needed = rows_of_block() * config.seq_len + 1;
    for (size_t s = 0; s < shards.size(); s++) {
        require(blocks_of(s) > 0,
                "%s: %ld tokens, and with --data-order llmc each shard needs %ld (%d ranks * %d sequences * %d tokens "
                "+ 1); lower --batch-size or --seq-len, or leave the shard out",
                shards[s].path().c_str(), shards[s].num_tokens(), needed, config.world_size, config.batch_size,
                config.seq_len);
        blocks_of_epoch_ += blocks_of(s);
    }
    begin();
}

int64_t LlmcOrder::blocks_of(size_t shard) const {
    return (shards_[shard].num_tokens() - 1) / (rows_of_block() * config_.seq_len);
}

void LlmcOrder::begin() {
    random_.seed(kSeed + uint32_t(config_.rank));
    shard_order_.resize(shards_.size());
    std::iota(shard_order_.begin(), shard_order_.end(), 0);
    first_ = 0;
    begin_shard(0);
}

void LlmcOrder::begin_shard(size_t turn) {
    turn_ = turn;
    if (turn == 0 && config_.shuffle) exchange(shard_order_, random_);
    block_order_.resize(size_t(blocks_of(size_t(shard_order_[turn]))));
    std::iota(block_order_.begin(), block_order_.end(), 0);
    if (config_.shuffle) exchange(block_order_, random_);
}

void LlmcOrder::go_to(int64_t block) {
    if (block < first_) begin();
    while (block - first_ >= int64_t(block_order_.size())) {
        first_ += int64_t(block_order_.size());
        begin_shard((turn_ + 1) % shards_.size());
    }
}

void LlmcOrder::read(int32_t* row) {
    const int64_t B = config_.batch_size, T = config_.seq_len, A = config_.batches_per_step;
    const int64_t step = row_ / (rows_of_block() * A), batch = row_ / B;  // counts the batches of all ranks
    ensure(batch / A % config_.world_size == config_.rank);
    const int64_t block = restored_ + step * A + batch % A;
    go_to(block);
    const int64_t in_shard = block_order_[size_t(block - first_)] * rows_of_block() + config_.rank * B + row_ % B;
    shards_[size_t(shard_order_[turn_])].read(in_shard * T, T + 1, row, config_.vocab_size);
    row_++;
}

size_t LlmcOrder::shard_after(size_t) const {
    if (turn_ + 1 < shard_order_.size()) return size_t(shard_order_[turn_ + 1]);
    std::vector<int64_t> order = shard_order_;
    std::mt19937 random = random_;
    if (config_.shuffle) exchange(order, random);
    return size_t(order[0]);
}

LoaderState LlmcOrder::state() const {
    ensure(row_ % (rows_of_block() * config_.batches_per_step) == 0);  // only between steps
    const int64_t block = restored_ + row_ / rows_of_block();
    return {.epoch = uint64_t(block / blocks_of_epoch_), .position = uint64_t(block % blocks_of_epoch_)};
}

void LlmcOrder::restore(const LoaderState& state) {
    require(state.position < uint64_t(blocks_of_epoch_),
            "the data position %lu of epoch %lu is beyond the %ld blocks of --data-order llmc in %s; is this the "
            "data, the --seq-len and the --batch-size that the run was started with?",
            state.position, state.epoch, blocks_of_epoch_, config_.pattern.c_str());
    restored_ = int64_t(state.epoch) * blocks_of_epoch_ + int64_t(state.position);
    row_ = 0;
}

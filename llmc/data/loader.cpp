// Which windows a batch is made of, and reading them ahead on a thread.
#include "llmc/data/loader.h"
#include <algorithm>
#include <filesystem>
#include "llmc/base/check.h"  // require, ensure
#include "llmc/base/hash.h"   // xxh3, hex64

namespace {
// A constructor's first look at the numbers, before anything is computed from them.
const LoaderConfig& checked(const LoaderConfig& config) {
    require(config.batch_size >= 1, "--batch-size %d: expected at least 1", config.batch_size);
    require(config.seq_len >= 1, "--seq-len %d: expected at least 1", config.seq_len);
    ensure(config.world_size >= 1 && config.rank >= 0 && config.rank < config.world_size && config.vocab_size >= 1);
    return config;
}

long long ll(int64_t value) { return value; }
}  // namespace

DataLoader::DataLoader(const LoaderConfig& config)
    : config_(checked(config)), shards_(open_shards(config.pattern)), next_epoch_{0, 0, {}, {1, 0}} {
    const int64_t B = config.batch_size, T = config.seq_len, world_size = config.world_size;
    for (const TokenShard& shard : shards_) num_tokens_ += shard.num_tokens();
    const int64_t needed = world_size * B * T + 1;
    require(num_tokens_ >= needed,
            "%s: %lld tokens in %zu shards, and one batch needs %lld (%lld ranks * %lld sequences * %lld tokens + 1); "
            "lower "
            "--batch-size or --seq-len, or prepare more data",
            config.pattern.c_str(), ll(num_tokens_), shards_.size(), ll(needed), ll(world_size), ll(B), ll(T));
    require(first_windows(0).back() > 0,
            "%s: none of the %zu shards holds the %lld tokens of one sequence and its last target; lower --seq-len, or "
            "prepare the data again with a larger --shard-tokens",
            config.pattern.c_str(), shards_.size(), ll(T + 1));
    for (Batch* batch : {&batch_, &next_batch_}) {
        batch->tokens.resize(size_t(B * T));
        batch->targets.resize(size_t(B * T));
    }
    window_.resize(size_t(T + 1));
    restore({0, 0});
}

const Batch& DataLoader::next() {
    if (!thread_.valid()) start_next_batch();  // after an error: try again, and find the same
    thread_.get();                             // throws what the thread found
    std::swap(batch_, next_batch_);
    state_ = next_state_;
    start_next_batch();
    return batch_;
}

void DataLoader::restore(LoaderState state) {
    const int64_t windows = num_windows(state.epoch);
    require(
        state.position <= uint64_t(windows),
        "the data position %llu of epoch %llu is beyond the %lld windows of %lld tokens in %s; is this the data, the "
        "--seq-len and the --seed that the run was started with?",
        static_cast<unsigned long long>(state.position), static_cast<unsigned long long>(state.epoch), ll(windows),
        ll(config_.seq_len), config_.pattern.c_str());
    if (thread_.valid()) thread_.wait();
    state_ = state;
    start_next_batch();
}

int64_t DataLoader::num_windows(uint64_t epoch) const { return plan(epoch).num_windows(); }

uint64_t DataLoader::data_hash() const {
    constexpr int64_t kSamples = 64, kSampleBytes = 4096;
    std::string digest;
    const auto add = [&](const void* data, size_t bytes) { digest += hex64(xxh3(data, bytes)); };
    for (const TokenShard& shard : shards_) {
        const MappedFile& file = shard.file();
        const std::string name = std::filesystem::path(shard.path()).filename();
        const int64_t size = int64_t(file.size());
        digest += name + ":" + std::to_string(size) + ":";
        const int64_t bytes = std::min(kSampleBytes, size), last = size - bytes;
        for (int64_t i = 0; i < kSamples; i++)  // evenly spaced, from the header to the end
            add(file.data() + last / (kSamples - 1) * i + last % (kSamples - 1) * i / (kSamples - 1), size_t(bytes));
    }
    return xxh3(digest.data(), digest.size());
}

std::vector<int64_t> DataLoader::first_windows(int64_t offset) const {
    std::vector<int64_t> first{0};
    for (const TokenShard& shard : shards_)
        first.push_back(first.back() + std::max<int64_t>(0, shard.num_tokens() - 1 - offset) / config_.seq_len);
    return first;
}

DataLoader::Epoch DataLoader::plan(uint64_t number) const {
    Rng rng(mix64(config_.seed) + number, Stream::data);
    const bool moved = config_.shuffle && number > 0;
    int64_t offset = moved ? int64_t(rng.below(uint64_t(config_.seq_len))) : 0;
    std::vector<int64_t> first = first_windows(offset);
    if (first.back() == 0) {  // shards that hold one window only: no epoch may be empty
        offset = 0;
        first = first_windows(0);
    }
    const uint64_t windows = uint64_t(first.back());
    return {number, offset, std::move(first), Permutation(windows, rng.next())};
}

void DataLoader::start_next_batch() {
    thread_ = std::async(std::launch::async, [this] { prepare_next_batch(); });
}

void DataLoader::prepare_next_batch() {
    next_state_ = state_;
    next_epoch_ = plan(state_.epoch);
    const int64_t B = config_.batch_size;
    skip(config_.rank * B);
    for (int64_t b = 0; b < B; b++) {
        read_window(b);
        skip(1);
    }
    skip((config_.world_size - 1 - config_.rank) * B);
}

// Moves on by a number of windows, into later epochs if need be. Ends on a window that exists, never behind the last.
void DataLoader::skip(int64_t windows) {
    next_state_.position += uint64_t(windows);
    while (next_state_.position >= uint64_t(next_epoch_.num_windows())) {
        next_state_.position -= uint64_t(next_epoch_.num_windows());
        next_epoch_ = plan(++next_state_.epoch);
    }
}

// Row b of the batch: the window at next_state_.
void DataLoader::read_window(int64_t b) {
    const int64_t T = config_.seq_len;
    const uint64_t position = next_state_.position;
    const int64_t window = int64_t(config_.shuffle ? next_epoch_.order(position) : position);
    const std::vector<int64_t>& first = next_epoch_.first_window;
    const size_t s = size_t(std::upper_bound(first.begin(), first.end(), window) - first.begin()) - 1;
    const TokenShard& shard = shards_[s];
    const int64_t begin = next_epoch_.offset + (window - first[s]) * T;
    shard.copy(begin, T + 1, window_.data());
    for (int64_t t = 0; t <= T; t++)
        require(window_[size_t(t)] >= 0 && window_[size_t(t)] < config_.vocab_size,
                "%s: token %lld has the id %u, outside the vocabulary of %d; prepare the data again, or train with the "
                "tokenizer that made it",
                shard.path().c_str(), ll(begin + t), uint32_t(window_[size_t(t)]), config_.vocab_size);
    std::copy(window_.begin(), window_.end() - 1, next_batch_.tokens.begin() + b * T);
    std::copy(window_.begin() + 1, window_.end(), next_batch_.targets.begin() + b * T);
}

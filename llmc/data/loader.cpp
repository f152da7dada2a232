// Assembles batches from rows, cuts the windows of --packing stream, and prefetches on a thread.
#include "llmc/data/loader.h"
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include "llmc/base/check.h"       // require, ensure, format
#include "llmc/base/hash.h"        // xxh3
#include "llmc/base/rng.h"         // Permutation, mix64
#include "llmc/data/llmc_order.h"  // LlmcOrder
#include "llmc/data/packing.h"     // PackedRows

namespace {
// Checks the numbers before anything is computed from them.
const LoaderConfig& checked(const LoaderConfig& config) {
    require(config.batch_size >= 1, "--batch-size %d: expected at least 1", config.batch_size);
    require(config.seq_len >= 1, "--seq-len %d: expected at least 1", config.seq_len);
    ensure(config.world_size >= 1 && config.rank >= 0 && config.rank < config.world_size && config.vocab_size >= 1);
    ensure(config.batches_per_step >= 1);
    ensure(
        config.step_rows == 0 ||
        (config.first_row >= 0 && config.first_row + config.batches_per_step * config.batch_size <= config.step_rows));
    return config;
}

// The rows of --packing stream: windows of all shards, in the order of the epoch.
class Windows : public RowSource {
public:
    Windows(const std::vector<TokenShard>& shards, const LoaderConfig& config);
    void read(int32_t* row) override;
    void skip(int64_t rows) override;
    LoaderState state() const override { return state_; }
    void restore(const LoaderState& state) override;
    int64_t num_rows(uint64_t epoch) const override { return plan(epoch).num_windows(); }
    size_t shard_after(size_t shard) const override;

private:
    // How one epoch is cut and ordered.
    struct Epoch {
        int64_t offset;
        std::vector<size_t> turns;          // the shards, in the order of the list
        std::vector<int64_t> first_window;  // of each turn; at the end the total number of windows
        Permutation order;
        uint64_t seed;  // of the order inside each shard
        int64_t num_windows() const { return first_window.back(); }
    };
    Epoch plan(uint64_t number) const;
    std::vector<int64_t> first_windows(int64_t offset, const std::vector<size_t>& turns) const;
    bool by_shard() const { return config_.shuffle && config_.order == DataOrder::shards; }

    const std::vector<TokenShard>& shards_;
    const LoaderConfig config_;
    Epoch epoch_{0, {}, {}, {1, 0}, 0};
    LoaderState state_;
};

Windows::Windows(const std::vector<TokenShard>& shards, const LoaderConfig& config) : shards_(shards), config_(config) {
    epoch_ = plan(0);
    require(epoch_.num_windows() > 0,
            "%s: none of the %zu shards holds the %ld tokens of one sequence and its last target; lower --seq-len, or "
            "prepare the data again with a larger --shard-tokens",
            config.pattern.c_str(), shards_.size(), int64_t(config.seq_len) + 1);
}

std::vector<int64_t> Windows::first_windows(int64_t offset, const std::vector<size_t>& turns) const {
    std::vector<int64_t> first{0};
    for (const size_t s : turns)
        first.push_back(first.back() + std::max<int64_t>(0, shards_[s].num_tokens() - 1 - offset) / config_.seq_len);
    return first;
}

Windows::Epoch Windows::plan(uint64_t number) const {
    Rng rng(mix64(config_.seed) + number, Stream::data);
    const bool moved = config_.shuffle && number > 0;
    int64_t offset = moved ? int64_t(rng.below(uint64_t(config_.seq_len))) : 0;
    const uint64_t seed = rng.next();
    std::vector<size_t> turns(shards_.size());
    const Permutation order(turns.size(), seed);
    for (size_t i = 0; i < turns.size(); i++) turns[i] = by_shard() ? order(i) : i;
    std::vector<int64_t> first = first_windows(offset, turns);
    if (first.back() == 0) {  // each shard holds one window only: no epoch may be empty
        offset = 0;
        first = first_windows(0, turns);
    }
    const uint64_t windows = uint64_t(first.back());
    return {offset, std::move(turns), std::move(first), Permutation(windows, seed), mix64(seed)};
}

size_t Windows::shard_after(size_t shard) const {
    const auto find = [&](const Epoch& epoch, size_t turn) {
        while (turn < epoch.turns.size() && epoch.first_window[turn] == epoch.first_window[turn + 1]) turn++;
        return turn;
    };
    const auto at = std::find(epoch_.turns.begin(), epoch_.turns.end(), shard);
    const size_t turn = find(epoch_, size_t(at - epoch_.turns.begin()) + 1);
    if (turn < epoch_.turns.size()) return epoch_.turns[turn];
    const Epoch following = plan(state_.epoch + 1);
    return following.turns[find(following, 0)];
}

// Continues into later epochs if needed. Stops at a window that exists, never after the last.
void Windows::skip(int64_t rows) {
    state_.position += uint64_t(rows);
    while (state_.position >= uint64_t(epoch_.num_windows())) {
        state_.position -= uint64_t(epoch_.num_windows());
        epoch_ = plan(++state_.epoch);
    }
}

void Windows::read(int32_t* row) {
    const uint64_t position = state_.position;
    const bool anywhere = config_.shuffle && !by_shard();
    const int64_t window = int64_t(anywhere ? epoch_.order(position) : position);
    const std::vector<int64_t>& first = epoch_.first_window;
    const size_t turn = size_t(std::upper_bound(first.begin(), first.end(), window) - first.begin()) - 1;
    const size_t s = epoch_.turns[turn];
    int64_t i = window - first[turn];
    if (by_shard()) i = int64_t(Permutation(uint64_t(first[turn + 1] - first[turn]), epoch_.seed + s)(uint64_t(i)));
    const int64_t T = config_.seq_len;
    shards_[s].read(epoch_.offset + i * T, T + 1, row, config_.vocab_size);
    skip(1);
}

void Windows::restore(const LoaderState& state) {
    Epoch epoch = plan(state.epoch);
    require(state.position <= uint64_t(epoch.num_windows()),
            "the data position %lu of epoch %lu is beyond the %ld windows of %d tokens in %s; is this the data, the "
            "--seq-len and the --seed that the run was started with?",
            state.position, state.epoch, epoch.num_windows(), config_.seq_len, config_.pattern.c_str());
    epoch_ = std::move(epoch);
    state_ = {.epoch = state.epoch, .position = state.position};
    skip(0);
}
}  // namespace

static int64_t tokens_in(const std::vector<TokenShard>& shards) {
    int64_t tokens = 0;
    for (const TokenShard& shard : shards) tokens += shard.num_tokens();
    return tokens;
}

DataLoader::DataLoader(const LoaderConfig& config) : config_(checked(config)), sources_(data_sources(config.pattern)) {
    const int64_t B = config.batch_size, T = config.seq_len;
    size_t num_shards = 0;
    ensure(!config.fetch || !config.shuffle || config.packing != Packing::stream || config.order != DataOrder::own);
    for (const DataSource& source : sources_) {
        OpenShards opened = open_shards(source.pattern, config.fetch);
        shards_.push_back(std::move(opened.shards));
        fetchers_.push_back(std::move(opened.fetcher));
        num_tokens_ += tokens_in(shards_.back());
        num_shards += shards_.back().size();
    }
    const int64_t needed = B * T + 1;
    require(config.may_repeat || num_tokens_ >= needed,
            "%s: %ld tokens in %zu shards, and one batch needs %ld (%ld sequences * %ld tokens + 1); lower "
            "--batch-size or --seq-len, or prepare more data",
            config.pattern.c_str(), num_tokens_, num_shards, needed, B, T);
    std::vector<std::unique_ptr<RowSource>> rows;
    std::vector<double> weights;
    for (size_t s = 0; s < sources_.size(); s++) {
        LoaderConfig own = config;
        own.pattern = sources_[s].pattern;
        if (s > 0) own.seed = mix64(config.seed + s);  // each source has its own order
        rows.push_back(rows_of(s, own));
        if (fetchers_[s])
            fetchers_[s]->next = [&shards = shards_[s], source = rows.back().get()](size_t shard) {
                const size_t next = source->shard_after(shard);
                return shards[next].is_fetched() ? next : shard;
            };
        weights.push_back(sources_[s].weight);
    }
    rows_ = rows.size() == 1 ? std::move(rows[0]) : std::make_unique<Mixture>(std::move(rows), weights);
    for (Batch* batch : {&batch_, &next_batch_}) {
        batch->tokens.resize(size_t(B * T));
        batch->targets.resize(size_t(B * T));
    }
    row_.resize(size_t(T + 1));
    go_to({});
    if (!config.fetch) start_next_batch();
}

DataLoader::~DataLoader() {
    for (const auto& fetcher : fetchers_)
        if (fetcher) fetcher->stop();  // the thread may be waiting for a shard
}

std::unique_ptr<RowSource> DataLoader::rows_of(size_t source, const LoaderConfig& config) {
    const std::vector<TokenShard>& shards = shards_[source];
    require(std::any_of(shards.begin(), shards.end(), [](const TokenShard& shard) { return shard.learns_any(); }),
            "%s: the masks of the shards leave no token to learn; prepare the data again, from conversations in which "
            "the assistant says something",
            config.pattern.c_str());
    if (config.order == DataOrder::llmc) return std::make_unique<LlmcOrder>(shards, config);
    if (config.packing == Packing::stream) return std::make_unique<Windows>(shards, config);
    return std::make_unique<PackedRows>(shards, PackingConfig{.separator = config.document_token,
                                                              .seq_len = config.seq_len,
                                                              .shuffle = config.shuffle,
                                                              .seed = config.seed,
                                                              .vocab_size = config.vocab_size,
                                                              .pads = config.packing == Packing::pad});
}

std::vector<SourceFacts> DataLoader::sources() const {
    const size_t n = sources_.size();
    std::vector<SourceFacts> all;
    std::vector<uint64_t> rows(n);
    if (n > 1) rows = Mixture::rows_given(step_begin_, n);
    for (size_t s = 0; s < n; s++)
        all.push_back({sources_[s], tokens_in(shards_[s]), rows[s] * uint64_t(config_.seq_len)});
    return all;
}

const Batch& DataLoader::next() {
    if (!thread_.valid()) start_next_batch();  // after an error: tries again and throws the same
    thread_.get();                             // throws the thread's errors
    std::swap(batch_, next_batch_);
    if (++next_of_step_ == config_.batches_per_step) {
        step_begin_ = std::move(step_end_);
        next_of_step_ = 0;
    }
    start_next_batch();
    return batch_;
}

void DataLoader::assign(int64_t batches_per_step, int64_t step_rows, int64_t first_row) {
    ensure(next_of_step_ == 0);
    if (thread_.valid()) thread_.wait();  // its prefetched batch is of the old share
    config_.batches_per_step = batches_per_step, config_.step_rows = step_rows, config_.first_row = first_row;
    checked(config_);
    restore(LoaderState(step_begin_));
}

void DataLoader::restore(const LoaderState& state) {
    if (thread_.valid()) thread_.wait();
    go_to(state);
    start_next_batch();
}

void DataLoader::go_to(const LoaderState& state) {
    rows_->restore(state);
    in_place_ = true;
    step_begin_ = state;
    next_of_step_ = 0;
}

int64_t DataLoader::num_unread_tokens() const {
    int64_t tokens = 0;
    if (config_.packing != Packing::stream) return 0;
    for (const std::vector<TokenShard>& shards : shards_)
        for (const TokenShard& shard : shards)
            if (shard.num_tokens() <= config_.seq_len) tokens += shard.num_tokens();
    return tokens;
}

double DataLoader::cropped() const {
    const auto cropped = double(step_begin_.cropped), packed = double(step_begin_.rows) * (config_.seq_len + 1.);
    return packed > 0 ? cropped / (cropped + packed) : NAN;
}

static std::string digest_of(const TokenShard& shard) {
    const std::string name = std::filesystem::path(shard.path()).filename();
    return name + ":" + std::to_string(shard.size_bytes()) + ":" + shard.samples();
}

uint64_t DataLoader::data_hash() const {
    std::string digest;
    for (size_t s = 0; s < shards_.size(); s++) {
        for (const TokenShard& shard : shards_[s]) digest += digest_of(shard);
        if (shards_.size() > 1) digest += format("weight %.17g\n", sources_[s].weight);
    }
    return xxh3(digest.data(), digest.size());
}

std::vector<ShardFacts> DataLoader::shard_facts() const {
    std::vector<ShardFacts> all;
    for (const std::vector<TokenShard>& shards : shards_)
        for (const TokenShard& shard : shards) {
            const std::string digest = digest_of(shard), name = std::filesystem::path(shard.path()).filename();
            all.push_back({name, shard.size_bytes(), xxh3(digest.data(), digest.size())});
        }
    return all;
}

void DataLoader::start_next_batch() {
    thread_ = std::async(std::launch::async, [this] { prepare_next_batch(); });
}

void DataLoader::prepare_next_batch() {
    const int64_t B = config_.batch_size, T = config_.seq_len, batches = config_.batches_per_step;
    const bool goes_on = std::exchange(in_place_, false);  // stays false if this throws, so that the next call restores
    if (!goes_on) rows_->restore(step_begin_);
    // The rows from one of this rank's batches in the step to its next one, and before its first.
    const bool is_shared = config_.step_rows > 0;
    const int64_t stride = (config_.in_turns ? config_.world_size : 1) * B, first = is_shared ? config_.first_row
                                                                                    : config_.in_turns
                                                                                        ? config_.rank * B
                                                                                        : config_.rank * batches * B;
    rows_->skip(goes_on && next_of_step_ > 0 ? stride - B : first + next_of_step_ * stride);
    for (int64_t b = 0; b < B; b++) {
        rows_->read(row_.data());
        std::transform(row_.begin(), row_.end() - 1, next_batch_.tokens.begin() + b * T,
                       [](int32_t token) { return token < 0 ? ~token : token; });
        std::transform(row_.begin() + 1, row_.end(), next_batch_.targets.begin() + b * T,
                       [](int32_t token) { return std::max(token, -1); });
    }
    if (next_of_step_ + 1 == batches) {
        const int64_t step_rows = is_shared ? config_.step_rows : config_.world_size * batches * B;
        rows_->skip(step_rows - first - (batches - 1) * stride - B);
        step_end_ = rows_->state();
    }
    in_place_ = true;
}

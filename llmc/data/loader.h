/*
The data loader: reads token shards, returns batches of B sequences of T tokens.

Epoch e cuts every shard into windows. Window i of a shard consists of its tokens o + i*T .. o + i*T + T, the last of
them only as a target. The offset o is 0 in epoch 0 or without shuffling, else drawn from (seed, epoch), so that later
epochs cut the text at other places. The windows of all shards form one list; shuffling permutes it by (seed, epoch).
One step takes the next W * A * B windows, where W is world_size and A is the number of batches per step. Rank r reads
only the r-th A * B of them, B per batch. With in_turns it reads the r-th B of every W * B windows, and with unequal
shares those given by first_row and step_rows. So a step learns from the same windows in the same order at any number of
ranks. A step that reaches the end of an epoch continues into the next one, so each window comes exactly once per epoch.
(Tokens that fill no window are left out: fewer than T at the end of a shard, and o at its beginning.)

  DataLoader train({.pattern = "data/x/train_*.bin", .batch_size = B, .seq_len = T, .shuffle = true, .vocab_size = V});
  const Batch& batch = train.next();               (B, T) tokens and targets, valid until the next call of next()
  const LoaderState state = train.state();         after the last complete step
  train.restore(state);                            next() then returns the batch after that step

With --data-order shards the list has one shard after the other: shuffling permutes the shards, and the windows inside
each. So few shards are in use at a time, which --fetch needs (llmc/data/fetch.h).

These windows are the rows of --packing stream. With best-fit and pad a row begins where a document does. Then the above
holds for rows instead of windows, except for how an epoch is cut: llmc/data/packing.h.

With --data-order llmc the rows are llm.c's, which depend on the ranks and the batch size: llmc/data/llmc_order.h.

If the pattern has several sources with weights, rows come from all of them: llmc/data/mixture.h.

A state counts windows or rows, not batches, so it can be restored at any world size and batch size, but not with
another T, seed or data set (see data_hash()). A thread prepares the next batch while the current one is used; next()
throws its errors.
*/
#pragma once
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "llmc/data/fetch.h"    // FetchConfig, OpenShards
#include "llmc/data/mixture.h"  // DataSource
#include "llmc/data/rows.h"     // RowSource, LoaderState
#include "llmc/data/shards.h"   // TokenShard

enum class Packing { stream, best_fit, pad };
enum class DataOrder { own, shards, llmc };

struct LoaderConfig {
    std::string pattern;  // of shard files, such as data/x/train_*.bin; or several, with weights
    int batch_size = 1;   // B, sequences per rank and batch
    int seq_len = 1;      // T, tokens per sequence
    int rank = 0, world_size = 1;
    int64_t batches_per_step = 1;  // A, for this rank
    bool in_turns = false;         // the batches of a step are assigned to ranks round-robin, not A in a row
    // For unequal shares: the number of rows per step, and this rank's first row in a step. 0: equal shares.
    int64_t step_rows = 0, first_row = 0;
    bool shuffle = false;
    uint64_t seed = 0;
    int vocab_size = 0;  // V: an id outside [0, V) in the data is an error
    Packing packing = Packing::stream;
    int document_token = -1;  // the token that begins each document; for best-fit and pad
    DataOrder order = DataOrder::own;
    bool may_repeat = false;  // whether a data set of fewer rows than a batch will do: the batch has some of them twice
    std::optional<FetchConfig> fetch = {};  // brings shards; not with the order `own` of shuffled windows
};

// Tells a shard from another one with the same name.
struct ShardFacts {
    std::string name;  // without a folder
    uint64_t size_bytes = 0;
    uint64_t hash = 0;  // of samples of its content
};

// One of a loader's data sets.
struct SourceFacts {
    DataSource source;
    int64_t num_tokens;  // in its shards
    uint64_t tokens;     // inputs read so far, T per row; 0 if there is only one source
};

struct Batch {
    // (B, T) each; targets are the tokens shifted by one, -1 if not learned
    std::vector<int32_t> tokens, targets;
};

class DataLoader {
public:
    // With `fetch` the first batch is prepared only when it is asked for, because restore() may come first.
    explicit DataLoader(const LoaderConfig& config);
    ~DataLoader();
    DataLoader(const DataLoader&) = delete;  // the thread refers to this object
    DataLoader& operator=(const DataLoader&) = delete;

    const Batch& next();
    const LoaderState& state() const { return step_begin_; }
    // Sets this rank's rows in later steps. Call it between steps.
    void assign(int64_t batches_per_step, int64_t step_rows, int64_t first_row);
    void restore(const LoaderState& state);  // throws an Error, without a change, if the data has no such position

    int64_t num_tokens() const { return num_tokens_; }                                // in all shards
    int64_t num_windows(uint64_t epoch = 0) const { return rows_->num_rows(epoch); }  // in one epoch
    // Tokens in shards that are too short for a row, and never read. Packed rows need no length.
    int64_t num_unread_tokens() const;
    // The fraction of tokens that packing has cropped so far. NaN: no packing or no rows yet.
    double cropped() const;
    // One entry per source; a single one if the pattern has no weights.
    const std::vector<std::vector<TokenShard>>& shards() const { return shards_; }
    std::vector<SourceFacts> sources() const;
    // Identifies the data set: a hash of the shards' names and sizes, of 64 samples of each shard's content (including
    // the header) and of a mixture's weights.
    uint64_t data_hash() const;
    // The same facts for each shard.
    std::vector<ShardFacts> shard_facts() const;

private:
    void go_to(const LoaderState& state);
    void start_next_batch();
    void prepare_next_batch();

    std::unique_ptr<RowSource> rows_of(size_t source, const LoaderConfig& config);

    LoaderConfig config_;
    std::vector<DataSource> sources_;
    std::vector<std::unique_ptr<ShardFetcher>> fetchers_;  // of the sources that have one
    std::vector<std::vector<TokenShard>> shards_;          // by source
    int64_t num_tokens_ = 0;
    LoaderState step_begin_;  // before the step of the next batch
    int64_t next_of_step_ = 0;
    Batch batch_;

    // The thread owns these until it has finished.
    std::unique_ptr<RowSource> rows_;
    bool in_place_ = false;  // rows_ is after the previous batch or at the beginning of its step
    LoaderState step_end_;
    Batch next_batch_;
    std::vector<int32_t> row_;  // T + 1 tokens
    std::future<void> thread_;  // last, so that its destructor waits for the thread while the other members exist
};

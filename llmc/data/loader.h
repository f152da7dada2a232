/*
The data loader: reads token shards, returns batches of B sequences of T tokens.

Epoch e cuts every shard into windows: window i of a shard is its tokens o + i*T .. o + i*T + T, the last of them only
as a target. The offset o is 0 in epoch 0 or without shuffling, else drawn from (seed, epoch), so that later epochs see
other cuts. The windows of all shards form one list; shuffling permutes it by (seed, epoch). One step of the whole world
takes the next world_size * A * B windows, where A is the number of batches of a step; rank r reads the r-th A * B of
them, B a batch, and no others; or of every W * B of them the r-th B (in_turns); or, where ranks' shares are not equal,
those that first_row and step_rows say. So a step learns from the same windows at any number of ranks, in the same
order. A step that reaches the end of an epoch continues into the next one, so each window comes exactly once per epoch.
(Tokens that fill no window are left out: fewer than T at the end of a shard, and o at its beginning.)

  DataLoader train({.pattern = "data/x/train_*.bin", .batch_size = B, .seq_len = T, .shuffle = true, .vocab_size = V});
  const Batch& batch = train.next();               (B, T) tokens and targets, valid until the following next()
  const LoaderState state = train.state();         after the last whole step
  train.restore(state);                            the next batch is the one that would have followed

These windows are the rows of --packing stream. With best-fit and pad a row begins where a document does. What is said
above of windows then holds for rows, except how an epoch is cut: llmc/data/packing.h.

With --data-order llmc the rows are llm.c's, which depend on the ranks and the batch size: llmc/data/llmc_order.h.

With several sources and weights for a pattern, rows come from all of them: llmc/data/mixture.h.

A state counts windows or rows, not batches, so it restores at any world size and batch size (not at another T, seed or
data: data_hash() tells). A thread prepares the next batch while this one is used; its errors are thrown by next().
*/
#pragma once
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>
#include "llmc/data/mixture.h"  // DataSource
#include "llmc/data/rows.h"     // RowSource, LoaderState
#include "llmc/data/shards.h"   // TokenShard

enum class Packing { stream, best_fit, pad };
enum class DataOrder { own, llmc };

struct LoaderConfig {
    std::string pattern;  // of shard files, such as data/x/train_*.bin; or several, with weights
    int batch_size = 1;   // B, sequences per rank and batch
    int seq_len = 1;      // T, tokens per sequence
    int rank = 0, world_size = 1;
    int64_t batches_per_step = 1;  // A, of this rank
    bool in_turns = false;         // a step's batches go to the ranks one at a time, not A at a time
    // If ranks share a step unequally: all its rows, and this rank's first. 0: equal shares.
    int64_t step_rows = 0, first_row = 0;
    bool shuffle = false;
    uint64_t seed = 0;
    int vocab_size = 0;  // V: an id outside [0, V) in the data is an error
    Packing packing = Packing::stream;
    int document_token = -1;  // that each document begins with; for best-fit and pad
    DataOrder order = DataOrder::own;
};

// Distinguishes a shard from another of the same name.
struct ShardFacts {
    std::string name;  // without a folder
    uint64_t size_bytes = 0;
    uint64_t hash = 0;  // of samples of its content
};

// One of a loader's data sets.
struct SourceFacts {
    DataSource source;
    int64_t num_tokens;  // in its shards
    uint64_t tokens;     // that it has given so far, targets not counted twice
};

struct Batch {
    // (B, T) each; targets are the tokens shifted by one, or -1 where that token is not learned
    std::vector<int32_t> tokens, targets;
};

class DataLoader {
public:
    explicit DataLoader(const LoaderConfig& config);
    DataLoader(const DataLoader&) = delete;  // the thread works on this very object
    DataLoader& operator=(const DataLoader&) = delete;

    const Batch& next();
    const LoaderState& state() const { return step_begin_; }
    // Sets this rank's rows of the following steps. Call it between steps.
    void assign(int64_t batches_per_step, int64_t step_rows, int64_t first_row);
    void restore(const LoaderState& state);  // an error, and no change, if there is no such place in the data

    int64_t num_tokens() const { return num_tokens_; }                                // in all shards
    int64_t num_windows(uint64_t epoch = 0) const { return rows_->num_rows(epoch); }  // in one epoch
    // The fraction of all documents' tokens so far that packing cropped. NaN: no packing, or no row yet.
    double cropped() const;
    // One entry per source; a single one if the pattern has no weights.
    const std::vector<std::vector<TokenShard>>& shards() const { return shards_; }
    std::vector<SourceFacts> sources() const;
    // A hash of the shards' names and sizes, and of 64 samples of the content of each (the header included), and of the
    // weights of a mixture: tells one data set from another.
    uint64_t data_hash() const;
    // The same for each shard.
    std::vector<ShardFacts> shard_facts() const;

private:
    void start_next_batch();
    void prepare_next_batch();

    std::unique_ptr<RowSource> rows_of(size_t source, const LoaderConfig& config);

    LoaderConfig config_;
    std::vector<DataSource> sources_;
    std::vector<std::vector<TokenShard>> shards_;  // of each source
    int64_t num_tokens_ = 0;
    LoaderState step_begin_;  // of the step that the next batch belongs to
    int64_t next_of_step_ = 0;
    Batch batch_;

    // Owned by the thread until it is done.
    std::unique_ptr<RowSource> rows_;
    bool in_place_ = false;  // rows_ stands after the previous batch, or where its step begins
    LoaderState step_end_;
    Batch next_batch_;
    std::vector<int32_t> row_;  // T + 1 tokens
    std::future<void> thread_;  // last, so that it is waited for before anything that it uses goes
};

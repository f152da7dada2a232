/*
The data loader: token shards in, batches of B sequences of T tokens out.

Epoch e cuts every shard into windows: window i of a shard is its tokens o + i*T .. o + i*T + T, the last of them only
as a target. The offset o is 0 in epoch 0 or without shuffling, else drawn from (seed, epoch), so that later epochs see
other cuts. The windows of all shards form one list; shuffling permutes it by (seed, epoch). One step of the whole world
takes the next world_size*B windows, and rank r reads the r-th B of them, and no others. A batch that reaches the end of
an epoch goes on into the next one, so each window comes exactly once per epoch. (Tokens that fill no window are left
out: fewer than T at the end of a shard, and o at its beginning.)

  DataLoader train({.pattern = "data/x/train_*.bin", .batch_size = B, .seq_len = T, .shuffle = true, .vocab_size = V});
  const Batch& batch = train.next();               (B, T) tokens and targets, valid until the following next()
  const LoaderState state = train.state();         behind the batch just handed out; 16 bytes hold it all
  train.restore(state);                            the next batch is the one that would have followed

A state counts windows, not batches, so it restores at any world size and batch size (not at another T, seed or data:
data_hash() tells). A thread prepares the next batch while this one is used; what it finds wrong is thrown by next().
*/
#pragma once
#include <cstdint>
#include <future>
#include <string>
#include <vector>
#include "llmc/base/rng.h"     // Permutation
#include "llmc/data/shards.h"  // TokenShard

struct LoaderConfig {
    std::string pattern;  // of shard files, such as data/x/train_*.bin
    int batch_size = 1;   // B, sequences per rank and batch
    int seq_len = 1;      // T, tokens per sequence
    int rank = 0, world_size = 1;
    bool shuffle = false;
    uint64_t seed = 0;
    int vocab_size = 0;  // V: an id outside [0, V) in the data is an error
};

struct LoaderState {
    uint64_t epoch = 0, position = 0;  // position: windows of this epoch that the whole world has consumed
    bool operator==(const LoaderState&) const = default;
};

struct Batch {
    std::vector<int32_t> tokens, targets;  // (B, T) each; targets are the tokens shifted by one
};

class DataLoader {
public:
    explicit DataLoader(const LoaderConfig& config);
    DataLoader(const DataLoader&) = delete;  // the thread works on this very object
    DataLoader& operator=(const DataLoader&) = delete;

    const Batch& next();
    LoaderState state() const { return state_; }
    void restore(LoaderState state);  // an error if the epoch has fewer windows than that

    int64_t num_tokens() const { return num_tokens_; }  // in all shards
    int64_t num_windows(uint64_t epoch = 0) const;      // in one epoch
    size_t num_shards() const { return shards_.size(); }
    // A hash of the shards' names and sizes, and of 64 samples of the content of each (the header included): tells one
    // data set from another.
    uint64_t data_hash() const;

private:
    // How one epoch is cut and ordered.
    struct Epoch {
        uint64_t number;
        int64_t offset;
        std::vector<int64_t> first_window;  // of each shard, and the number of windows at the end
        Permutation order;
        int64_t num_windows() const { return first_window.back(); }
    };
    Epoch plan(uint64_t number) const;
    std::vector<int64_t> first_windows(int64_t offset) const;
    void start_next_batch();
    void prepare_next_batch();
    void skip(int64_t windows);
    void read_window(int64_t b);

    LoaderConfig config_;
    std::vector<TokenShard> shards_;
    int64_t num_tokens_ = 0;
    LoaderState state_;
    Batch batch_;

    // The thread's, until it is done.
    Epoch next_epoch_;
    LoaderState next_state_;
    Batch next_batch_;
    std::vector<int32_t> window_;  // T + 1 tokens
    std::future<void> thread_;     // last, so that it is waited for before anything that it uses goes
};

/*
Checks every token that a run may read, in the background: an id outside the vocabulary is found early, not hours later
when its window comes.

  TokenScan scan({&train.shards()[0], &val.shards()[0]}, V, rank, world_size);
  if (scan.has_found()) scan.rethrow();

A thread of the lowest priority reads this rank's part of all shards, in order. On hosts with copies of their own, that
is a part of the host's copy. Errors elsewhere are found when they are read (loader.h).
*/
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <future>
#include <vector>
#include "llmc/data/shards.h"  // TokenShard

class TokenScan {
public:
    // Of all tokens in the sets one after the other, cut into `parts`, it reads the part-th. The shards are the
    // caller's, and outlive it.
    TokenScan(const std::vector<const std::vector<TokenShard>*>& sets, int vocab_size, int part, int parts);
    ~TokenScan() { stop(); }
    TokenScan(const TokenScan&) = delete;
    TokenScan& operator=(const TokenScan&) = delete;

    bool has_found() const { return has_found_; }
    void rethrow() const;                  // the Error about what was found; does nothing if there is none
    void wait() const { thread_.wait(); }  // until all of the part has been looked at
    void stop();                           // early, in well under a millisecond of work

private:
    std::vector<const TokenShard*> shards_;
    int vocab_size_;
    int64_t begin_, end_;  // of the tokens of all shards
    std::exception_ptr error_;
    std::atomic<bool> has_found_ = false, stopped_ = false;
    std::future<void> thread_;  // last: it uses the others

    void run();
    void check(const TokenShard& shard, int64_t begin, int64_t end, int64_t* done);
};

/*
Checks in the background every token that a run may read, so that an id outside the vocabulary is found early instead of
hours later when its row is read.

  TokenScan scan({&train.shards()[0], &val.shards()[0]}, V, rank, world_size);
  if (scan.has_found()) scan.rethrow();

A thread of the lowest priority reads this rank's part of all shards, in order. If hosts have their own copies, that is
a part of the host's copy. The loader finds errors in other parts when it reads them (loader.h), and in shards that are
fetched (fetch.h).
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
    // Reads part number `part` of `parts` equal parts of all tokens in the sets, concatenated. The shards must outlive
    // this object.
    TokenScan(const std::vector<const std::vector<TokenShard>*>& sets, int vocab_size, int part, int parts);
    ~TokenScan() { stop(); }
    TokenScan(const TokenScan&) = delete;
    TokenScan& operator=(const TokenScan&) = delete;

    bool has_found() const { return has_found_; }
    void rethrow() const;                  // throws the Error that was found, if any
    void wait() const { thread_.wait(); }  // until the whole part has been checked
    void stop();                           // stops early, after less than a millisecond of work

private:
    std::vector<const TokenShard*> shards_;
    int vocab_size_;
    int64_t begin_, end_;  // in the concatenation of all shards
    std::exception_ptr error_;
    std::atomic<bool> has_found_ = false, stopped_ = false;
    std::future<void> thread_;  // last: it uses the other members

    void run();
    void check(const TokenShard& shard, int64_t begin, int64_t end, int64_t* done);
};

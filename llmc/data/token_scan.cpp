// See token_scan.h.
#include "llmc/data/token_scan.h"
#include <algorithm>
#include "llmc/platform/platform.h"  // run_when_idle

namespace {
constexpr int64_t kAtOnce = 1 << 18;  // tokens between two checks whether to stop
// The first tokens are read at normal priority, so that a small data set is done before the first step. After that the
// thread gives way to all others and may wait long for a core, also before it sees that it should stop.
constexpr int64_t kFast = 1 << 23;
}  // namespace

TokenScan::TokenScan(const std::vector<const std::vector<TokenShard>*>& sets, int vocab_size, int part, int parts)
    : vocab_size_(vocab_size) {
    int64_t tokens = 0;
    for (const std::vector<TokenShard>* set : sets)
        for (const TokenShard& shard : *set) {
            if (shard.is_fetched()) continue;
            shards_.push_back(&shard);
            tokens += shard.num_tokens();
        }
    const auto up_to = [&](int of_part) { return tokens / parts * of_part + tokens % parts * of_part / parts; };
    begin_ = up_to(part);
    end_ = up_to(part + 1);
    thread_ = std::async(std::launch::async, [this] { run(); });
}

void TokenScan::stop() {
    stopped_ = true;
    thread_.wait();
}

void TokenScan::rethrow() const {
    if (has_found_) std::rethrow_exception(error_);
}

void TokenScan::run() {
    try {
        int64_t done = 0, first = 0;  // first: the number of this shard's first token among all
        for (const TokenShard* shard : shards_) {
            const int64_t n = shard->num_tokens();
            check(*shard, std::clamp<int64_t>(begin_ - first, 0, n), std::clamp<int64_t>(end_ - first, 0, n), &done);
            first += n;
        }
    } catch (...) {
        error_ = std::current_exception();
        has_found_ = true;
    }
}

void TokenScan::check(const TokenShard& shard, int64_t begin, int64_t end, int64_t* done) {
    for (; begin < end && !stopped_; begin += kAtOnce) {
        const int64_t n = std::min(kAtOnce, end - begin);
        shard.check(begin, n, vocab_size_);
        if (n == kAtOnce) shard.forget(begin, n);
        if (*done < kFast && *done + n >= kFast) run_when_idle();
        *done += n;
    }
}

/*
How a step's micro-batches are divided among ranks, whose machines need not be equal (--balance, --batch-size).

  const Shares shares = equal_shares(4, {.batch_size = 12, .micro_batches = 2});
  sequences_of(shares), first_sequence(shares, rank)       of a step; where a rank's own begin
  assign_micro_batches({30, 10}, 8)                          of ranks that take 30 and 10 ms for one: {2, 6}
  rebalanced({4, 4}, {30, 10})                             the same, where it is worth a change; else what there is

A step's gradient is the sum over its tokens divided by their number, whichever rank has them, so a division changes
only the rounding order of sums.
*/
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>
#include "llmc/comm/ranks.h"  // Ranks

// A rank's share of a step.
struct Share {
    int64_t batch_size = 0, micro_batches = 0;
    int64_t sequences() const { return batch_size * micro_batches; }
    bool operator==(const Share&) const = default;
};
using Shares = std::vector<Share>;  // of each rank

Shares equal_shares(int64_t world_size, const Share& each);
bool are_equal(const Shares& shares);
bool have_one_batch_size(const Shares& shares);
int64_t sequences_of(const Shares& shares);
int64_t first_sequence(const Shares& shares, int rank);
// The smallest batch of any rank: what they evaluate together (validation, tasks) comes in batches of one size.
int64_t least_batch_size(const Shares& shares);
std::vector<int64_t> micro_batches_of(const Shares& shares);
// "12 sequences x 64 tokens x (3 + 1) micro-batches", "(12 x 3 + 4 x 3) sequences x 64 tokens"; of many ranks the ends.
std::string text_of(const Shares& shares, int64_t T);

// --balance: equal, auto, numbers of micro-batches of the ranks, or a log whose decisions are followed.
struct BalanceMode {
    enum class Kind { equal, automatic, listed, followed } kind = Kind::equal;
    std::vector<int64_t> micro_batches = {};  // listed
    bool is_equal() const { return kind == Kind::equal; }
    // Whether it changes in the course of a run.
    bool moves() const { return kind == Kind::automatic || kind == Kind::followed; }
};
BalanceMode balance_mode(const std::string& flag);  // an Error if it is none of them

// "3,1" and back; empty if the text is no such list.
std::string list_text(const std::vector<int64_t>& numbers);
std::vector<int64_t> numbers_in(const std::string& text);

// Divides `total` micro-batches among ranks, given each rank's ms per micro-batch: at least one each, minimizing the
// time of the last to finish; of equal ranks the lowest gets more. Deterministic.
std::vector<int64_t> assign_micro_batches(const std::vector<double>& ms, int64_t total);

// A new division if with it the slowest rank finishes kBetter times as fast, else the old one: noise in the speeds
// changes nothing.
inline constexpr double kBetter = 1.05;
std::vector<int64_t> rebalanced(const std::vector<int64_t>& now, const std::vector<double>& ms);

/*
--balance auto, on each rank. After the first few steps and then every kLookEvery, the ranks tell rank 0 what a
micro-batch has taken (the median of those steps: one that something else has disturbed does not count), and rank 0
tells all how they are divided from now on. Where nothing is said of time the same divisions give the same bits.

  Balancer balancer(ranks, micro_batches);
  balancer.step(ms);                           this rank's micro-batches of a step
  if (balancer.is_due()) { balancer.look(); balancer.micro_batches(); }                   all ranks
*/
class Balancer {
public:
    static constexpr int64_t kFirstLook = 5, kLookEvery = 10;  // steps; the first one warms up, and does not count

    Balancer(Ranks& ranks, std::vector<int64_t> micro_batches);

    void step(double ms);
    bool is_due() const;
    // True if it has changed something. All ranks.
    bool look();

    const std::vector<int64_t>& micro_batches() const { return micro_batches_; }
    const std::vector<double>& ms() const { return ms_; }  // of one, of each rank, as of the last look; on rank 0
    std::string text() const;                              // of those

private:
    Ranks& ranks_;
    std::vector<int64_t> micro_batches_;
    std::vector<double> times_;  // of one micro-batch, in each step since the last look
    std::vector<double> ms_;
    int64_t steps_ = 0;
    double claimed_ms_ = 0;  // what ANVIL_MICRO_BATCH_MS says instead of a clock; 0: nothing
};

// The divisions in a log.jsonl, by the step after which they hold; of a run that was resumed those that count.
std::map<int64_t, std::vector<int64_t>> divisions_in(const std::string& log_path);

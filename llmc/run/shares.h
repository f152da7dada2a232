/*
The division of a step's micro-batches among ranks of unequal speed or memory (--balance, --batch-size).

  const Shares shares = equal_shares(4, {.batch_size = 12, .micro_batches = 2});
  sequences_of(shares), first_sequence(shares, rank)       of a step, in all; the index of a rank's first one
  assign_micro_batches({30, 10}, 8)                        8 micro-batches for ranks that need 30 and 10 ms each: {2, 6}
  rebalanced({4, 4}, {30, 10})                             the same if it is worth a change, else {4, 4}

A step's gradient is the sum over its tokens divided by their number, whichever rank has them. So the division changes
only the order in which sums are rounded.
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
// The smallest batch size of any rank. Ranks evaluate together (validation, tasks) with this one.
int64_t least_batch_size(const Shares& shares);
std::vector<int64_t> micro_batches_of(const Shares& shares);
// "12 sequences x 64 tokens x (3 + 1) micro-batches", "(12 x 3 + 4 x 3) sequences x 64 tokens"; of many ranks only the
// first and the last ones.
std::string text_of(const Shares& shares, int64_t T);

// --balance: equal, auto, a list of the ranks' numbers of micro-batches, or a log whose decisions are repeated.
struct BalanceMode {
    enum class Kind { equal, automatic, listed, followed } kind = Kind::equal;
    std::vector<int64_t> micro_batches = {};  // of Kind::listed
    bool is_equal() const { return kind == Kind::equal; }
    // Whether the division may change during a run.
    bool moves() const { return kind == Kind::automatic || kind == Kind::followed; }
};
BalanceMode balance_mode(const std::string& flag);  // throws an Error for anything else

// Converts between numbers and "3,1". No numbers if the text is not such a list.
std::string list_text(const std::vector<int64_t>& numbers);
std::vector<int64_t> numbers_in(const std::string& text);

// Divides `total` micro-batches among ranks, given each rank's ms per micro-batch. Each gets at least one, and the time
// of the slowest rank is minimal. Ties go to the lowest rank. Deterministic.
std::vector<int64_t> assign_micro_batches(const std::vector<double>& ms, int64_t total);

// A new division if it makes the slowest rank kBetter times as fast, else the old one, so that noise changes nothing.
inline constexpr double kBetter = 1.05;
std::vector<int64_t> rebalanced(const std::vector<int64_t>& now, const std::vector<double>& ms);

/*
--balance auto, on each rank. After the first few steps, and then every kLookEvery steps, each rank sends rank 0 the
time of a micro-batch (the median over these steps, which ignores disturbed ones), and rank 0 tells all ranks the new
division. The bits of a run depend on the divisions, not on the times themselves.

  Balancer balancer(ranks, micro_batches);
  balancer.step(ms);                           this rank's micro-batches of a step
  if (balancer.is_due()) { balancer.look(); balancer.micro_batches(); }                   all ranks
*/
class Balancer {
public:
    static constexpr int64_t kFirstLook = 5, kLookEvery = 10;  // steps; the first step warms up and does not count

    Balancer(Ranks& ranks, std::vector<int64_t> micro_batches);

    void step(double ms);
    bool is_due() const;
    // True if the division has changed. Collective.
    bool look();

    const std::vector<int64_t>& micro_batches() const { return micro_batches_; }
    const std::vector<double>& ms() const { return ms_; }  // on rank 0: each rank's ms per micro-batch, at look()
    std::string text() const;                              // ms() as text

private:
    Ranks& ranks_;
    std::vector<int64_t> micro_batches_;
    std::vector<double> times_;  // ms per micro-batch, in each step since the last look()
    std::vector<double> ms_;
    int64_t steps_ = 0;
    double claimed_ms_ = 0;  // for tests: ANVIL_MICRO_BATCH_MS in place of a clock; 0: not set
};

// The divisions in a log.jsonl, by the step after which they hold, without those that a resume made void.
std::map<int64_t, std::vector<int64_t>> divisions_in(const std::string& log_path);

// See shares.h.
#include "llmc/run/shares.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <queue>
#include <sstream>
#include <utility>
#include "llmc/base/check.h"  // require, ensure, format
#include "llmc/base/json.h"   // parse_ordered_json

Shares equal_shares(int64_t world_size, const Share& each) { return Shares(size_t(world_size), each); }

bool are_equal(const Shares& shares) {
    return std::all_of(shares.begin(), shares.end(), [&](const Share& share) { return share == shares[0]; });
}

bool have_one_batch_size(const Shares& shares) {
    return std::all_of(shares.begin(), shares.end(),
                       [&](const Share& share) { return share.batch_size == shares[0].batch_size; });
}

int64_t first_sequence(const Shares& shares, int rank) {
    return std::accumulate(shares.begin(), shares.begin() + rank, int64_t(0),
                           [](int64_t sum, const Share& share) { return sum + share.sequences(); });
}
int64_t sequences_of(const Shares& shares) { return first_sequence(shares, int(shares.size())); }

int64_t least_batch_size(const Shares& shares) {
    return std::min_element(shares.begin(), shares.end(),
                            [](const Share& a, const Share& b) { return a.batch_size < b.batch_size; })
        ->batch_size;
}

std::vector<int64_t> micro_batches_of(const Shares& shares) {
    std::vector<int64_t> all;
    for (const Share& share : shares) all.push_back(share.micro_batches);
    return all;
}

std::string text_of(const Shares& shares, int64_t T) {
    const bool one_size = have_one_batch_size(shares);
    constexpr size_t kShown = 8, kEnd = 3;
    std::string list;
    for (size_t r = 0; r < shares.size(); r++) {
        if (shares.size() > kShown && r == kEnd) {
            list += " + ...";
            r = shares.size() - kEnd;
        }
        const Share& share = shares[r];
        list += (list.empty() ? "" : " + ") + (one_size ? "" : std::to_string(share.batch_size) + " x ") +
                std::to_string(share.micro_batches);
    }
    return one_size ? format("%ld %s x %ld tokens x (%s) micro-batches", shares[0].batch_size,
                             shares[0].batch_size == 1 ? "sequence" : "sequences", T, list.c_str())
                    : format("(%s) sequences x micro-batches x %ld tokens", list.c_str(), T);
}

std::string list_text(const std::vector<int64_t>& numbers) {
    std::string text;
    for (const int64_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
    return text;
}

std::vector<int64_t> numbers_in(const std::string& text) {
    std::vector<int64_t> numbers;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, ',');) {
        // At most 10^12, so that sums are far from 2^63.
        if (word.empty() || word.size() > 12 || word.find_first_not_of("0123456789") != std::string::npos) return {};
        numbers.push_back(std::stoll(word));
    }
    return text.ends_with(',') ? std::vector<int64_t>() : numbers;
}

BalanceMode balance_mode(const std::string& flag) {
    using enum BalanceMode::Kind;
    if (flag == "equal") return {};
    if (flag == "auto") return {automatic, {}};
    if (flag.ends_with(".jsonl")) return {followed, {}};
    const std::vector<int64_t> numbers = numbers_in(flag);
    require(!numbers.empty(),
            "--balance %s: expected equal, auto, the number of micro-batches of each rank (3,1), or the log.jsonl of a "
            "run whose divisions are followed",
            flag.c_str());
    for (size_t r = 0; r < numbers.size(); r++)
        require(numbers[r] > 0,
                "--balance %s: rank %zu has no micro-batch; give each rank one at least, or leave the rank out",
                flag.c_str(), r);
    return {BalanceMode::Kind::listed, numbers};
}

std::vector<int64_t> assign_micro_batches(const std::vector<double>& ms, int64_t total) {
    const int64_t ranks = int64_t(ms.size());
    ensure(ranks > 0 && total >= ranks);
    std::vector<int64_t> assigned(size_t(ranks), 1);
    // Each micro-batch goes to the rank that would finish it first.
    using Next = std::pair<double, int64_t>;  // (finishing time, rank)
    std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
    for (int64_t r = 0; r < ranks; r++) next.emplace(2 * ms[size_t(r)], r);
    for (int64_t left = total - ranks; left > 0; left--) {
        const size_t r = size_t(next.top().second);
        next.pop();
        assigned[r]++;
        next.emplace(double(assigned[r] + 1) * ms[r], int64_t(r));
    }
    return assigned;
}

static double slowest_ms(const std::vector<int64_t>& micro_batches, const std::vector<double>& ms) {
    double slowest = 0;
    for (size_t r = 0; r < ms.size(); r++) slowest = std::max(slowest, double(micro_batches[r]) * ms[r]);
    return slowest;
}

std::vector<int64_t> rebalanced(const std::vector<int64_t>& now, const std::vector<double>& ms) {
    ensure(now.size() == ms.size());
    for (const double each : ms)
        if (!std::isfinite(each) || each <= 0) return now;  // a rank has no time yet
    const std::vector<int64_t> best = assign_micro_batches(ms, std::accumulate(now.begin(), now.end(), int64_t(0)));
    return slowest_ms(now, ms) > kBetter * slowest_ms(best, ms) ? best : now;
}

Balancer::Balancer(Ranks& ranks, std::vector<int64_t> micro_batches)
    : ranks_(ranks), micro_batches_(std::move(micro_batches)), ms_(micro_batches_.size(), NAN) {
    ensure(int(micro_batches_.size()) == ranks.world_size);
    const char* const text = std::getenv("ANVIL_MICRO_BATCH_MS");
    if (!text) return;
    const std::vector<int64_t> claimed = numbers_in(text);
    require(int(claimed.size()) == ranks.world_size, "ANVIL_MICRO_BATCH_MS=%s: expected a number for each of %d ranks",
            text, ranks.world_size);
    claimed_ms_ = double(claimed[size_t(ranks.rank)]);
}

void Balancer::step(double ms) {
    if (steps_++ == 0) return;
    times_.push_back(claimed_ms_ > 0 ? claimed_ms_ : ms / double(micro_batches_[size_t(ranks_.rank)]));
}

bool Balancer::is_due() const {
    return !times_.empty() && (steps_ == kFirstLook || (steps_ > kFirstLook && steps_ % kLookEvery == 0));
}

bool Balancer::look() {
    std::nth_element(times_.begin(), times_.begin() + int64_t(times_.size() / 2), times_.end());
    const double median = times_[times_.size() / 2];
    times_.clear();
    const std::string answer = ranks_.ask_first(Ranks::bytes_of(median), [&](const std::vector<std::string>& records) {
        for (size_t r = 0; r < records.size(); r++)
            ms_[r] = ranks_.value_of<double>(records[r], int(r), "the time of its micro-batches");
        return list_text(rebalanced(micro_batches_, ms_));
    });
    const std::vector<int64_t> next = numbers_in(answer);
    const auto sum = [](const std::vector<int64_t>& all) {
        return std::accumulate(all.begin(), all.end(), int64_t(0));
    };
    ranks_.require_sense(next.size() == micro_batches_.size() && sum(next) == sum(micro_batches_) &&
                             *std::min_element(next.begin(), next.end()) > 0,
                         0, "the division of micro-batches");
    return std::exchange(micro_batches_, next) != next;
}

std::string Balancer::text() const {
    constexpr size_t kShown = 8;
    const auto [least, most] = std::minmax_element(ms_.begin(), ms_.end());
    std::string list = format("%.1f to %.1f", *least, *most);
    if (ms_.size() <= kShown) list.clear();
    if (list.empty())
        for (const double ms : ms_) list += format("%s%.1f", list.empty() ? "" : ", ", ms);
    return "a micro-batch takes " + list + " ms";
}

std::map<int64_t, std::vector<int64_t>> divisions_in(const std::string& log_path) {
    std::ifstream log(log_path);
    require(bool(log), "--balance %s: cannot be read; give the log.jsonl of a run with --balance auto",
            log_path.c_str());
    std::map<int64_t, std::vector<int64_t>> found;
    for (std::string line; std::getline(log, line);) {
        const bool resumes = line.starts_with("{\"type\":\"resume\"");
        if (!resumes && !line.starts_with("{\"type\":\"balance\"")) continue;
        const OrderedJson record = parse_ordered_json(line);
        if (record.is_discarded()) continue;  // cut short by a kill
        try {
            const int64_t step = record.at("step");
            if (resumes)
                found.erase(found.upper_bound(step), found.end());
            else
                found[step] = record.at("micro_batches").get<std::vector<int64_t>>();
        } catch (const OrderedJson::exception&) {
            throw Error(kExitUsage, format("--balance %s: expected numbers for step and micro_batches in: %s",
                                           log_path.c_str(), line.c_str()));
        }
    }
    require(!found.empty(),
            "--balance %s: it has no record of a division; give the log.jsonl of a run with --balance auto",
            log_path.c_str());
    return found;
}

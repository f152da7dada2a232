/*
Health checks between ranks: equal weights, no rank slower than the rest, and communication time beside the predicted
time.

  RankWatch<Device, T> watch(ranks, comm, device);          measures the bandwidth between the ranks
  const CommCost cost = watch.step(step_ms);                after every step
  const RankReport report = watch.compare(model);           all ranks, now and then; throws if weights differ
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>  // exchange
#include <vector>
#include "llmc/base/hash.h"        // hex64
#include "llmc/base/terminal.h"    // peer_text
#include "llmc/comm/bench_comm.h"  // measure_bandwidth
#include "llmc/comm/comm.h"        // Comm
#include "llmc/comm/ranks.h"       // Ranks, SharedError
#include "llmc/model/gpt.h"        // Gpt

// The result of a comparison of all ranks. Times are those that a rank computes per step, averaged since the last
// comparison.
struct RankReport {
    uint64_t weight_hash = 0;
    double min_ms = 0, median_ms = 0, max_ms = 0;
    int slowest = 0;

    // Less than a millisecond is noise, however short the steps are.
    bool has_slow_rank() const { return max_ms > 1.1 * median_ms && max_ms - median_ms >= 1; }
    std::string straggler_text() const {
        return format(
            "rank %d is slow: it computes %.1f ms per step, and the median of the ranks is %.1f (all wait for it)",
            slowest, max_ms, median_ms);
    }
};

// The report from each rank's hash and time. Throws a SharedError that names the ranks whose hash differs.
inline RankReport report_of(const std::vector<uint64_t>& hashes, const std::vector<double>& times) {
    uint64_t most = hashes[0];
    const auto count = [&](uint64_t hash) { return std::count(hashes.begin(), hashes.end(), hash); };
    for (const uint64_t hash : hashes)
        if (count(hash) > count(most)) most = hash;
    std::string odd;
    for (size_t r = 0; r < hashes.size(); r++)
        if (hashes[r] != most) odd += format("%s%zu (%s)", odd.empty() ? "" : ", ", r, hex64(hashes[r]).c_str());
    if (!odd.empty())
        throw SharedError(
            kExitReplicas,
            format("the ranks' weights are no longer the same: the hash is %s, but not on rank %s. Memory or "
                   "a network there may be at fault; resume from the last checkpoint without it",
                   hex64(most).c_str(), odd.c_str()));
    std::vector<double> sorted = times;
    std::sort(sorted.begin(), sorted.end());
    const size_t n = sorted.size();
    return {.weight_hash = most,
            .min_ms = sorted.front(),
            .median_ms = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2,
            .max_ms = sorted.back(),
            .slowest = int(std::max_element(times.begin(), times.end()) - times.begin())};
}

// The same report on every rank, from this rank's hash and time. Rank 0 makes it and sends it to the others. Only rank
// 0 sets `all_ms`, each rank's time. Collective.
inline RankReport report_of_all(Ranks& ranks, uint64_t hash, double compute_ms, std::vector<double>* all_ms = nullptr) {
    struct Mine {
        uint64_t hash;
        double compute_ms;
    } const mine{hash, compute_ms};
    const auto judge = [&](const std::vector<std::string>& records) {
        std::vector<uint64_t> hashes;
        std::vector<double> times;
        for (size_t r = 0; r < records.size(); r++) {
            const Mine theirs = ranks.value_of<Mine>(records[r], int(r), "its hash of the weights");
            hashes.push_back(theirs.hash);
            times.push_back(theirs.compute_ms);
        }
        if (all_ms) *all_ms = times;
        try {
            return Ranks::bytes_of(report_of(hashes, times));
        } catch (const SharedError& error) {
            return std::string(error.what());
        }
    };
    const std::string answer = ranks.ask_first(Ranks::bytes_of(mine), judge);
    if (answer.size() > sizeof(RankReport)) throw SharedError(kExitReplicas, peer_text(answer));
    return ranks.value_of<RankReport>(answer, 0, "what the ranks have said");
}

// The cost of a step's communication in ms. Predicted: the bytes that a rank sends in a ring, divided by the bandwidth.
struct CommCost {
    double ms = 0, exposed_ms = 0, predicted_ms = 0;
};

template <class Device, class T>
class RankWatch {
public:
    RankWatch(Ranks& ranks, Comm<Device>& comm, Device& device)
        : ranks_(ranks), comm_(comm), bytes_per_s_(measure_bandwidth(comm, device, ranks)) {
        comm.take_times();  // discards those of the measurement
    }

    double bytes_per_s() const { return bytes_per_s_; }

    CommCost step(double step_ms) {
        const CommTimes times = comm_.take_times();
        compute_ms_ += std::max(0.0, step_ms - times.exposed_ms);
        steps_++;
        return {times.busy_ms, times.exposed_ms, bytes_per_s_ > 0 ? times.sent_bytes / bytes_per_s_ * 1e3 : 0};
    }

    RankReport compare(const Gpt<Device, T>& model) {
        Device& device = model.device;
        Arena arena(device, "hash", aligned(sizeof(uint64_t)));
        uint64_t* sum = arena.take<uint64_t>(1);
        fill_zero(device, sum, 1);
        model.op.add_hash(device, sum, model.weights.data, model.weights.size, 0);
        uint64_t hash = 0;
        copy_to_host(device, &hash, sum, 1);
        const double mean_ms = steps_ > 0 ? compute_ms_ / double(steps_) : 0;
        compute_ms_ = 0, steps_ = 0;
        const RankReport report = report_of_all(ranks_, hash, mean_ms, &all_ms_);
        const int slow_before = std::exchange(slow_rank_, report.has_slow_rank() ? report.slowest : -1);
        has_straggler_ = slow_rank_ >= 0 && slow_rank_ == slow_before;
        return report;
    }
    // Whether one rank was slow in the last two comparisons. In one, a neighbor or the scheduler may have been at work.
    bool has_straggler() const { return has_straggler_; }
    // On rank 0, each rank's computing time in ms per step, from the last comparison.
    const std::vector<double>& all_ms() const { return all_ms_; }

private:
    Ranks& ranks_;
    Comm<Device>& comm_;
    const double bytes_per_s_;
    double compute_ms_ = 0;
    int64_t steps_ = 0;
    int slow_rank_ = -1;  // in the last comparison; -1: none
    bool has_straggler_ = false;
    std::vector<double> all_ms_;
};

/*
--after-checkpoint: a command that copies each checkpoint elsewhere, to a bucket, say, once it is on the disk.

  Uploads uploads(command, out_dir, timeout_s);          rank 0
  uploads.add(step);                                     after a commit; does not wait
  tidy(out_dir, keep, step, best, uploads.waiting());    what is not copied yet is not removed
  uploads.finish(limit_s);                               waits for the last ones

A thread runs the command for one checkpoint after the other, the newest first. Training does not depend on it: what
fails or takes longer than timeout_s is a warning and is tried again, with pauses that double up to a minute. If more
than kMostWaiting checkpoints wait, the oldest is given up.
*/
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <thread>

class Uploads {
public:
    static constexpr size_t kMostWaiting = 4;

    Uploads(const std::string& command, const std::string& out_dir, double timeout_s);
    ~Uploads();  // the run ends by an error: waits for half a minute
    Uploads(const Uploads&) = delete;
    Uploads& operator=(const Uploads&) = delete;

    void add(int64_t step);
    std::set<int64_t> waiting() const;  // the one that is being copied, too
    void finish(double limit_s);

private:
    using Clock = std::chrono::steady_clock;

    const std::string command_, out_dir_;
    const double timeout_s_;
    mutable std::mutex mutex_;  // of all below
    std::condition_variable changed_;
    std::set<int64_t> waiting_;
    int64_t current_ = -1;    // of waiting_, unless it is saved again meanwhile
    bool is_ending_ = false;  // nothing will be added
    int last_attempts_ = 0;   // that failed since then
    Clock::time_point limit_;
    std::thread thread_;

    void work();
    bool is_over() const;  // ending, and no more attempts
    void warn(int64_t step, const std::string& what) const;
};

// See uploads.h.
#include "llmc/checkpoint/uploads.h"
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include "llmc/base/check.h"         // format
#include "llmc/io/checkpoint.h"      // checkpoint_path
#include "llmc/run/child_process.h"  // why_not_run

Uploads::Uploads(const std::string& command, const std::string& out_dir, double timeout_s)
    : command_(command), out_dir_(std::filesystem::absolute(out_dir)), timeout_s_(timeout_s) {
    thread_ = std::thread([this] { work(); });
}

Uploads::~Uploads() {
    constexpr double kPatienceS = 30;
    finish(kPatienceS);
}

void Uploads::add(int64_t step) {
    const std::lock_guard lock(mutex_);
    if (current_ == step) current_ = -1;  // its folder is another one now
    waiting_.insert(step);
    if (waiting_.size() > kMostWaiting) {
        const int64_t oldest = *waiting_.begin() == current_ ? *std::next(waiting_.begin()) : *waiting_.begin();
        waiting_.erase(oldest);
        warn(oldest, format("is given up, because %zu newer ones wait", waiting_.size()));
    }
    changed_.notify_all();
}

std::set<int64_t> Uploads::waiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_;
}

void Uploads::finish(double limit_s) {
    if (!thread_.joinable()) return;
    {
        std::unique_lock lock(mutex_);
        is_ending_ = true;
        limit_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_s));
        changed_.notify_all();
        if (!changed_.wait_for(lock, std::chrono::seconds(1), [&] { return waiting_.empty() || is_over(); })) {
            std::printf("waiting for --after-checkpoint of step %ld, %.0f s at most\n", *waiting_.rbegin(), limit_s);
            std::fflush(stdout);
        }
    }
    thread_.join();
    for (const int64_t step : waiting_) warn(step, "is not done, and the run ends");
}

void Uploads::work() {
    constexpr int kFirstPauseS = 1, kLongestPauseS = 60;
    std::unique_lock lock(mutex_);
    for (int pause_s = kFirstPauseS;;) {
        changed_.wait(lock, [&] { return is_ending_ || !waiting_.empty(); });
        if (waiting_.empty() || is_over()) return;
        const int64_t step = current_ = *waiting_.rbegin();
        lock.unlock();
        const std::string folder = checkpoint_path(out_dir_, step);
        const std::string why =
            why_not_run(command_, {"ANVIL_CHECKPOINT=" + folder, "ANVIL_OUT_DIR=" + out_dir_}, timeout_s_, [&] {
                const std::lock_guard again(mutex_);
                return is_over();
            });
        lock.lock();
        if (why.empty()) {
            if (current_ == step) waiting_.erase(step);
            changed_.notify_all();
            current_ = -1;
            pause_s = kFirstPauseS;
            continue;
        }
        current_ = -1;
        const bool was_ending = is_ending_;
        if (was_ending) last_attempts_++;
        if (is_over()) return changed_.notify_all();
        if (pause_s == kFirstPauseS) warn(step, why + "; it is tried again, and training goes on");
        changed_.wait_for(lock, std::chrono::seconds(was_ending ? kFirstPauseS : pause_s),
                          [&] { return is_ending_ != was_ending; });
        pause_s = std::min(2 * pause_s, kLongestPauseS);
    }
}

bool Uploads::is_over() const {
    constexpr int kLastAttempts = 3;
    return is_ending_ && (last_attempts_ >= kLastAttempts || Clock::now() > limit_);
}

void Uploads::warn(int64_t step, const std::string& what) const {
    std::fprintf(stderr, "warning: --after-checkpoint of step %ld %s\n", step, what.c_str());
}

// See watchdog.h.
#include "llmc/comm/watchdog.h"
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include "llmc/base/check.h"  // ensure, format, kExitRank

namespace {
constexpr int64_t kClaimed = -1;  // a slot that is being filled
std::atomic<bool> ending{false};
}  // namespace

Watchdog::Watchdog(int rank, double timeout_s) : timeout_s(timeout_s), rank_(rank) {
    ensure(timeout_s > 0);
    thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

void Watchdog::run() {
    using std::chrono::milliseconds;
    using Clock = std::chrono::steady_clock;
    const milliseconds interval(std::clamp<int64_t>(ms_of(timeout_s) / 10, 1, 100));
    std::unique_lock lock(mutex_);
    while (!stop_) {
        const Clock::time_point before = Clock::now();
        wake_.wait_for(lock, interval, [this] { return stop_; });
        // After a sleep of more than a second: the process was stopped in the meantime.
        const auto slept =
            std::min(std::chrono::duration_cast<milliseconds>(Clock::now() - before), milliseconds(1000));
        now_ms_ += std::max<int64_t>(1, slept.count());
        for (const Slot& slot : slots_) {
            const int64_t since_ms = slot.since_ms;
            const int64_t timeout_ms = slot.timeout_ms;
            if (since_ms <= 0 || now_ms_ - since_ms < timeout_ms) continue;
            std::string message =
                format("the %s was not over after %g s%s", what_of(slot).c_str(), double(timeout_ms) * 1e-3,
                       timeout_ms == ms_of(timeout_s) ? "" : " (io-timeout)");
            if (const Missing* missing = slot.missing) message += "; not there yet: " + (*missing)();
            if (slot.since_ms != since_ms) continue;  // the watch has ended in the meantime
            lock.unlock();
            end(message);
        }
    }
}

std::string Watchdog::what_of(const Slot& slot) const {
    std::string text = slot.what.load();
    if (slot.number >= 0) text += format(" %ld", long(slot.number));
    if (step_ >= 0) text += format(" in step %ld", long(step_));
    return text;
}

int Watchdog::add_hook(Hook hook) {
    const std::lock_guard lock(mutex_);
    hooks_[next_hook_] = std::move(hook);
    return next_hook_++;
}

void Watchdog::remove_hook(int id) {
    const std::lock_guard lock(mutex_);
    hooks_.erase(id);
}

void Watchdog::give_up(const std::string& why) {
    const Slot* oldest = nullptr;
    for (const Slot& slot : slots_)
        if (slot.since_ms > 0 && (!oldest || slot.since_ms < oldest->since_ms)) oldest = &slot;
    const std::string where = oldest       ? " (during the " + what_of(*oldest) + ")"
                              : step_ >= 0 ? format(" (in step %ld)", long(step_))
                                           : "";
    // What another rank has sent may say where that rank was.
    const bool has_place =
        why.find(" (during the ") != std::string::npos || why.find(" (in step ") != std::string::npos;
    end(has_place ? why : why + where);
}

void Watchdog::end(const std::string& message) {
    if (ending.exchange(true))
        for (;;) pause();
    const std::string said = format("rank %d: %s", rank_.load(), message.c_str()), line = "error: " + said + "\n";
    [[maybe_unused]] const ssize_t written = write(2, line.data(), line.size());  // one write: ranks share the terminal
    // Hooks call into libraries that may hang, too, so they get one second; a hook that hangs is abandoned.
    std::promise<void> done;
    std::thread([&] {
        if (ftrylockfile(stdout) == 0) {  // the thread that hangs may hold the lock
            std::fflush(stdout);
            funlockfile(stdout);
        }
        std::map<int, Hook> hooks;
        {
            const std::lock_guard lock(mutex_);
            hooks = hooks_;
        }
        for (const auto& [id, hook] : hooks) hook(said);
        done.set_value();
    }).detach();
    done.get_future().wait_for(std::chrono::milliseconds(800));
    _exit(kExitRank);
}

Watchdog::Watch::Watch(Watchdog* watchdog, const char* what, int64_t number, const Missing* missing)
    : watchdog_(watchdog) {
    if (!watchdog) return;
    for (int i = 0; i < int(watchdog->slots_.size()) && slot_ < 0; i++) {
        int64_t unused = 0;
        if (watchdog->slots_[size_t(i)].since_ms.compare_exchange_strong(unused, kClaimed)) slot_ = i;
    }
    ensure(slot_ >= 0);  // there are always fewer waiting threads than slots
    Slot& slot = watchdog->slots_[size_t(slot_)];
    slot.what = what, slot.number = number, slot.missing = missing;
    slot.timeout_ms = patience_ms_ > 0 ? patience_ms_ : ms_of(watchdog->timeout_s);
    slot.since_ms = watchdog->now_ms_.load();
}

Watchdog::Watch::~Watch() {
    if (!watchdog_) return;
    Slot& slot = watchdog_->slots_[size_t(slot_)];
    if (slot.missing.load()) {  // the watchdog may be calling it right now
        const std::lock_guard lock(watchdog_->mutex_);
        slot.missing = nullptr;
    }
    slot.since_ms = 0;
}

std::string rank_list(std::vector<int> ranks) {
    std::sort(ranks.begin(), ranks.end());
    constexpr size_t kMost = 8;
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (size_t i = 0; i < std::min(ranks.size(), kMost); i++)
        text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
    if (ranks.size() > kMost) text += format(" and %zu more", ranks.size() - kMost);
    return text;
}

// A barrier for the ranks of a host, in shared memory.
#include "llmc/comm/host/host_barrier.h"
#include <unistd.h>
#include <atomic>
#include <cstdio>
#include "llmc/base/check.h"         // Error, ensure, format
#include "llmc/platform/platform.h"  // sleep_while, wake_all

namespace {

// A few microseconds: by that much ranks arrive apart when all do the same work. More spinning costs time whenever the
// scheduler has put two ranks on one core, which it often does when one wakes the other: with 2000 spins a meeting took
// 55 us on one core, and 0.4 us on two.
constexpr int kSpins = 100;
constexpr std::chrono::milliseconds kLookEvery(100);

void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

// Lies in the shared memory of a host's first rank. The initial state is all zeros.
struct HostBarrier::Control {
    struct alignas(64) Entry {
        std::atomic<uint32_t> arrived;  // the number of meetings at which this rank has arrived
        Call call;
        char last_words[512];  // the reason, if this rank has given up
    };
    static_assert(std::atomic<uint32_t>::is_always_lock_free);  // a lock would not work between processes

    alignas(64) std::atomic<uint32_t> arrived;   // the number of ranks at the current meeting
    alignas(64) std::atomic<uint32_t> meetings;  // the number of meetings that are over: ranks sleep on this word
    std::atomic<uint32_t> sleepers;
    std::atomic<int> awaited;  // 1 + the rank of another host that the first rank of this one waits for; 0: none
    Entry entries[];
};

HostBarrier::HostBarrier(Ranks& ranks, const HostLayout& layout, SharedBuffers& buffers)
    : ranks_(ranks), layout_(layout), watchdog_(ranks.watchdog()), missing_([this] { return missing_ranks(); }) {
    ensure(watchdog_);
    const Process process = Process::current();
    const std::vector<Process> processes = ranks.all_gather_values(process, "its process");
    for (const int r : layout.ranks_here()) processes_.push_back(processes[size_t(r)]);

    control_memory_ = buffers.memory_of_first(sizeof(Control) + size_t(layout.local_size()) * sizeof(Control::Entry));
    control_ = reinterpret_cast<Control*>(control_memory_.data());
    hook_ = watchdog_->add_hook([this](const std::string& why) {
        auto& words = control_->entries[layout_.local].last_words;
        std::snprintf(words, sizeof words, "%s", why.c_str());
    });
    // With fewer cores than ranks, spinning would keep the awaited rank from running.
    spins_ = layout.local_size() <= sysconf(_SC_NPROCESSORS_ONLN) ? kSpins : 0;
}

HostBarrier::~HostBarrier() { watchdog_->remove_hook(hook_); }

void HostBarrier::meet() {
    const uint32_t before = meetings_++;
    control_->entries[layout_.local].arrived.store(meetings_, std::memory_order_relaxed);
    if (control_->arrived.fetch_add(1) + 1 == uint32_t(layout_.local_size())) {
        control_->arrived.store(0, std::memory_order_relaxed);
        control_->meetings.fetch_add(1);
        // No wakeup is lost: a rank increments `sleepers` before the kernel compares `meetings` with its old value.
        if (control_->sleepers.load() > 0) wake_all(control_->meetings);
        return;
    }
    const auto over = [&] { return control_->meetings.load(std::memory_order_acquire) != before; };
    for (int spin = 0; spin < spins_; spin++) {
        if (over()) return;
        pause_briefly();
    }
    next_look_ = Clock::now() + kLookEvery;
    while (!over()) {
        control_->sleepers.fetch_add(1);
        sleep_while(control_->meetings, before, int(kLookEvery.count()));
        control_->sleepers.fetch_sub(1);
        look_around(over);
    }
}

void HostBarrier::meet_for(const Call& mine) {
    control_->entries[layout_.local].call = mine;
    meet();
    for (int local = 0; local < layout_.local_size(); local++) {
        const Call& other = control_->entries[local].call;
        if (other == mine) continue;
        const auto text = [](const Call& call) {
            return format("%s of %ld bytes at %ld in buffer %ld", call.what, call.bytes, call.offset, call.buffer);
        };
        throw Error(kExitInternal, format("internal: rank %d calls %s, rank %d %s; please report it", ranks_.rank,
                                          text(mine).c_str(), layout_.local_rank(local), text(other).c_str()));
    }
}

void HostBarrier::begin_wait_elsewhere(int rank) {
    control_->awaited = 1 + rank;
    next_look_ = Clock::now() + kLookEvery;
}
void HostBarrier::look_elsewhere(int rank) {
    control_->awaited.store(1 + rank, std::memory_order_relaxed);
    look_around([] { return false; });
}
void HostBarrier::end_wait_elsewhere() { control_->awaited = 0; }

std::string HostBarrier::name_of(int local) const {
    return format("rank %d (pid %d)", ranks_.number_in_all(layout_.local_rank(local)),
                  int(processes_[size_t(local)].pid));
}

// The ranks that this one waits for. Called by the watchdog's thread.
std::string HostBarrier::missing_ranks() const {
    const uint32_t now = control_->entries[layout_.local].arrived;
    std::string text;
    for (int local = 0; local < layout_.local_size(); local++)
        if (local != layout_.local && control_->entries[local].arrived != now)
            text += (text.empty() ? "" : ", ") + name_of(local);
    if (const int awaited = control_->awaited) text = format("rank %d on another host", awaited - 1);
    return text;
}

// Checks, at most every kLookEvery, that the other processes of this host are alive; gives up if one is dead. over():
// whether the wait is over. It is asked after a process was found dead, because a rank may end once the wait is over.
template <class Over>
void HostBarrier::look_around(const Over& over) {
    const Clock::time_point now = Clock::now();
    if (now < next_look_) return;
    next_look_ = now + kLookEvery;
    int dead = -1;  // if possible the root cause: a rank that left no last words, so did not give up because of another
    for (int local = 0; local < layout_.local_size(); local++)
        if (local != layout_.local && !processes_[size_t(local)].alive())
            if (dead < 0 || control_->entries[local].last_words[0] == 0) dead = local;
    if (dead < 0 || over()) return;
    const char* words = control_->entries[dead].last_words;
    watchdog_->give_up(name_of(dead) + (*words ? format(" gave up: %s", words) : " has died"));
}

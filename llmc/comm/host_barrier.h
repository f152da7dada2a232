/*
Ranks of a host wait for each other at a counter in shared memory: a short spin, where there is a core for every rank,
then sleep.

  HostBarrier barrier(ranks, layout, buffers);         all ranks
  barrier.meet_for({"all-gather", number, offset, bytes});   waits for all; an Error if one has another call in mind
  barrier.meet();                                      waits for all
  const Watchdog::Watch watch(watchdog, "all-gather", -1, &barrier.missing());    who is not there yet

Every tenth of a second a waiting rank looks whether the others of its host live; if one is dead, it says which one, and
all end with exit code 3. A rank that gives up leaves its reason in the shared memory for those who find it dead.
*/
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/comm/host_layout.h"     // HostLayout
#include "llmc/comm/ranks.h"           // Ranks
#include "llmc/comm/shared_buffers.h"  // SharedBuffers
#include "llmc/comm/shared_memory.h"   // SharedMemory, Process
#include "llmc/comm/watchdog.h"        // Watchdog

class HostBarrier {
public:
    // What a rank is about to do, to be compared.
    struct Call {
        char what[16];
        int64_t buffer, offset, bytes;
        bool operator==(const Call&) const = default;
    };

    HostBarrier(Ranks& ranks, const HostLayout& layout, SharedBuffers& buffers);
    ~HostBarrier();
    HostBarrier(const HostBarrier&) = delete;
    HostBarrier& operator=(const HostBarrier&) = delete;

    void meet();
    void meet_for(const Call& call);

    // Around a wait of this host's first rank for one of another host: until it is over, the others know whom they are
    // missing.
    void begin_wait_elsewhere(int rank);
    void look_elsewhere(int rank);  // now and then: that rank is not there yet; looks after this host's, too
    void end_wait_elsewhere();

    const Watchdog::Missing& missing() const { return missing_; }

private:
    using Clock = std::chrono::steady_clock;
    struct Control;

    Ranks& ranks_;
    const HostLayout& layout_;
    Watchdog* const watchdog_;
    const Watchdog::Missing missing_;
    int hook_ = -1;
    SharedMemory control_memory_;
    Control* control_ = nullptr;
    std::vector<Process> processes_;  // of this host
    uint32_t meetings_ = 0;
    int spins_ = 0;
    Clock::time_point next_look_;

    std::string name_of(int local) const;
    std::string missing_ranks() const;
    template <class Over>
    void look_around(const Over& over);
};

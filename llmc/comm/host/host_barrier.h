/*
A barrier for the ranks of a host: a counter in shared memory. A waiting rank spins briefly if there is a core for every
rank, then sleeps until the last one wakes it.

  HostBarrier barrier(ranks, layout, buffers);         all ranks
  barrier.meet_for({"all-gather", number, offset, bytes});   waits for all; an Error if a rank is about to make another
                                                       call
  barrier.meet();                                      waits for all
  const Watchdog::Watch watch(watchdog, "all-gather", -1, &barrier.missing());    says who is missing

Every 0.1 s a waiting rank checks that the other processes of its host are alive. If one is dead, the run ends with an
error that names it (exit code 3). A rank that gives up leaves its reason in shared memory, for that error.
*/
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/comm/host/host_layout.h"     // HostLayout
#include "llmc/comm/host/shared_buffers.h"  // SharedBuffers
#include "llmc/comm/host/shared_memory.h"   // SharedMemory, Process
#include "llmc/comm/ranks.h"                // Ranks
#include "llmc/comm/watchdog.h"             // Watchdog

class HostBarrier {
public:
    // The collective that a rank is about to do. All ranks of the host must be about to do the same.
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

    // The first rank of this host brackets its wait for a rank of another host with these, so that the other ranks of
    // this host can say whom they are waiting for.
    void begin_wait_elsewhere(int rank);
    void look_elsewhere(int rank);  // called repeatedly during the wait; also checks the processes of this host
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
    std::vector<Process> processes_;  // of this host's ranks
    uint32_t meetings_ = 0;
    int spins_ = 0;
    Clock::time_point next_look_;

    std::string name_of(int local) const;
    std::string missing_ranks() const;
    template <class Over>
    void look_around(const Over& over);
};

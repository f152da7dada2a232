/*
Hopper's asynchronous features on the emulator: mbarriers, TMA, wgmma, named barriers, registers that warpgroups give to
each other. As with cp.async, asynchronous work is done as late as possible: a copy lands, and a wgmma completes, when
no thread can go on without it (Schedule::random: at any time until then). What CUDA leaves undefined is detected:

  shared memory that a copy in flight writes, read by wgmma or by another copy's write           error
  the same, read by ordinary loads                                                               NaN
  a copy to memory that a wgmma in flight reads                                                  error
  a copy to memory that was stored to without fence_async(), or is stored to meanwhile           error: race checker
  memory that ordinary stores wrote, read by wgmma without fence_async()                         error: see below
  d read before the wait                                                                         NaN
  d, or a in registers, written before the wait                                                  error
  a wgmma without wgmma_fence() since the last wait or wgmma_pin(); one that is never waited for error
  warps of a warpgroup that issue different products; an invalid matrix descriptor               error
  an mbarrier that gets more arrivals or bytes than expected, or whose phase is incomplete at the end of the block; a
  thread that waits twice for the same phase; an mbarrier that is not initialized, or not fenced for TMA     error
  a named barrier with differing numbers of threads, or incomplete at the end of the block       error
  take_registers() of more registers than are ever given                                         no thread can go on

The asynchronous proxy is modeled by a second copy of shared memory, which TMA and wgmma see. TMA writes both copies,
ordinary stores write the first, and fence_async() makes them equal. A wgmma whose operands differ between the copies is
an error. With the race checker, which sees each store, only a fence by the storing thread counts. Not detected: without
the race checker, that only another thread has called the fence; ordinary loads that nothing orders before a copy to the
same memory. The race checker does not know mbarriers and named barriers: accesses that only these order are reported as
races.
*/
#pragma once
#include <array>
#include <string>
#include "dev/emulator/emulator.h"

// In place of the toolkit's type of this name, with its size and alignment: kernels are called as nvcc calls them.
struct alignas(128) CUtensorMap_st {
    const char* base;
    int64_t dims[4], strides[4];  // in elements; in bytes
    int box[4];
    char unused[40];
};

namespace emulator {

using TensorMap = CUtensorMap_st;

void mbarrier_init(void* barrier, int arrivals, Site site);
void mbarrier_fence_init();
void mbarrier_arrive(void* barrier, int bytes, const char* op, Site site);
void mbarrier_wait(void* barrier, int parity, Site site);
void named_barrier(int number, int threads, bool waits, Site site);

void tma_load(void* to, const TensorMap& map, void* barrier, std::array<int, 4> corner, Site site);
void bulk_load(void* to, const void* from, int bytes, void* barrier, Site site);
void fence_async();

void give_registers(int n, Site site);
void take_registers(int n, Site site);

struct Wgmma {
    int N;
    bool transposed_a, transposed_b, add;
    float* d;
    const uint32_t* a_registers;  // null: a_tile
    uint64_t a_tile, b_tile;
};
void wgmma(const Wgmma& own, Site site);
void wgmma_fence(Site site);
void wgmma_pin();
void wgmma_commit(Site site);
void wgmma_wait(int groups_left, Site site);

// The shared-memory address of a pointer into the block's dynamic shared memory.
uint32_t shared_address(const void* pointer, const char* op, Site site);

// Implemented in emulator.cpp. park(): the running thread waits for wake(). dynamic_shared(): the block's dynamic
// shared memory, or null.
void park(const char* op, Site site);
void wake(unsigned thread);
struct SharedSpan {
    char* data;
    size_t bytes;
};
SharedSpan dynamic_shared();

// Called by emulator.cpp at the begin of a block, and at its end by its last thread.
void hopper_begin_block();
void hopper_end_block();
// Completes a piece of asynchronous work, so that threads can go on. False: none is pending.
bool hopper_progress(Schedule schedule, unsigned random);
// Lists pending asynchronous work for a report, one line each.
std::string hopper_state();
// Called by the race checker for each ordinary store by the running thread.
void note_generic_store(uintptr_t address, size_t bytes);

}  // namespace emulator

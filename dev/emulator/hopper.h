/*
Hopper's asynchronous parts on the emulator: mbarriers, TMA, wgmma, named barriers, registers that warpgroups hand over.
As with cp.async, what goes on while threads run happens as late as it may: a copy lands, and a product is finished,
when no thread can go on without it (Schedule::random: or at any time before). What CUDA leaves undefined is an error:

  shared memory that a copy brings, read by wgmma or copied to again before it has landed       error; NaN to others
  a copy to what a wgmma still reads                                                            error
  what ordinary stores wrote, read by wgmma without fence_async()                               error: see below
  d read before the wait                                                                        NaN
  d, or a in registers, written before the wait                                                 error
  a wgmma without wgmma_fence() since the last wait, or that is never waited for                error
  warps of a warpgroup with other products, descriptors that mean no tile                       error
  an mbarrier with more arrivals or bytes than it was told, or in the middle of a phase at the end;
  the same phase waited for twice by a thread; none made yet, or not fenced for TMA              error
  a named barrier with other numbers of threads, or incomplete at the end                       error
  registers that nobody gives                                                                   no thread can go on

The asynchronous proxy: shared memory has a second copy, that which TMA and wgmma see. TMA writes both, ordinary stores
the first, and fence_async() makes them equal; a wgmma whose operands differ is the error. With the race checker, which
sees each store, only the storing thread's own fence does. Not found: a fence by another thread, without the checker;
reads by ordinary loads that nothing orders before a copy; accesses that only mbarriers or named barriers order, which
the race checker takes for races.
*/
#pragma once
#include <array>
#include <string>
#include "dev/emulator/emulator.h"

namespace emulator {

struct TensorMap {
    const char* base;
    int64_t dims[4], strides[4];  // of elements, and in bytes
    int box[4];
};

void mbarrier_init(void* barrier, int arrivals, Site site);
void mbarrier_fence_init();
void mbarrier_arrive(void* barrier, int bytes, const char* op, Site site);
void mbarrier_wait(void* barrier, int parity, Site site);
void named_barrier(int number, int threads, bool waits, Site site);

void tma_load(void* to, const TensorMap& map, void* barrier, std::array<int, 4> corner, Site site);
void fence_async();

void give_registers(int n, Site site);
void take_registers(int n, Site site);

struct Wgmma {
    int N;
    bool transposed_b, add;
    float* d;
    const uint32_t* a_registers;  // null: a_tile
    uint64_t a_tile, b_tile;
};
void wgmma(const Wgmma& own, Site site);
void wgmma_fence(Site site);
void wgmma_commit(Site site);
void wgmma_wait(int groups_left, Site site);

// Where it is in the block's dynamic shared memory, as an address there.
uint32_t shared_address(const void* pointer, const char* op, Site site);

// What emulator.cpp has for it: the running thread waits until it is woken; the block's dynamic memory, or null.
void park(const char* op, Site site);
void wake(unsigned thread);
struct SharedSpan {
    char* data;
    size_t bytes;
};
SharedSpan dynamic_shared();

// Called by emulator.cpp. Of a block: its begin; its end, by its last thread.
void hopper_begin_block();
void hopper_end_block();
// No thread can go on: lets something happen that was under way. False: there is nothing.
bool hopper_progress(Schedule schedule, unsigned random);
// What is under way, a line each, for a report.
std::string hopper_state();
// An ordinary store by the running thread, as the race checker sees it.
void note_generic_store(uintptr_t address, size_t bytes);

}  // namespace emulator

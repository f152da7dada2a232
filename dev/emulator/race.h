/*
The race checker. A race is two accesses to the same bytes, at least one of them a write, that nothing orders. With
-DANVIL_RACE, kernels are compiled with -fsanitize=thread and linked without libtsan: race.cpp implements the functions
that the compiler calls. What orders two accesses in CUDA:

  the same thread                               always
  threads of one warp                           a __syncwarp of both between
  threads of one block                          a barrier between
  any two threads                               __threadfence, then an atomic that the other one sees, then its fence;
                                                one thread does so for others, with a barrier before and after it

Shuffles and matrix instructions order nothing. libtsan's clocks cannot express these rules, and take 20 to 100 times as
long.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace emulator {

// The time of the running block, as the numbers of barriers so far. Updated by emulator.cpp.
struct RaceClock {
    uint32_t block = 0;        // numbered consecutively over all launches; 0: none
    uint32_t first_block = 1;  // of this launch
    uint32_t barriers = 0;     // that this block has passed
    uint32_t syncwarps[32]{};  // that each warp has passed
    uintptr_t stacks = 0, stacks_bytes = 0;
};
extern RaceClock race_clock;

void race_begin_launch(uint32_t num_blocks);
void race_begin_block();
// The races found in this launch, one per line; "" if none.
std::string race_end_launch();

}  // namespace emulator

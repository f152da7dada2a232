/*
The race checker: two accesses to the same bytes, one of them a write, that nothing orders. Built with -DANVIL_RACE, for
which kernels are compiled with -fsanitize=thread and linked without libtsan: race.cpp is the runtime of the
compiler's calls. What orders two accesses in CUDA:

  the same thread                               always
  threads of one warp                           a __syncwarp of both between
  threads of one block                          a barrier between
  any two threads                               __threadfence, then an atomic that the other one sees, then its fence

Shuffles and matrix instructions do not. libtsan's clocks cannot say this, and cost 20 to 100 times as much.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace emulator {

// Where the running block stands. Kept by emulator.cpp.
struct RaceClock {
    uint32_t block = 0;        // numbered through, over all launches; 0: none
    uint32_t first_block = 1;  // of this launch
    uint32_t barriers = 0;     // this block has passed
    uint32_t syncwarps[32]{};  // each warp has passed
    uintptr_t stacks = 0, stacks_bytes = 0;
};
extern RaceClock race_clock;

void race_begin_launch(uint32_t num_blocks);
void race_begin_block();
// What was found in this launch, a line each; "" if nothing.
std::string race_end_launch();

}  // namespace emulator

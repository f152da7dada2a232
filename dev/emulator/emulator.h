/*
CUDA kernels on the CPU: each CUDA thread is a fiber, a block's fibers take turns on one system thread, and blocks run
one after the other. What CUDA leaves undefined is an error here, with kernel, file, line and threads, or shows as NaN:

  a barrier that not all threads of the block reach, or not at the same line     error
  a shuffle or matrix instruction that lanes of its mask miss                    error
  shared memory read before it is written, cp.async not waited for               NaN
  shared memory out of bounds                                                    AddressSanitizer: every array is a
                                                                                 block of its own
  memory written and read without a barrier between                              error, with -DANVIL_RACE (race.cpp)
  what Hopper's chips do by themselves: see hopper.h

Errors are thrown by the launch, as Error. The order of threads is a choice: see Schedule. Not emulated: time, the
memory hierarchy, more than one block at a time (a block that waits for another one hangs), approximate instructions.

Kernels see none of this: they include <cuda_runtime.h>, which is the one in include/.
*/
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include "dev/emulator/include/vector_types.h"  // dim3, uint3
#include "dev/emulator/sanitizers.h"            // ANVIL_ASAN

namespace emulator {

struct Stream;

struct Site {
    const char* file;
    int line;
    bool operator==(const Site& other) const { return file == other.file && line == other.line; }
};
// Compilers call a file "./test/x.cu" if they found it by -I. and "test/x.cu" if it is the one they compile.
constexpr Site site_at(const char* file, int line) {
    return {file[0] == '.' && file[1] == '/' ? file + 2 : file, line};
}

// Bytes on their way from global to shared memory.
struct AsyncCopy {
    void* to;
    unsigned char bytes[16];
    unsigned group;
    Site site;
};

struct Thread {
    enum State : uint8_t { ready, waits_for_warp, waits_for_block, waits_for_event, done };
    uint3 index;  // threadIdx
    unsigned number = 0, lane = 0, warp = 0;
    State state = ready;
    const char* op = "";  // what it waits in, and where
    Site site{};
    uint32_t mask = 0;
    void* operands = nullptr;  // of its pending warp operation
    int predicate = 0;         // of its pending __syncthreads_or, _and or _count
    bool fenced = false;       // __threadfence() was called: its atomics order memory from now on
    std::vector<AsyncCopy> copies{};
    unsigned copy_group = 0;
    void* stack_pointer = nullptr;
    char* stack = nullptr;
    bool stack_abandoned = false;  // by a fiber that an error ended, with its frames on it
    void* sanitizer_stack = nullptr;
};

struct Context {
    Thread* thread = nullptr;  // null: host code
    uint3 block_index{};
    dim3 block_dim, grid_dim;
    const char* kernel = "";
};
inline constinit Context current;

// Which of the threads that could go on does. In order: the current warp as long as it can, low lanes first. Results
// that depend on the choice are wrong.
enum class Schedule { in_order, reverse, random };
struct Options {
    Schedule schedule = Schedule::in_order;  // ANVIL_EMULATOR_SCHEDULE
    unsigned seed = 1;                       // ANVIL_EMULATOR_SEED
    bool lazy_streams = false;               // ANVIL_EMULATOR_STREAMS=lazy: see runtime.cpp
    int gpus = 1;                            // ANVIL_EMULATOR_GPUS: of which each process has one
    size_t memory_bytes = size_t(4) << 30;   // ANVIL_EMULATOR_MEMORY_MIB: what cudaMalloc can give
};
Options& options();

// A stream that does nothing any more: what hangs on a GPU. Its work is done once it is no longer stalled.
void stall(Stream* stream, bool stalled);

// cudaEventQuery does not return: CUDA's calls may wait for what another thread does in it.
extern std::atomic<bool> queries_hang;

void run(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);

// A whole-warp operation. Every lane of `mask` leaves a pointer to its operands; the last to arrive runs `act` over
// them all, indexed by lane. Only what `orders_memory` (__syncwarp) makes lanes see each other's writes.
using Act = void (*)(void** operands, uint32_t mask, void* argument);
void warp_operation(const char* op, Site site, uint32_t mask, void* operands, Act act, void* argument,
                    bool orders_memory = false);
void block_barrier(const char* op, Site site);
enum class Vote { any, all, count };
int block_vote(const char* op, Site site, Vote vote, int predicate);
void fence();

void* shared_static(const void* key, size_t bytes, size_t alignment);
void* shared_dynamic();

void copy_async(void* to, const void* from, bool valid, Site site);
void copy_commit();
void copy_wait(unsigned groups_left);

// Ends the launch with an error.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* fmt, ...);

// For operations that one lane carries out for others: the race checker hears of the access where it was asked for.
void note_access(const void* pointer, size_t bytes, bool write, Site site);

}  // namespace emulator

#define EMULATOR_SITE const char *site_file_ = __builtin_FILE(), int site_line_ = __builtin_LINE()
#define EMULATOR_HERE (::emulator::site_at(site_file_, site_line_))
#if defined(__SANITIZE_THREAD__)
#define EMULATOR_UNCHECKED __attribute__((no_sanitize("thread")))
#else
#define EMULATOR_UNCHECKED
#endif
// For what reads nothing but its own arrays and those of the emulator's own callers.
#ifdef ANVIL_ASAN
#define EMULATOR_UNBOUNDED __attribute__((no_sanitize("address", "undefined")))
#else
#define EMULATOR_UNBOUNDED
#endif

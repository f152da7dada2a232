/*
Runs CUDA kernels on the CPU. Each CUDA thread is a fiber, the fibers of a block take turns on one system thread, and
blocks run one after the other. What CUDA leaves undefined is an error here, which names kernel, file, line and threads,
or yields NaN:

  a barrier that not all threads of the block reach, or not at the same line     error
  a shuffle or matrix instruction that a lane of its mask does not execute       error
  shared memory read before it is written or before its cp.async was waited for  NaN
  shared memory out of bounds                                                    AddressSanitizer: each array has an
                                                                                 allocation of its own
  memory written and read without a barrier between                              error, with -DANVIL_RACE (race.cpp)
  misuse of Hopper's asynchronous instructions                                   see hopper.h

The launch throws the error, as Error. The order in which threads run is selectable: see Schedule. Not emulated: time,
the memory hierarchy, concurrent blocks (a block that waits for another one hangs), approximate instructions.

Kernels do not know of the emulator: they include <cuda_runtime.h>, which is found in include/.
*/
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>
#include "dev/emulator/sanitizers.h"          // ANVIL_ASAN
#include "llmc/plan/include/runtime_types.h"  // dim3, uint3

namespace emulator {

struct Stream;

struct Site {
    const char* file;
    int line;
    bool operator==(const Site& other) const { return file == other.file && line == other.line; }
};
// Drops a leading "./": the compiler names an included file "./test/x.cu" and the file that it compiles "test/x.cu".
constexpr Site site_at(const char* file, int line) {
    return {file[0] == '.' && file[1] == '/' ? file + 2 : file, line};
}

// A cp.async in flight.
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
    const char* op = "";  // the operation it waits in; `site` is where
    Site site{};
    uint32_t mask = 0;
    void* operands = nullptr;  // of the pending warp operation
    int predicate = 0;         // of the pending __syncthreads_or, _and or _count
    bool fenced = false;       // has called __threadfence(): from then on its atomics order memory
    std::vector<AsyncCopy> copies{};
    unsigned copy_group = 0;
    void* stack_pointer = nullptr;
    char* stack = nullptr;
    bool stack_abandoned = false;  // an error ended the last fiber on this stack; its frames are still there
    void* sanitizer_stack = nullptr;
};

struct Context {
    Thread* thread = nullptr;  // null: host code
    uint3 block_index{};
    dim3 block_dim, grid_dim;
    const char* kernel = "";
};
inline constinit Context current;

// Which of the ready threads runs next. in_order: stay in the current warp while it has ready threads, low lanes first.
// A kernel whose result depends on the schedule is wrong.
enum class Schedule { in_order, reverse, random };
struct Options {
    Schedule schedule = Schedule::in_order;  // ANVIL_EMULATOR_SCHEDULE
    unsigned seed = 1;                       // ANVIL_EMULATOR_SEED
    bool lazy_streams = false;               // ANVIL_EMULATOR_STREAMS=lazy: see runtime.cpp
    int chip = 90;                           // ANVIL_EMULATOR_CHIP: its compute capability
    int gpus = 1;                            // ANVIL_EMULATOR_GPUS: GPUs of the host; each process uses one
    size_t memory_bytes = size_t(4) << 30;   // ANVIL_EMULATOR_MEMORY_MIB: memory of the GPU
    size_t pinned_bytes = SIZE_MAX;          // the most host memory that is pinned at a time
};
Options& options();

// A stalled stream makes no progress, as if its kernel hung. Its work is done once it is no longer stalled.
void stall(Stream* stream, bool stalled);

// While set, cudaEventQuery blocks, as a CUDA call may while another thread is inside the runtime.
extern std::atomic<bool> queries_hang;

void run(const char* kernel, dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);

// A kernel's argument. If set, run_elsewhere() gets each launch, and run() only what it refuses (dev/ptx).
struct Argument {
    const void* data;
    size_t bytes;
};
using RunElsewhere = bool (*)(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes,
                              const std::vector<Argument>& arguments);
inline constinit RunElsewhere run_elsewhere = nullptr;

// Begin and end of the device memory that an address lies in, from one cudaMalloc; two null pointers: in none.
std::pair<const char*, const char*> allocation_of(const void* address);

// A warp-level operation. Every lane of `mask` leaves a pointer to its operands; the last to arrive calls `act` with
// all pointers, indexed by lane. `orders_memory`: lanes see each other's earlier writes afterwards (only __syncwarp).
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

// Reports an access to the race checker for an operation that one lane carries out for others. `site` is the line that
// asked for it.
void note_access(const void* pointer, size_t bytes, bool write, Site site);

}  // namespace emulator

#define EMULATOR_SITE const char *site_file_ = __builtin_FILE(), int site_line_ = __builtin_LINE()
#define EMULATOR_HERE (::emulator::site_at(site_file_, site_line_))
#if defined(__SANITIZE_THREAD__)
#define EMULATOR_UNCHECKED __attribute__((no_sanitize("thread")))
#else
#define EMULATOR_UNCHECKED
#endif
// For functions that access only their own arrays and those of callers in the emulator.
#ifdef ANVIL_ASAN
#define EMULATOR_UNBOUNDED __attribute__((no_sanitize("address", "undefined")))
#else
#define EMULATOR_UNBOUNDED
#endif

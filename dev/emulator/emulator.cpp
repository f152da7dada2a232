// Fibers, scheduler, barriers and shared memory. See emulator.h.
#include "dev/emulator/emulator.h"
#include <sys/mman.h>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>
#include "dev/emulator/fiber.h"
#include "dev/emulator/hopper.h"
#include "dev/emulator/race.h"
#include "dev/emulator/sanitizers.h"  // ANVIL_MSAN, ANVIL_ASAN
#include "llmc/base/check.h"          // Error, format

#ifdef ANVIL_MSAN
#include <sanitizer/msan_interface.h>
#endif
#ifdef ANVIL_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef ANVIL_MSAN
// MSan does not check the host's heap: libraries that are not instrumented write to it without unpoisoning it, so
// memory would stay poisoned from its earlier use.
extern "C" void __sanitizer_malloc_hook(const volatile void* data, size_t bytes) { __msan_unpoison(data, bytes); }
#endif

namespace emulator {
namespace {

// Hopper's limits.
constexpr unsigned kMaxThreads = 1024, kMaxBlocksYZ = 65535;
constexpr size_t kMaxSharedBytes = 227 << 10, kMaxStaticBytes = 48 << 10;

#if defined(ANVIL_ASAN) || defined(ANVIL_MSAN) || defined(ANVIL_RACE)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kPage = 4096;

uint32_t low_bits(unsigned n) { return n >= 32 ? 0xFFFFFFFF : (1u << n) - 1; }

struct SharedArray {
    const void* key;  // null: the dynamic one
    char* data;
    size_t bytes;
};

// The running block, and state that is kept from one block to the next.
struct Block {
    std::vector<Thread> threads;
    unsigned num_threads = 0, num_warps = 0, num_live = 0;
    uint32_t ready[32], at_warp_operation[32];  // masks of lanes, by warp
    uint32_t ready_warps = 0;
    unsigned at_barrier = 0;
    Site barrier_site{};
    const char* barrier_op = "";
    std::vector<SharedArray> shared;
    size_t static_bytes = 0, dynamic_bytes = 0;
    const std::function<void()>* body = nullptr;
    std::string error, waiting;
    Schedule schedule = Schedule::in_order;
    std::minstd_rand random;
    char* stacks = nullptr;
    void* host_stack_pointer = nullptr;
    void* host_sanitizer_stack = nullptr;
    const void* host_stack = nullptr;
    size_t host_stack_bytes = 0;
    Thread* previous = nullptr;  // the one that ran before the last switch

    void prepare_stacks();
    void run();
    Thread* next_ready();
    void wake(Thread& thread) {
        thread.state = Thread::ready;
        ready[thread.warp] |= 1u << thread.lane;
        ready_warps |= 1u << thread.warp;
    }
    void switch_to(Thread* to);  // null: back to the host
    void wait(Thread::State state) {
        current.thread->state = state;
        switch_to(next_ready());
    }
    std::string who_waits() const;
};
Block block;

void finish_switch([[maybe_unused]] void* own_sanitizer_stack) {
#ifdef ANVIL_ASAN
    const void* from_stack;
    size_t from_bytes;
    __sanitizer_finish_switch_fiber(own_sanitizer_stack, &from_stack, &from_bytes);
    if (!block.previous) block.host_stack = from_stack, block.host_stack_bytes = from_bytes;
#endif
}

void Block::switch_to(Thread* to) {
    Thread* from = current.thread;
    if (from == to) return;
    previous = from;
    current.thread = to;
#ifdef ANVIL_ASAN
    void** save = !from ? &host_sanitizer_stack : from->state == Thread::done ? nullptr : &from->sanitizer_stack;
    __sanitizer_start_switch_fiber(save, to ? to->stack : host_stack, to ? kStackBytes : host_stack_bytes);
#endif
    emulator_switch(from ? &from->stack_pointer : &host_stack_pointer, to ? to->stack_pointer : host_stack_pointer);
    finish_switch(from ? from->sanitizer_stack : host_sanitizer_stack);
}

void fiber_entry() {
    finish_switch(nullptr);
    (*block.body)();
    Thread& thread = *current.thread;
    if (!thread.copies.empty()) fail("%zu cp.async copies were never waited for", thread.copies.size());
    if (block.num_live == 1) hopper_end_block();
    thread.state = Thread::done;
    block.num_live--;
    block.switch_to(block.next_ready());
    std::abort();  // a finished fiber never runs again
}

unsigned choose_bit(uint32_t bits, Schedule schedule, std::minstd_rand& random) {
    if (schedule == Schedule::in_order) return unsigned(std::countr_zero(bits));
    if (schedule == Schedule::reverse) return 31 - unsigned(std::countl_zero(bits));
    for (unsigned skip = unsigned(random() % unsigned(std::popcount(bits))); skip > 0; skip--) bits &= bits - 1;
    return unsigned(std::countr_zero(bits));
}

// The thread to run next; null if the block is finished.
Thread* Block::next_ready() {
    if (schedule == Schedule::random && num_live > 0 && random() % 8 == 0)
        hopper_progress(schedule, unsigned(random()));
    while (!ready_warps && num_live > 0 && hopper_progress(schedule, unsigned(random()))) {
    }
    if (!ready_warps) {
        if (num_live == 0) return nullptr;
        waiting =
            who_waits() + hopper_state();  // a member, because fail() leaves this stack without running destructors
        fail("no thread can go on:%s", waiting.c_str());
    }
    const bool stay = current.thread && schedule != Schedule::random && (ready_warps >> current.thread->warp & 1);
    const unsigned warp = stay ? current.thread->warp : choose_bit(ready_warps, schedule, random);
    const unsigned lane = choose_bit(ready[warp], schedule, random);
    ready[warp] &= ~(1u << lane);
    if (!ready[warp]) ready_warps &= ~(1u << warp);
    return &threads[warp * 32 + lane];
}

// "\n  100 threads (0..99) wait in __syncthreads at x.cuh:18", one line per place.
std::string Block::who_waits() const {
    struct Group {
        const Thread* thread;
        unsigned count, last;
    };
    std::vector<Group> groups;
    for (unsigned i = 0; i < num_threads; i++) {
        const Thread& t = threads[i];
        const auto same = [&](const Group& g) {
            const bool both_done = t.state == Thread::done && g.thread->state == Thread::done;
            return both_done || (t.state == g.thread->state && t.site == g.thread->site && t.mask == g.thread->mask);
        };
        bool found = false;
        for (Group& g : groups)
            if (same(g)) {
                g.count++, g.last = i, found = true;
                break;
            }
        if (!found) groups.push_back({&t, 1, i});
    }
    std::string text;
    for (const Group& g : groups) {
        text += format("\n  %u threads (%u..%u) ", g.count, g.thread->number, g.last);
        if (g.thread->state == Thread::done)
            text += "have exited";
        else
            text += format("wait in %s at %s:%d", g.thread->op, g.thread->site.file, g.thread->site.line);
        if (g.thread->state == Thread::waits_for_warp) text += format(" (mask %08x)", g.thread->mask);
    }
    return text;
}

void Block::prepare_stacks() {
    if (!stacks) {  // each has a guard page below it
        void* memory = mmap(nullptr, kMaxThreads * (kStackBytes + kPage), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        ensure(memory != MAP_FAILED);
        stacks = static_cast<char*>(memory);
        threads.resize(kMaxThreads);
        for (unsigned i = 0; i < kMaxThreads; i++) {
            char* guard = stacks + i * (kStackBytes + kPage);
            mprotect(guard, kPage, PROT_NONE);
            threads[i].stack = guard + kPage;
        }
    }
}

void Block::run() {
    num_live = num_threads;
    at_barrier = 0;
    ready_warps = low_bits(num_warps);
    for (unsigned w = 0; w < num_warps; w++) ready[w] = low_bits(num_threads - w * 32), at_warp_operation[w] = 0;
    const dim3 dim = current.block_dim;
    for (unsigned i = 0; i < num_threads; i++) {
        Thread& t = threads[i];
        t.index = {i % dim.x, i / dim.x % dim.y, i / (dim.x * dim.y)};
        t.number = i, t.lane = i % 32, t.warp = i / 32;
        t.state = Thread::ready;
        t.op = "", t.site = {}, t.mask = 0, t.fenced = false;
        t.copies.clear();
        t.copy_group = 0;
        t.sanitizer_stack = nullptr;
        char* const top = t.stack + kStackBytes;
#ifdef ANVIL_ASAN
        // The redzones that the last fiber left on this stack: of its outermost frames, or of all frames if an error
        // ended it.
        const size_t left = t.stack_abandoned ? kStackBytes : kPage;
        __asan_unpoison_memory_region(top - left, left);
#endif
#ifdef ANVIL_MSAN
        __msan_unpoison(top - 256, 256);
#endif
        t.stack_pointer = new_fiber(top, fiber_entry);
    }
#ifdef ANVIL_RACE
    race_begin_block();
#endif
    hopper_begin_block();
    current.thread = nullptr;
    switch_to(next_ready());
    current.thread = nullptr;
    for (unsigned i = 0; i < num_threads; i++) threads[i].stack_abandoned = !error.empty();
    for (const SharedArray& array : shared) std::free(array.data);
    shared.clear();
    static_bytes = 0;
}

char* new_shared(const void* key, size_t bytes, size_t alignment) {
    if (key) block.static_bytes += bytes;
    if (block.static_bytes > kMaxStaticBytes)
        fail("%zu bytes in SMEM_STATIC arrays; nvcc allows %zu", block.static_bytes, kMaxStaticBytes);
    if (block.static_bytes + block.dynamic_bytes > kMaxSharedBytes)
        fail("%zu bytes of shared memory a block, %zu of them dynamic; a GPU has at most %zu",
             block.static_bytes + block.dynamic_bytes, block.dynamic_bytes, kMaxSharedBytes);
    void* data = nullptr;
    if (posix_memalign(&data, std::max<size_t>(alignment, 16), bytes)) fail("no memory for shared arrays");
    std::memset(data, 0xFF, bytes);  // NaN in every floating-point type
#ifdef ANVIL_MSAN
    __msan_poison(data, bytes);
#endif
    block.shared.push_back({key, static_cast<char*>(data), bytes});
    return static_cast<char*>(data);
}

Options options_from_environment() {
    Options options;
    const auto value = [](const char* name) {
        const char* text = std::getenv(name);
        return std::string(text ? text : "");
    };
    const auto number = [&](const char* name, size_t fallback) {
        const std::string text = value(name);
        require(text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos,
                "%s=%s: expected a number", name, text.c_str());
        return text.empty() ? fallback : size_t(std::stoul(text));
    };
    const std::string schedule = value("ANVIL_EMULATOR_SCHEDULE"), streams = value("ANVIL_EMULATOR_STREAMS");
    require(schedule.empty() || schedule == "in_order" || schedule == "reverse" || schedule == "random",
            "ANVIL_EMULATOR_SCHEDULE=%s: expected in_order, reverse or random", schedule.c_str());
    require(streams.empty() || streams == "eager" || streams == "lazy",
            "ANVIL_EMULATOR_STREAMS=%s: expected eager or lazy", streams.c_str());
    if (schedule == "reverse") options.schedule = Schedule::reverse;
    if (schedule == "random") options.schedule = Schedule::random;
    options.seed = unsigned(number("ANVIL_EMULATOR_SEED", options.seed));
    options.lazy_streams = streams == "lazy";
    options.chip = int(number("ANVIL_EMULATOR_CHIP", size_t(options.chip)));
    options.gpus = int(number("ANVIL_EMULATOR_GPUS", size_t(options.gpus)));
    options.memory_bytes = number("ANVIL_EMULATOR_MEMORY_MIB", options.memory_bytes >> 20) << 20;
    return options;
}

}  // namespace

Options& options() {
    static Options options = options_from_environment();
    return options;
}

void fail(const char* fmt, ...) {
    {  // destroys the strings before the switch, after which no destructor runs
        char text[4096];
        va_list args;
        va_start(args, fmt);
        std::vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        block.error = format("kernel %s", current.kernel);
        if (const Thread* t = current.thread)
            block.error += format(", block (%u,%u,%u), thread (%u,%u,%u)", current.block_index.x, current.block_index.y,
                                  current.block_index.z, t->index.x, t->index.y, t->index.z);
        block.error.append(": ").append(text);
    }
    if (!current.thread) throw Error(kExitInternal, block.error);
    current.thread->state = Thread::done;
    block.switch_to(nullptr);  // does not return: run() throws on the host's stack
    std::abort();
}

#ifdef ANVIL_MSAN
// MSan does not check the host's stack. Libraries that are not instrumented write there without unpoisoning it, so
// memory may still be poisoned from its earlier use, and calls like fwrite and memcmp would be reported. This holds for
// every thread that runs a kernel, and for the main thread, which may only read what other processes print.
static void leave_host_unwatched() {
    [[maybe_unused]] thread_local const bool done = (__msan_scoped_disable_interceptor_checks(), true);
}
[[maybe_unused]] static const bool main_thread_is_unwatched = (leave_host_unwatched(), true);
#endif

void run(const char* kernel, dim3 grid, dim3 dim, size_t dynamic_shared_bytes, const std::function<void()>& body) {
    ensure(!current.thread);
#ifdef ANVIL_MSAN
    leave_host_unwatched();
#endif
    current.kernel = kernel;
    current.block_dim = dim, current.grid_dim = grid;
    const uint64_t num_threads = uint64_t(dim.x) * dim.y * dim.z, num_blocks = uint64_t(grid.x) * grid.y * grid.z;
    if (num_threads < 1 || num_threads > kMaxThreads || dim.z > 64)
        fail("blocks of %u x %u x %u threads: 1 to %u, and 64 in z", dim.x, dim.y, dim.z, kMaxThreads);
    if (num_blocks < 1 || grid.x > 0x7FFFFFFF || grid.y > kMaxBlocksYZ || grid.z > kMaxBlocksYZ)
        fail("a grid of %u x %u x %u blocks: at least 1, at most %u in y and z", grid.x, grid.y, grid.z, kMaxBlocksYZ);
    if (dynamic_shared_bytes > kMaxSharedBytes)
        fail("%zu bytes of shared memory a block; a GPU has at most %zu", dynamic_shared_bytes, kMaxSharedBytes);
    block.prepare_stacks();
    block.num_threads = unsigned(num_threads), block.num_warps = unsigned(num_threads + 31) / 32;
    block.dynamic_bytes = dynamic_shared_bytes;
    block.body = &body;
    block.error.clear();
    block.schedule = options().schedule;
    block.random.seed(options().seed);
#ifdef ANVIL_RACE
    race_clock.stacks = reinterpret_cast<uintptr_t>(block.stacks);
    race_clock.stacks_bytes = kMaxThreads * (kStackBytes + kPage);
    race_begin_launch(uint32_t(num_blocks));
#endif
    for (uint64_t i = 0; i < num_blocks && block.error.empty(); i++) {
        const uint64_t k = block.schedule == Schedule::reverse ? num_blocks - 1 - i : i;
        current.block_index = {unsigned(k % grid.x), unsigned(k / grid.x % grid.y), unsigned(k / grid.x / grid.y)};
        block.run();
    }
    std::string error = block.error;
#ifdef ANVIL_RACE
    const std::string races = race_end_launch();
    if (error.empty() && !races.empty()) error = "kernel " + std::string(kernel) + ": races:" + races;
#endif
    if (!error.empty()) throw Error(kExitInternal, error);
}

void warp_operation(const char* op, Site site, uint32_t mask, void* operands, Act act, void* argument,
                    [[maybe_unused]] bool orders_memory) {
    Thread& t = *current.thread;
    const unsigned first = t.warp * 32;
    if (!(mask >> t.lane & 1))
        fail("%s at %s:%d: the calling lane %u is not in its own mask %08x", op, site.file, site.line, t.lane, mask);
    mask &= low_bits(block.num_threads - first);  // lanes that a last, partial warp never had
    t.op = op, t.site = site, t.mask = mask, t.operands = operands;
    uint32_t& arrived = block.at_warp_operation[t.warp];
    arrived |= 1u << t.lane;
    bool all = (arrived & mask) == mask;
    for (uint32_t left = mask; all && left; left &= left - 1)
        all = block.threads[first + unsigned(std::countr_zero(left))].mask == mask;
    if (!all) return block.wait(Thread::waits_for_warp);

    void* by_lane[32] = {};
    for (uint32_t left = mask; left; left &= left - 1) {
        const Thread& other = block.threads[first + unsigned(std::countr_zero(left))];
        if (other.op != op || !(other.site == site))
            fail("one warp in two operations: lane %u in %s at %s:%d, lane %u in %s at %s:%d", t.lane, op, site.file,
                 site.line, other.lane, other.op, other.site.file, other.site.line);
        by_lane[other.lane] = other.operands;
    }
    if (act) act(by_lane, mask, argument);
    arrived &= ~mask;
#ifdef ANVIL_RACE
    if (orders_memory) race_clock.syncwarps[t.warp]++;
#endif
    for (uint32_t left = mask & ~(1u << t.lane); left; left &= left - 1)
        block.wake(block.threads[first + unsigned(std::countr_zero(left))]);
}

void block_barrier(const char* op, Site site) {
    Thread& t = *current.thread;
    t.op = op, t.site = site, t.mask = 0;
    if (block.at_barrier++ == 0)
        block.barrier_site = site, block.barrier_op = op;
    else if (!(block.barrier_site == site))
        fail("one block at two barriers: this thread in %s at %s:%d, others in %s at %s:%d", op, site.file, site.line,
             block.barrier_op, block.barrier_site.file, block.barrier_site.line);
    // Threads that have exited count as missing. CUDA may tolerate that, but it is never intended.
    if (block.at_barrier < block.num_threads) return block.wait(Thread::waits_for_block);
    block.at_barrier = 0;
#ifdef ANVIL_RACE
    race_clock.barriers++;
#endif
    for (unsigned i = 0; i < block.num_threads; i++)
        if (i != t.number) block.wake(block.threads[i]);
}

int block_vote(const char* op, Site site, Vote vote, int predicate) {
    current.thread->predicate = predicate != 0;
    block_barrier(op, site);
    int count = 0;
    for (unsigned i = 0; i < block.num_threads; i++) count += block.threads[i].predicate;
    block_barrier(op, {site.file, -site.line});  // nobody may change its vote before all have counted
    return vote == Vote::count ? count : vote == Vote::any ? count > 0 : count == int(block.num_threads);
}

void fence() { current.thread->fenced = true; }

void park(const char* op, Site site) {
    Thread& t = *current.thread;
    t.op = op, t.site = site, t.mask = 0;
    block.wait(Thread::waits_for_event);
}
void wake(unsigned thread) { block.wake(block.threads[thread]); }
SharedSpan dynamic_shared() {
    for (const SharedArray& array : block.shared)
        if (!array.key) return {array.data, array.bytes};
    return {};
}

void* shared_static(const void* key, size_t bytes, size_t alignment) {
    for (const SharedArray& array : block.shared)
        if (array.key == key) return array.data;
    return new_shared(key, bytes, alignment);
}

void* shared_dynamic() {
    if (block.dynamic_bytes == 0) fail("dynamic shared memory is used, but the launch gave none");
    for (const SharedArray& array : block.shared)
        if (!array.key) return array.data;
    return new_shared(nullptr, block.dynamic_bytes, 1024);
}

// Reads the source now, but writes the destination only in copy_wait(): until then it holds NaN.
void copy_async(void* to, const void* from, bool valid, Site site) {
    Thread& t = *current.thread;
    AsyncCopy& copy = t.copies.emplace_back(AsyncCopy{to, {}, t.copy_group, site});
    if (valid) {
        note_access(from, sizeof copy.bytes, false, site);
        std::memcpy(copy.bytes, from, sizeof copy.bytes);
    }
    note_access(to, sizeof copy.bytes, true, site);
    std::memset(to, 0xFF, sizeof copy.bytes);
#ifdef ANVIL_MSAN
    __msan_poison(to, sizeof copy.bytes);
#endif
}

void copy_commit() { current.thread->copy_group++; }

void copy_wait(unsigned groups_left) {
    Thread& t = *current.thread;
    std::erase_if(t.copies, [&](const AsyncCopy& copy) {
        if (copy.group + groups_left >= t.copy_group) return false;
        note_access(copy.to, sizeof copy.bytes, true, copy.site);  // on a GPU, at any time since copy_async()
        std::memcpy(copy.to, copy.bytes, sizeof copy.bytes);
        return true;
    });
}

#ifdef ANVIL_RACE
bool is_shared_memory(uintptr_t address) {
    for (const SharedArray& array : block.shared)
        if (address - reinterpret_cast<uintptr_t>(array.data) < array.bytes) return true;
    return false;
}
#else
void note_access(const void*, size_t, bool, Site) {}
#endif

}  // namespace emulator

// See race.h. This file is compiled without -fsanitize=thread, and nothing links libtsan.
#include "dev/emulator/race.h"
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>
#include "dev/emulator/emulator.h"
#include "dev/emulator/hopper.h"  // note_generic_store
#include "llmc/base/check.h"      // format

extern "C" char __executable_start;

namespace emulator {

RaceClock race_clock;
bool is_shared_memory(uintptr_t address);  // emulator.cpp

namespace {

enum Readers : uint8_t { one_thread, one_warp, several_warps };

// A recorded access: its thread, its time (barriers, syncwarps and releases so far), and its place in the code.
struct Stamp {
    uint32_t block = 0, code = 0, barriers = 0, syncwarps = 0, releases = 0;
    uint16_t thread = 0;
    bool atomic = false;
    Readers readers = one_thread;
};
struct Cell {
    Stamp write, read, read_elsewhere;  // the last of each; read_elsewhere: by another block than the last read's
};
constexpr uintptr_t kCellBytes = 1, kPageBytes = 4096;  // scales of MX are bytes
std::unordered_map<uintptr_t, std::vector<Cell>> pages;

// Remembers the last page, because most accesses are to the same page as the one before.
Cell& cell_at(uintptr_t address) {
    static uintptr_t number = UINTPTR_MAX;
    static Cell* page = nullptr;
    if (number != address / kPageBytes) {
        number = address / kPageBytes;
        std::vector<Cell>& cells = pages[number];
        if (cells.empty()) cells.resize(kPageBytes / kCellBytes);
        page = cells.data();
    }
    return page[address % kPageBytes / kCellBytes];
}

// An atomic after a fence releases the thread's earlier accesses, its warp's before the last __syncwarp, its block's
// before the last barrier. Acquired: which thread of the running block has seen the release, and when.
struct Release {
    uint32_t block, barriers, syncwarps, number;
    uint16_t thread;
    bool operator==(const Release&) const = default;
};
struct Acquired {
    Release release;
    uint32_t barriers, syncwarps;
    uint16_t thread;
    bool operator==(const Acquired&) const = default;
};
std::unordered_map<const void*, std::vector<Release>> releases;
uint32_t num_releases = 0;                                     // of this launch
std::unordered_map<uint32_t, std::vector<Acquired>> acquired;  // by the running block; per block that released

std::vector<Site> sites;  // of accesses that note_access() reported; their code is kSite + index
constexpr uint32_t kSite = 0x80000000;
std::set<std::pair<uint32_t, uint32_t>> reported;
std::string findings;

uint32_t number_of(Site site) {
    const auto found = std::find(sites.begin(), sites.end(), site);
    if (found == sites.end()) sites.push_back(site);
    return kSite + uint32_t((found == sites.end() ? sites.end() - 1 : found) - sites.begin());
}

std::string place(uint32_t code) {
    if (code & kSite) return format("%s:%d", sites[code - kSite].file, sites[code - kSite].line);
    const std::string command = format("addr2line -e /proc/%d/exe 0x%x", getpid(), code - 1);
    char line[1024] = "?";
    if (FILE* output = popen(command.c_str(), "r")) {
        if (std::fgets(line, sizeof line, output)) line[std::strcspn(line, "\n")] = 0;
        pclose(output);
    }
    return line;
}

bool ordered(const Stamp& before, bool atomic, bool shared) {
    const RaceClock& now = race_clock;
    const Thread& thread = *current.thread;
    if (before.block < now.first_block) return true;  // in an earlier launch, or no access at all
    if (before.atomic && atomic) return true;
    if (before.block != now.block) {
        if (shared) return true;  // the shared memory of another block, whose addresses are reused
        const auto found = acquired.find(before.block);
        if (found == acquired.end()) return false;
        for (const Acquired& a : found->second)
            if ((before.barriers < a.release.barriers ||
                 (before.thread == a.release.thread && before.releases <= a.release.number) ||
                 (before.readers != several_warps && before.thread / 32 == a.release.thread / 32 &&
                  before.syncwarps < a.release.syncwarps)) &&
                (a.barriers < now.barriers || a.thread == thread.number ||
                 (a.thread / 32 == thread.warp && a.syncwarps < now.syncwarps[thread.warp])))
                return true;
        return false;
    }
    if (before.readers == one_thread && before.thread == thread.number) return true;
    if (before.barriers < now.barriers) return true;
    return before.readers != several_warps && before.thread / 32 == thread.warp &&
           before.syncwarps < now.syncwarps[thread.warp];
}

void report(const char* kind, const Stamp& before, uint32_t code, bool shared) {
    if (!reported.insert({before.code, code}).second) return;
    findings += format("\n  %s on %s memory: thread %u of block %u at %s, then thread %u of block %u at %s", kind,
                       shared ? "shared" : "global", before.thread, before.block - race_clock.first_block,
                       place(before.code).c_str(), current.thread->number, race_clock.block - race_clock.first_block,
                       place(code).c_str());
}

void remember_read(Cell& cell, Stamp read) {
    Stamp& last = cell.read;
    if (last.block != read.block) cell.read_elsewhere = last;
    const bool same_warp = last.thread / 32 == read.thread / 32;
    // A __syncwarp since the last read orders this warp's earlier reads before all that its threads do from now on.
    const bool settled = last.readers != several_warps && same_warp && last.syncwarps < read.syncwarps;
    if (last.block == read.block && last.barriers == read.barriers && !settled) {
        if (last.thread == read.thread)
            read.readers = last.readers;
        else
            read.readers = same_warp ? std::max(last.readers, one_warp) : several_warps;
    }
    last = read;
}

// The emulated thread that the caller runs, if any. While a kernel runs on one thread of the host, another may be in
// code that calls this checker, too: that of a test that starts ranks.
constinit thread_local bool runs_launch = false;
const Thread* running() { return runs_launch ? current.thread : nullptr; }

void access(const void* pointer, size_t bytes, bool write, bool atomic, uint32_t code) {
    const Thread* thread = running();
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (!thread || address - race_clock.stacks < race_clock.stacks_bytes) return;  // the host, or a thread's own stack
    const bool shared = is_shared_memory(address);
    if (write && shared) note_generic_store(address, bytes);
    Stamp stamp;
    stamp.block = race_clock.block, stamp.code = code, stamp.barriers = race_clock.barriers;
    stamp.syncwarps = race_clock.syncwarps[thread->warp], stamp.thread = uint16_t(thread->number);
    stamp.releases = num_releases, stamp.atomic = atomic;
    for (uintptr_t at = address / kCellBytes * kCellBytes; at < address + bytes; at += kCellBytes) {
        Cell& cell = cell_at(at);
        if (!ordered(cell.write, atomic, shared))
            report(write ? "write after write" : "read after write", cell.write, code, shared);
        for (const Stamp* read : {&cell.read, &cell.read_elsewhere})
            if (write && !ordered(*read, atomic, shared)) report("write after read", *read, code, shared);
        if (write) cell.write = stamp;
        if (!write) remember_read(cell, stamp);
    }
}

// The thread acquires what others have released through this address, and releases its own earlier accesses.
void acquire(const void* pointer) {
    for (const Release& release : releases[pointer]) {
        std::vector<Acquired>& all = acquired[release.block];
        const Acquired one = {release, race_clock.barriers, race_clock.syncwarps[current.thread->warp],
                              uint16_t(current.thread->number)};
        if (all.empty() || !(all.back() == one)) all.push_back(one);
    }
}
void release(const void* pointer) {
    releases[pointer].push_back({race_clock.block, race_clock.barriers, race_clock.syncwarps[current.thread->warp],
                                 num_releases++, uint16_t(current.thread->number)});
}

// Called before every atomic that changes a value. CUDA's own are relaxed until the thread has called __threadfence().
void atomic_access(const void* pointer, size_t bytes, uint32_t code) {
    access(pointer, bytes, true, true, code);
    if (!running() || !running()->fenced) return;
    acquire(pointer);
    release(pointer);
}
// Called before atomic loads and stores with an order of their own (device_wrappers.h: published, publish).
void atomic_load(const void* pointer, size_t bytes, int order, uint32_t code) {
    access(pointer, bytes, false, true, code);
    if (running() && order == __ATOMIC_ACQUIRE) acquire(pointer);
}
void atomic_store(const void* pointer, size_t bytes, int order, uint32_t code) {
    atomic_access(pointer, bytes, code);
    if (running() && order == __ATOMIC_RELEASE) release(pointer);
}

uint32_t code_of(const void* address) {
    return uint32_t(reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(&__executable_start));
}

}  // namespace

void race_begin_launch(uint32_t num_blocks) {
    static uint32_t next_block = 1;
    race_clock.first_block = next_block;
    race_clock.block = next_block - 1;
    next_block += num_blocks;
    releases.clear();
    num_releases = 0;
    findings.clear();
    runs_launch = true;
}

void race_begin_block() {
    race_clock.block++;
    race_clock.barriers = 0;
    std::fill(std::begin(race_clock.syncwarps), std::end(race_clock.syncwarps), 0);
    acquired.clear();
}

std::string race_end_launch() {
    runs_launch = false;
    reported.clear();
    return findings;
}

void note_access(const void* pointer, size_t bytes, bool write, Site site) {
    access(pointer, bytes, write, false, number_of(site));
}

}  // namespace emulator

// ---- functions that the compiler calls ---------------------------------------------------------------------------
#define CODE emulator::code_of(__builtin_return_address(0))
#define ACCESSES(n)                                                                        \
    void __tsan_read##n(void* p) { emulator::access(p, n, false, false, CODE); }           \
    void __tsan_write##n(void* p) { emulator::access(p, n, true, false, CODE); }           \
    void __tsan_unaligned_read##n(void* p) { emulator::access(p, n, false, false, CODE); } \
    void __tsan_unaligned_write##n(void* p) { emulator::access(p, n, true, false, CODE); } \
    void __tsan_volatile_read##n(void* p) { emulator::access(p, n, false, false, CODE); }  \
    void __tsan_volatile_write##n(void* p) { emulator::access(p, n, true, false, CODE); }
#define ATOMICS(bits, T)                                                                                   \
    T __tsan_atomic##bits##_load(const volatile T* p, int order) {                                         \
        emulator::atomic_load(const_cast<T*>(p), sizeof(T), order, CODE);                                  \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                       \
    }                                                                                                      \
    void __tsan_atomic##bits##_store(volatile T* p, T value, int order) {                                  \
        emulator::atomic_store(const_cast<T*>(p), sizeof(T), order, CODE);                                 \
        __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                                                      \
    }                                                                                                      \
    T __tsan_atomic##bits##_fetch_add(volatile T* p, T value, int) {                                       \
        emulator::atomic_access(const_cast<T*>(p), sizeof(T), CODE);                                       \
        return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);                                             \
    }                                                                                                      \
    T __tsan_atomic##bits##_fetch_sub(volatile T* p, T value, int) {                                       \
        emulator::atomic_access(const_cast<T*>(p), sizeof(T), CODE);                                       \
        return __atomic_fetch_sub(p, value, __ATOMIC_SEQ_CST);                                             \
    }                                                                                                      \
    T __tsan_atomic##bits##_exchange(volatile T* p, T value, int) {                                        \
        emulator::atomic_access(const_cast<T*>(p), sizeof(T), CODE);                                       \
        return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);                                            \
    }                                                                                                      \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* expected, T value, int, int) {     \
        emulator::atomic_access(const_cast<T*>(p), sizeof(T), CODE);                                       \
        return __atomic_compare_exchange_n(p, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }                                                                                                      \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* expected, T value, int, int) {       \
        emulator::atomic_access(const_cast<T*>(p), sizeof(T), CODE);                                       \
        return __atomic_compare_exchange_n(p, expected, value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);  \
    }

extern "C" {
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, size_t n) { emulator::access(p, n, false, false, CODE); }
void __tsan_write_range(void* p, size_t n) { emulator::access(p, n, true, false, CODE); }
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void* __tsan_memcpy(void* to, const void* from, size_t n) {
    emulator::access(from, n, false, false, CODE);
    emulator::access(to, n, true, false, CODE);
    return std::memcpy(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
    emulator::access(to, n, true, false, CODE);
    return std::memset(to, value, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
    emulator::access(from, n, false, false, CODE);
    emulator::access(to, n, true, false, CODE);
    return std::memmove(to, from, n);
}
}

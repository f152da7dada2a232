/*
The device `Cpu`: its threads, its memory, and the parallel loops of every op.

Bit-identical results at any number of threads come from one rule: threads divide outputs, never sums. A sum over rows
is cut into chunks whose size does not depend on the number of threads, and the chunks are added in order (reduce.h).
*/
#pragma once
#include <sys/mman.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif
#include "llmc/base/check.h"         // ensure, require
#include "llmc/base/head_rows.h"     // cpu_head_rows
#include "llmc/base/memory.h"        // aligned
#include "llmc/base/op_scope.h"      // OpScope
#include "llmc/ops/op_cost.h"        // elements_cost
#include "llmc/platform/platform.h"  // prefer_huge_pages

// The indices [begin, end) that a thread has left, with begin in the upper half of the word and end in the lower.
class alignas(64) IndexRun {
    std::atomic<uint64_t> left_{0};

    template <class Next>
    bool take(uint64_t& before, Next&& next) {
        before = left_.load(std::memory_order_relaxed);
        while (before >> 32 < uint32_t(before))
            if (left_.compare_exchange_weak(before, next(before), std::memory_order_relaxed)) return true;
        return false;
    }

public:
    void set(int64_t begin, int64_t end) { left_.store(uint64_t(begin) << 32 | uint64_t(end)); }
    // -1 if none is left
    int64_t take_first() {
        uint64_t before;
        return take(before, [](uint64_t run) { return run + (uint64_t(1) << 32); }) ? int64_t(before >> 32) : -1;
    }
    int64_t take_last() {
        uint64_t before;
        return take(before, [](uint64_t run) { return run - 1; }) ? int64_t(uint32_t(before)) - 1 : -1;
    }
};

struct Cpu {
    static constexpr bool kAsynchronous = false;  // an op is done when it returns
    // The CPU has no graphs: ops run at once.
    struct Graph {
        explicit Graph(Cpu&) {}
        static constexpr bool is_captured() { return false; }
        void capture(auto&&) { ensure(false); }
        void replay() { ensure(false); }
        void clear() {}
    };
    static constexpr double kExpFlops = 20;  // FLOPs of exp(): range reduction, polynomial, scaling (simd.h)
    int num_threads;
    OpObserver* observer = nullptr;  // notified of every op (llmc/base/op_scope.h)

    // threads = 0: OMP_NUM_THREADS, or else one per core.
    explicit Cpu(int threads = 0) : num_threads(threads) {
#ifdef _OPENMP
        if (num_threads == 0) num_threads = omp_get_max_threads();
#else
        num_threads = 1;
#endif
        scratch_.resize(size_t(num_threads) + 2);
        runs = std::vector<IndexRun>(size_t(num_threads));
    }
    Cpu(const Cpu&) = delete;
    Cpu& operator=(const Cpu&) = delete;
    ~Cpu() {
        for (const Block& block : scratch_)
            if (block.data) release(block.data, block.bytes);
    }

    // Memory in huge pages where the system grants them, filled with NaN. Throws an Error if there is not enough.
    void* allocate(size_t bytes) {
        // Huge pages are aligned, and mmap() need not be: what is mapped beyond is returned.
        const size_t size = pages(bytes), align = size < kHugePage ? kPage : kHugePage;
        void* mapped = mmap(nullptr, size + align - kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        require(mapped != MAP_FAILED, "cannot allocate %.1f MiB of memory: %s. Lower --batch-size or --seq-len",
                double(bytes) / (1 << 20), std::strerror(errno));
        const size_t before = (align - reinterpret_cast<size_t>(mapped) % align) % align,
                     after = align - kPage - before;
        char* data = static_cast<char*>(mapped) + before;
        if (before > 0) munmap(mapped, before);
        if (after > 0) munmap(data + size, after);
        prefer_huge_pages(data, size);
        std::memset(data, 0xFF, bytes);
        return data;
    }
    void release(void* data, size_t bytes) { munmap(data, pages(bytes)); }

    // Working memory of n floats for one op, reused by the next; its content is undefined. shared_scratch() is shared
    // by all threads; thread_scratch(), for use inside parallel loops, is private to each. An op that calls other ops
    // uses outer_scratch(), because those use shared_scratch().
    float* shared_scratch(int64_t n) { return grown(scratch_[size_t(num_threads)], n); }
    float* outer_scratch(int64_t n) { return grown(scratch_.back(), n); }
    float* thread_scratch(int64_t n) { return grown(scratch_[size_t(thread())], n); }

    std::vector<IndexRun> runs;  // of parallel_tasks, one per thread

    void reserve_workspace(size_t) {}  // it grows as needed

    // The number of rows of logits that the head computes at a time, of N in all (head_rows.h).
    int64_t head_rows(int64_t N, int64_t Vp, size_t) const { return cpu_head_rows(N, Vp); }

    // Copies to a device and back, asynchronous on a GPU. On a CPU the data is already where it is needed.
    template <class T>
    struct ToDevice {
        ToDevice(Cpu&, int64_t) {}
        const T* send(const T* host, int64_t) { return host; }
    };
    template <class T>
    struct ToHost {
        std::deque<T> values;
        explicit ToHost(Cpu&) {}
        void send(const T* from) { values.push_back(*from); }
        T receive() {
            const T value = values.front();
            values.pop_front();
            return value;
        }
    };

    // The time of steps. A CPU is done with a step when the host asks for it.
    struct Stopwatch {
        std::chrono::steady_clock::time_point last = {};
        explicit Stopwatch(Cpu&) {}
        void start() { last = std::chrono::steady_clock::now(); }
        void lap() {}
        double lap_s() {
            const auto before = std::exchange(last, std::chrono::steady_clock::now());
            return std::chrono::duration<double>(last - before).count();
        }
    };

    // For an Arena: memory that another device would copy from and to while it computes.
    struct HostMemory {
        Cpu& cpu;
        void* allocate(size_t bytes) { return cpu.allocate(bytes); }
        void release(void* data, size_t bytes) { cpu.release(data, bytes); }
    };
    // As on a GPU, without waiting for anything.
    struct SlotCopies {
        SlotCopies(Cpu&, size_t) {}
        template <class Copies>
        void fill(size_t, Copies&& copies) {
            copies([](void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); });
        }
        void await(size_t) {}
        template <class Copies>
        void empty(size_t slot, Copies&& copies) {
            fill(slot, copies);
        }
        void finish() {}
    };

    struct HostCopies {
        explicit HostCopies(Cpu&) {}
        void add(void* to, const void* from, size_t bytes) {
            if (bytes > 0) std::memcpy(to, from, bytes);
        }
        void finish() {}
    };

    static int thread() {
#ifdef _OPENMP
        return omp_get_thread_num();
#else
        return 0;
#endif
    }

private:
    struct Block {
        void* data = nullptr;
        size_t bytes = 0;
    };
    std::vector<Block> scratch_;  // one per thread, then the shared one and the outer one

    // Memory from 256 KB on is worth a huge page: steps of the quickstart's model are 1.03 to 1.05 times as fast.
    static constexpr size_t kPage = 4096, kHugePage = size_t(2) << 20, kHugeFrom = size_t(256) << 10;
    static size_t pages(size_t bytes) {
        const size_t unit = bytes < kHugeFrom ? kPage : kHugePage;
        return (std::max<size_t>(bytes, 1) + unit - 1) / unit * unit;
    }

    float* grown(Block& block, int64_t n) {
        const size_t bytes = size_t(n) * sizeof(float);
        if (block.bytes < bytes) {
            if (block.data) release(block.data, block.bytes);
            block = {};
            block = {allocate(bytes), bytes};
        }
        return static_cast<float*>(block.data);
    }
};

// body(i) for i in [0, n), in one contiguous run per thread.
template <class Body>
void parallel_for([[maybe_unused]] Cpu& cpu, int64_t n, Body&& body) {
#pragma omp parallel for schedule(static) num_threads(cpu.num_threads) if (n > 1)
    for (int64_t i = 0; i < n; i++) body(i);
}

// The number of threads that can run at once: no more than the cores that this process may use.
inline int busy_threads(const Cpu& cpu) {
#ifdef _OPENMP
    return std::min(cpu.num_threads, omp_get_num_procs());
#else
    return cpu.num_threads;
#endif
}

// The tasks [begin, end) of n that parallel_tasks() gives to a thread at first.
struct TaskRun {
    int64_t begin, end;
};
inline TaskRun run_of_thread(const Cpu& cpu, int64_t n, int64_t thread) {
    return {n * thread / cpu.num_threads, n * (thread + 1) / cpu.num_threads};
}
// Whether the calling thread has not done the task before this one, or will not do the one after it: `task` is at an
// end of its run, or from the run of another thread.
inline bool begins_run(const Cpu& cpu, int64_t n, int64_t task) {
    const auto [begin, end] = run_of_thread(cpu, n, Cpu::thread());
    return task <= begin || task >= end;
}
inline bool ends_run(const Cpu& cpu, int64_t n, int64_t task) {
    const auto [begin, end] = run_of_thread(cpu, n, Cpu::thread());
    return task < begin || task + 1 >= end;
}

// parallel_for() with work stealing, for bodies of some 10 us or more: a thread that has finished its run takes indices
// from the ends of the runs of others, which other processes or a hyperthread may have delayed.
template <class Body>
void parallel_tasks(Cpu& cpu, int64_t n, Body&& body) {
    const int64_t threads = cpu.num_threads;
    if (threads == 1 || n <= 1) return parallel_for(cpu, n, body);
    ensure(n <= std::numeric_limits<uint32_t>::max());
    for (int64_t i = 0; i < threads; i++) {
        const auto [begin, end] = run_of_thread(cpu, n, i);
        cpu.runs[size_t(i)].set(begin, end);
    }
#pragma omp parallel num_threads(cpu.num_threads)
    {
        const int64_t own = Cpu::thread();
        for (int64_t i; (i = cpu.runs[size_t(own)].take_first()) >= 0;) body(i);
        for (int64_t other = own + 1; other < own + threads; other++)
            for (int64_t i; (i = cpu.runs[size_t(other % threads)].take_last()) >= 0;) body(i);
    }
}

// body(begin, end) over [0, n) in chunks of `chunk`, for bodies too small to be called per element.
template <class Body>
void parallel_chunks(Cpu& cpu, int64_t n, int64_t chunk, Body&& body) {
    parallel_for(cpu, (n + chunk - 1) / chunk, [&](int64_t i) { body(i * chunk, std::min(n, (i + 1) * chunk)); });
}

// Called around the computation of a training step. On a GPU, GEMMs are timed only in between.
inline void begin_training_step(Cpu&) {}
inline void end_training_step(Cpu&) {}

// What host code needs from any device: clearing, copies to and from it, and a mean (summed in double, in order).
template <class T>
void fill_zero(Cpu& cpu, T* data, int64_t n) {
    const OpScope op(cpu, __func__, elements_cost<T>(1, 0, n));
    static_assert(std::is_trivially_copyable_v<T>);
    parallel_chunks(cpu, n, 1 << 16, [=](int64_t begin, int64_t end) {
        std::memset(static_cast<void*>(data + begin), 0, size_t(end - begin) * sizeof(T));
    });
}
template <class T>
void copy_to_device(Cpu&, T* to, const T* from, int64_t n) {
    std::memcpy(to, from, size_t(n) * sizeof(T));
}
template <class T>
void copy_to_host(Cpu&, T* to, const T* from, int64_t n) {
    std::memcpy(to, from, size_t(n) * sizeof(T));
}
template <class T>
void copy_on_device(Cpu& cpu, T* to, const T* from, int64_t n) {
    const OpScope op(cpu, __func__, elements_cost<T>(2, 0, n));
    parallel_chunks(cpu, n, 1 << 16, [=](int64_t begin, int64_t end) {
        std::memcpy(to + begin, from + begin, size_t(end - begin) * sizeof(T));
    });
}
inline double mean(Cpu&, const float* data, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += double(data[i]);
    return sum / double(n);
}

/*
What bench.h needs to time the CPU. Tensors that fit in a cache stay there from run to run, as they may in training:
above 100 % of a copy means that they did.
*/
#pragma once
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>
#include "llmc/cpu/cast.h"    // cast
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/simd.h"    // F32x16, fma

using Device = Cpu;

inline constexpr BenchShape kShapes[] = {
    {"small", 12, 64, 128, 4, 65, 128, 4, gpt2_params(4, 128, 128, 64)},
    {"124M", 4, 64, 768, 12, 50257, 50304, 12, 12 * 768 * 768 + 13 * 768},  // one layer's parameters
};

// What an exponential counts for in the FLOPs: its range reduction, polynomial and scaling (llmc/cpu/simd.h).
inline constexpr double kExpFlops = 20;

template <class T>
using Values = std::vector<T>;

// n numbers in [-scale, scale)
template <class T>
Values<T> random_values(Cpu& cpu, int64_t n, float scale) {
    Rng rng(uint64_t(n), Stream::tests);
    std::vector<float> x(static_cast<size_t>(n));
    for (float& value : x) value = scale * (float(rng.next() >> 40) * 0x1p-23f - 1);
    Values<T> values(x.size());
    cast(cpu, values.data(), x.data(), n);
    return values;
}

template <class T>
Values<T> values_of(Cpu&, std::vector<T> values) {
    return values;
}

inline std::string device_text(Cpu& cpu) { return format("CPU, %d threads", cpu.num_threads); }

// Runs f for about a fifth of a second, five times at least, after a warm-up.
struct Stopwatch {
    bool smoke;

    Stopwatch(Cpu&, bool smoke) : smoke(smoke) {}

    template <class F>
    Timing time(F&& f) {
        using Clock = std::chrono::steady_clock;
        const size_t least = smoke ? 2 : 5, most = smoke ? 2 : 10000;
        f();
        std::vector<double> seconds;
        for (double total = 0; seconds.size() < least || (total < 0.2 && seconds.size() < most);) {
            const Clock::time_point start = Clock::now();
            f();
            seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
            total += seconds.back();
        }
        return timing_of(seconds);
    }
};

inline constexpr bool kHasCopyRival = false;
inline Timing copy_time(Cpu&, Stopwatch&, double) { return {}; }

// bytes/s, read and written, of a large copy
#define kCopyText "a copy of 128 MiB"
inline double copy_peak(Cpu& cpu, Stopwatch& stopwatch) {
    constexpr int64_t kChunk = 1 << 20;
    const int64_t bytes = stopwatch.smoke ? kChunk : 128 << 20;
    std::vector<char> from(size_t(bytes), 1), to(size_t(bytes), 2);
    const Timing timing = stopwatch.time([&] {
        parallel_chunks(cpu, bytes, kChunk, [&](int64_t begin, int64_t end) {
            std::memcpy(&to[size_t(begin)], &from[size_t(begin)], size_t(end - begin));
        });
    });
    return 2 * double(bytes) / timing.fastest;
}

// FLOP/s of multiply-adds that never leave the registers: enough independent chains to hide the latency
#define kComputeText "multiply-adds in registers"
inline double compute_peak(Cpu& cpu, Stopwatch& stopwatch, bool) {
    constexpr int kChains = 12 / kRegisters > 0 ? 12 / kRegisters : 1;
    const int64_t rounds = stopwatch.smoke ? 1 << 10 : 1 << 20;
    std::vector<float> sink(size_t(cpu.num_threads) * kLanes);
    const Timing timing = stopwatch.time([&] {
        parallel_for(cpu, cpu.num_threads, [&](int64_t thread) {
            const F32x16 factor = load(sink.data()) + 0.5f;
            F32x16 sums[kChains];
            for (F32x16& sum : sums) sum = factor;
            for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 12
                for (int i = 0; i < kChains; i++) sums[i] = fma(sums[i], factor, factor);
            for (int i = 1; i < kChains; i++) sums[0] += sums[i];
            store(&sink[size_t(thread) * kLanes], sums[0] * 0);
        });
    });
    return 2. * kLanes * kChains * double(rounds) * cpu.num_threads / timing.fastest;
}

/*
How an op is timed: `make bench OP=gelu` runs dev/bench/gelu.cu, which includes the op itself, never a copy.

  Bench bench("gelu", Bound::memory);
  for (const BenchShape& s : kShapes) bench.run("gelu_forward", s, bytes, flops, [&] { gelu_forward(...); });

One line an op and shape: the median of the runs with the fastest and the 90th percentile, GB/s and GFLOP/s from the
formulas given, and the percentage of what this machine does when it does nothing else, measured in the same run: a
large copy, or fused multiply-adds in registers. `bytes` counts every tensor once, read or written. Above 100 % of a
copy means that the tensors stayed in a cache.
*/
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>
#include "llmc/base/rng.h"    // Rng
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/simd.h"    // F32x16, fma

struct BenchShape {
    const char* name;
    int64_t B, T, C, NH, V, Vp;
    int64_t num_params;  // for what runs over all parameters; of GPT-2 124M, one layer's
    int64_t N() const { return B * T; }
    int64_t HS() const { return C / NH; }
};

inline constexpr BenchShape kShapes[] = {
    {"small", 12, 64, 128, 4, 65, 128, 809856},
    {"124M", 4, 64, 768, 12, 50257, 50304, 7087872},
};

enum class Bound { memory, compute };

// What an exponential counts for in the FLOPs: its range reduction, polynomial and scaling (llmc/cpu/simd.h).
inline constexpr double kExpFlops = 20;

using Floats = std::vector<float>;

// n floats in [-scale, scale)
inline Floats random_floats(int64_t n, float scale = 1) {
    Rng rng(uint64_t(n), Stream::tests);
    Floats x(static_cast<size_t>(n));
    for (float& value : x) value = scale * (float(rng.next() >> 40) * 0x1p-23f - 1);
    return x;
}

inline std::vector<int32_t> random_tokens(int64_t n, int64_t V) {
    Rng rng(uint64_t(n), Stream::tests);
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens) token = int32_t(rng.below(uint64_t(V)));
    return tokens;
}

struct Timing {
    double median, fastest, p90;  // seconds
};

// Runs f for about a fifth of a second, five times at least, after a warm-up.
template <class F>
Timing time_of(F f) {
    using Clock = std::chrono::steady_clock;
    f();
    std::vector<double> seconds;
    for (double total = 0; seconds.size() < 5 || (total < 0.2 && seconds.size() < 10000);) {
        const Clock::time_point start = Clock::now();
        f();
        seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
        total += seconds.back();
    }
    std::sort(seconds.begin(), seconds.end());
    return {seconds[seconds.size() / 2], seconds[0], seconds[seconds.size() * 9 / 10]};
}

// bytes/s, read and written, of copying 128 MiB
inline double copy_peak(Cpu& cpu) {
    constexpr int64_t kBytes = 128 << 20, kChunk = 1 << 20;
    std::vector<char> from(kBytes, 1), to(kBytes, 2);
    const Timing timing = time_of([&] {
        parallel_chunks(cpu, kBytes, kChunk, [&](int64_t begin, int64_t end) {
            std::memcpy(&to[size_t(begin)], &from[size_t(begin)], size_t(end - begin));
        });
    });
    return 2 * double(kBytes) / timing.fastest;
}

// FLOP/s of multiply-adds that never leave the registers: enough independent chains to hide the latency
inline double fma_peak(Cpu& cpu) {
    constexpr int kChains = 12 / kRegisters > 0 ? 12 / kRegisters : 1;
    constexpr int64_t kRounds = 1 << 20;
    Floats sink(size_t(cpu.num_threads) * kLanes);
    const Timing timing = time_of([&] {
        parallel_for(cpu, cpu.num_threads, [&](int64_t thread) {
            const F32x16 factor = load(sink.data()) + 0.5f;
            F32x16 sums[kChains];
            for (F32x16& sum : sums) sum = factor;
            for (int64_t round = 0; round < kRounds; round++)
#pragma GCC unroll 12
                for (int i = 0; i < kChains; i++) sums[i] = fma(sums[i], factor, factor);
            for (int i = 1; i < kChains; i++) sums[0] += sums[i];
            store(&sink[size_t(thread) * kLanes], sums[0] * 0);
        });
    });
    return 2. * kLanes * kChains * kRounds * cpu.num_threads / timing.fastest;
}

struct Bench {
    Cpu cpu;
    Bound bound;
    double peak;

    // Measures the machine's peak and prints it.
    Bench(const char* op, Bound bound) : bound(bound) {
        peak = bound == Bound::memory ? copy_peak(cpu) : fma_peak(cpu);
        std::printf("# %s on the CPU, %d threads; 100 %% is %.1f %s\n", op, cpu.num_threads, peak / 1e9,
                    bound == Bound::memory ? "GB/s: a copy of 128 MiB" : "GFLOP/s: multiply-adds in registers");
    }

    template <class F>
    void run(const char* what, const BenchShape& shape, double bytes, double flops, F f) {
        const Timing timing = time_of(f);
        const double used = (bound == Bound::memory ? bytes : flops) / timing.median;
        std::printf("%-30s %-5s  %9.4f ms  (min %9.4f, p90 %9.4f)  %7.2f GB/s  %8.2f GFLOP/s  %4.0f %%\n", what,
                    shape.name, timing.median * 1e3, timing.fastest * 1e3, timing.p90 * 1e3,
                    bytes / timing.median / 1e9, flops / timing.median / 1e9, 100 * used / peak);
        std::fflush(stdout);
    }
};

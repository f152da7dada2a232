/*
Measured peak rates of this CPU, for benchmarks (dev/bench), --profile and MFU.

  CpuStopwatch stopwatch(cpu, false);            true: a smoke test of tiny sizes and two runs; rates are meaningless
  copy_peak(cpu, stopwatch)                      bytes/s          compute_peak<bf16>(cpu, stopwatch)    FLOP/s
*/
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>
#include "llmc/base/profile.h"    // PeakRates
#include "llmc/base/timing.h"     // Timing, timing_of
#include "llmc/cpu/amx.h"         // AmxTiles
#include "llmc/cpu/device.h"      // Cpu, parallel_for
#include "llmc/cpu/simd.h"        // F32x16, fma
#include "llmc/cpu/gemm_tiles.h"  // tile_kernel

// Runs f for about 0.2 seconds, at least five times, after a warm-up.
struct CpuStopwatch {
    bool smoke;

    CpuStopwatch(Cpu&, bool smoke) : smoke(smoke) {}

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

// bytes/s of a large copy, reads plus writes
inline constexpr const char* kCpuCopyText = "a copy of 128 MiB";
inline double copy_peak(Cpu& cpu, CpuStopwatch& stopwatch) {
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

// FLOP/s of all threads together. Each repeats `burst`, which is `flops` FLOPs in a small fraction of a millisecond,
// for 50 ms, and its fastest run counts: other programs delay some runs, but hardly all. There is at most one thread
// per core.
template <class Burst>
double burst_peak(Cpu& cpu, bool smoke, double flops, Burst&& burst) {
    using Clock = std::chrono::steady_clock;
    const int threads = busy_threads(cpu);
    std::vector<double> fastest(size_t(threads), 1);
    parallel_for(cpu, threads, [&](int64_t thread) {
        const Clock::time_point end = Clock::now() + std::chrono::milliseconds(smoke ? 0 : 50);
        double& best = fastest[size_t(thread)];
        for (int i = 0; i < 3 || Clock::now() < end; i++) {
            const Clock::time_point start = Clock::now();
            burst();
            best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
        }
    });
    double sum = 0;
    for (const double seconds : fastest) sum += flops / seconds;
    return sum;
}

// Keeps the compiler from removing what a burst computes.
inline void keep(const void* data) { asm volatile("" : : "r"(data) : "memory"); }

// FLOP/s of fused multiply-adds in registers, with enough independent chains to hide the latency
inline constexpr const char* kCpuComputeText = "multiply-adds in registers";
inline double multiply_add_peak(Cpu& cpu, CpuStopwatch& stopwatch) {
    constexpr int kChains = 12 / kRegisters > 0 ? 12 / kRegisters : 1;
    const int64_t rounds = stopwatch.smoke ? 1 << 10 : 1 << 15;
    return burst_peak(cpu, stopwatch.smoke, 2. * kLanes * kChains * double(rounds), [=] {
        float zeros[kLanes] = {};
        keep(zeros);
        const F32x16 factor = load(zeros) + 0.5f;
        F32x16 sums[kChains];
        for (F32x16& sum : sums) sum = factor;
        for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 12
            for (int i = 0; i < kChains; i++) sums[i] = fma(sums[i], factor, factor);
        for (int i = 1; i < kChains; i++) sums[0] += sums[i];
        store(zeros, sums[0]);
        keep(zeros);
    });
}

#if defined(__x86_64__)
// FLOP/s of AMX multiplications whose operands and sums stay in tiles
inline double tile_peak(Cpu& cpu, CpuStopwatch& stopwatch) {
    const int64_t rounds = stopwatch.smoke ? 1 << 8 : 1 << 12;
    return burst_peak(cpu, stopwatch.smoke, 4. * 2 * kTmmRows * kTmmCols * kTmmDepth * double(rounds), [=] {
        AmxTiles::prepare();
        const auto zero = [](auto... tiles) { (AmxTiles::zero(tiles), ...); };
        zero(Tmm<0>{}, Tmm<1>{}, Tmm<2>{}, Tmm<3>{}, Tmm<4>{}, Tmm<5>{}, Tmm<6>{}, Tmm<7>{});
        for (int64_t round = 0; round < rounds; round++) {
            AmxTiles::multiply(Tmm<0>{}, Tmm<4>{}, Tmm<6>{});
            AmxTiles::multiply(Tmm<1>{}, Tmm<4>{}, Tmm<7>{});
            AmxTiles::multiply(Tmm<2>{}, Tmm<5>{}, Tmm<6>{});
            AmxTiles::multiply(Tmm<3>{}, Tmm<5>{}, Tmm<7>{});
        }
    });
}
#endif

#if defined(__AVX512BF16__)
inline constexpr const char* kBf16Text = "vdpbf16ps in registers";
inline double register_peak(Cpu& cpu, CpuStopwatch& stopwatch) {
    constexpr int kChains = 12;
    const int64_t rounds = stopwatch.smoke ? 1 << 10 : 1 << 15;
    return burst_peak(cpu, stopwatch.smoke, 4. * kLanes * kChains * double(rounds), [=] {
        const __m512bh factor = __m512bh(_mm512_set1_epi16(0x3C00));  // 0.0078
        __m512 sums[kChains];
        for (__m512& sum : sums) sum = _mm512_set1_ps(1);
        for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 12
            for (int i = 0; i < kChains; i++) sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
        for (int i = 1; i < kChains; i++) sums[0] += sums[i];
        keep(sums);
    });
}
#else
inline constexpr const char* kBf16Text = "no bf16 product here: fp32's";
inline double register_peak(Cpu& cpu, CpuStopwatch& stopwatch) { return multiply_add_peak(cpu, stopwatch); }
#endif

inline double bf16_peak(Cpu& cpu, CpuStopwatch& stopwatch) {
#if defined(__x86_64__)
    if (tile_kernel()) return tile_peak(cpu, stopwatch);
#endif
    return register_peak(cpu, stopwatch);
}

// The peak FLOP/s for GEMMs in T, and a description of it.
template <class T>
double compute_peak(Cpu& cpu, CpuStopwatch& stopwatch) {
    return sizeof(T) == 2 ? bf16_peak(cpu, stopwatch) : multiply_add_peak(cpu, stopwatch);
}
template <class T>
const char* compute_text() {
    if (sizeof(T) == 4) return kCpuComputeText;
    return tile_kernel() ? "tdpbf16ps in registers" : kBf16Text;
}

// Measures arithmetic alone, in a twentieth of a second.
template <class T>
PeakRates compute_rate(Cpu& cpu) {
    CpuStopwatch stopwatch(cpu, false);
    return {0, compute_peak<T>(cpu, stopwatch), "", compute_text<T>()};
}
template <class T>
PeakRates peak_rates(Cpu& cpu) {
    CpuStopwatch stopwatch(cpu, false);
    PeakRates rates = compute_rate<T>(cpu);
    rates.bytes = copy_peak(cpu, stopwatch), rates.bytes_text = kCpuCopyText;
    return rates;
}

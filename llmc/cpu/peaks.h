/*
Measured rates of this CPU: peaks, for benchmarks (dev/bench), --profile and MFU, and those of GEMMs in fp32 and bf16,
for --dtype auto.

  CpuStopwatch stopwatch(cpu, false);            true: a smoke test of tiny sizes and two runs; rates are meaningless
  copy_peak(cpu, stopwatch)                      bytes/s          compute_peak<bf16>(cpu, stopwatch)    FLOP/s
  const MatmulRates rates = matmul_rates();      a few milliseconds on one core

A GEMM in bf16 takes half the time of fp32 if there is a fast instruction for it, and about the same time if it is
widened (bf16_pairs.h).
*/
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>
#include "llmc/base/bf16.h"       // bf16, to_bf16
#include "llmc/base/profile.h"    // PeakRates, Timing, timing_of
#include "llmc/cpu/amx.h"         // AmxTiles
#include "llmc/cpu/bf16_pairs.h"  // multiplies_pairs, multiply_add_burst, pairs_burst
#include "llmc/cpu/device.h"      // Cpu, parallel_for
#include "llmc/cpu/gemm_tiles.h"  // tile_kernel
#include "llmc/cpu/kernels.h"     // MatmulRates
#include "llmc/cpu/matmul.h"      // matmul_forward
#include "llmc/cpu/simd.h"        // F32x16, fma

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

// FLOP/s of all threads together. Each repeats `burst`, which takes a small fraction of a millisecond and returns its
// FLOPs, for 50 ms, and its fastest run counts: other programs delay some runs, but hardly all. There is at most one
// thread per core.
template <class Burst>
double burst_peak(Cpu& cpu, bool smoke, Burst&& burst) {
    using Clock = std::chrono::steady_clock;
    const int threads = busy_threads(cpu);
    std::vector<double> fastest(size_t(threads), 0.);
    parallel_for(cpu, threads, [&](int64_t thread) {
        const Clock::time_point end = Clock::now() + std::chrono::milliseconds(smoke ? 0 : 50);
        double& best = fastest[size_t(thread)];
        for (int i = 0; i < 3 || Clock::now() < end; i++) {
            const Clock::time_point start = Clock::now();
            const double flops = burst();
            best = std::max(best, flops / std::chrono::duration<double>(Clock::now() - start).count());
        }
    });
    double sum = 0;
    for (const double rate : fastest) sum += rate;
    return sum;
}

// FLOP/s of fused multiply-adds in registers
inline constexpr const char* kCpuComputeText = "multiply-adds in registers";
inline double multiply_add_peak(Cpu& cpu, CpuStopwatch& stopwatch) {
    const int64_t rounds = stopwatch.smoke ? 1 << 10 : 1 << 15;
    return burst_peak(cpu, stopwatch.smoke, [=] { return multiply_add_burst(rounds); });
}

#if defined(__x86_64__)
// FLOP/s of AMX multiplications whose operands and sums stay in tiles
inline double tile_peak(Cpu& cpu, CpuStopwatch& stopwatch) {
    const int64_t rounds = stopwatch.smoke ? 1 << 8 : 1 << 12;
    return burst_peak(cpu, stopwatch.smoke, [=] {
        AmxTiles::prepare();
        const auto zero = [](auto... tiles) { (AmxTiles::zero(tiles), ...); };
        zero(Tmm<0>{}, Tmm<1>{}, Tmm<2>{}, Tmm<3>{}, Tmm<4>{}, Tmm<5>{}, Tmm<6>{}, Tmm<7>{});
        for (int64_t round = 0; round < rounds; round++) {
            AmxTiles::multiply(Tmm<0>{}, Tmm<4>{}, Tmm<6>{});
            AmxTiles::multiply(Tmm<1>{}, Tmm<4>{}, Tmm<7>{});
            AmxTiles::multiply(Tmm<2>{}, Tmm<5>{}, Tmm<6>{});
            AmxTiles::multiply(Tmm<3>{}, Tmm<5>{}, Tmm<7>{});
        }
        return 4. * 2 * kTmmRows * kTmmCols * kTmmDepth * double(rounds);
    });
}
#endif

// FLOP/s of the instruction that multiplies bf16, and what it is
inline double bf16_peak(Cpu& cpu, CpuStopwatch& stopwatch) {
#if defined(__x86_64__)
    if (tile_kernel()) return tile_peak(cpu, stopwatch);
#endif
#if defined(__AVX512BF16__)
    const int64_t rounds = stopwatch.smoke ? 1 << 10 : 1 << 15;
    if (multiplies_pairs()) return burst_peak(cpu, stopwatch.smoke, [=] { return pairs_burst(rounds); });
#endif
    return multiply_add_peak(cpu, stopwatch);
}
inline const char* bf16_text() {
    return tile_kernel()        ? "tdpbf16ps in registers"
           : multiplies_pairs() ? "vdpbf16ps in registers"
                                : "multiply-adds in registers, of bf16 as floats";
}

// The peak FLOP/s for GEMMs in T, and a description of it.
template <class T>
double compute_peak(Cpu& cpu, CpuStopwatch& stopwatch) {
    return sizeof(T) == 2 ? bf16_peak(cpu, stopwatch) : multiply_add_peak(cpu, stopwatch);
}
template <class T>
const char* compute_text() {
    return sizeof(T) == 4 ? kCpuComputeText : bf16_text();
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

// A linear layer of 256 channels and 192 rows, in cache. The two types alternate and the fastest of eight runs counts,
// so that other load slows down both or is ignored.
inline MatmulRates matmul_rates() {
    constexpr int64_t N = 192, C = 256;
    const std::vector<float> floats(size_t(C * C), 0.5f);
    const std::vector<bf16> halves(size_t(C * C), to_bf16(0.5f));
    std::vector<float> out(size_t(N * C));
    std::vector<bf16> rounded_out(size_t(N * C));
    Cpu cpu(1);
    const auto seconds = [&]<class T>(T* to, const T* from) {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point start = Clock::now();
        matmul_forward(cpu, to, from, from, static_cast<const T*>(nullptr), N, C, C);
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    double fp32_s = 1, bf16_s = 1;
    for (int round = 0; round < 8; round++) {
        fp32_s = std::min(fp32_s, seconds(out.data(), floats.data()));
        bf16_s = std::min(bf16_s, seconds(rounded_out.data(), halves.data()));
    }
    constexpr double kFlops = 2. * N * C * C;
    return {kFlops / fp32_s, kFlops / bf16_s};
}

/*
How bf16 is multiplied in vector registers: as pairs, by AVX-512's vdpbf16ps, or widened to float.

vdpbf16ps multiplies and adds twice as many numbers as a fused multiply-add of floats. AMD's Zen 4 and 5 run as many of
them per second; Intel's Sapphire and Emerald Rapids run a quarter as many, so there floats are twice as fast. This is
measured when it is first needed, because no list of processors would be complete.

  multiplies_pairs()   whether bf16 is multiplied as pairs; false: operands are widened when they are packed

Both ways sum in the same order, with the same bits, except that vdpbf16ps takes subnormal numbers for zero.
*/
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include "llmc/cpu/simd.h"

// Keeps the compiler from removing what a burst computes.
inline void keep(const void* data) { asm volatile("" : : "r"(data) : "memory"); }

// Multiply-adds in registers, in independent chains, enough to hide the latency; returns how many FLOPs those are.
inline double multiply_add_burst(int64_t rounds) {
    constexpr int kChains = 12 / kRegisters > 0 ? 12 / kRegisters : 1;
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
    return 2. * kLanes * kChains * double(rounds);
}

#if defined(__AVX512BF16__)
// The same with vdpbf16ps
inline double pairs_burst(int64_t rounds) {
    constexpr int kChains = 12;
    const __m512bh factor = __m512bh(_mm512_set1_epi16(0x3C00));  // 0.0078
    __m512 sums[kChains];
    for (__m512& sum : sums) sum = _mm512_set1_ps(1);
    for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 12
        for (int i = 0; i < kChains; i++) sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
    for (int i = 1; i < kChains; i++) sums[0] += sums[i];
    keep(sums);
    return 4. * kLanes * kChains * double(rounds);
}

// Whether vdpbf16ps reaches at least three quarters of the FLOP/s of multiply-adds: a ratio of 0.5 or 2 on processors
// that are known, far from the limit. At equal rates pairs win, because they take half of the memory. The two alternate
// in bursts of some microseconds, and the fastest of each counts, so that other load does not decide.
inline bool pairs_are_fast() {
    double floats = 0, pairs = 0;
    const auto rate = [](auto burst) {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point start = Clock::now();
        const double flops = burst(1000);
        return flops / std::chrono::duration<double>(Clock::now() - start).count();
    };
    for (int i = 0; i < 16; i++) {
        floats = std::max(floats, rate(multiply_add_burst));
        pairs = std::max(pairs, rate(pairs_burst));
    }
    return pairs > 0.75 * floats;
}
#else
inline bool pairs_are_fast() { return false; }
#endif

// Assign to it only while nothing multiplies: at the start of the process, or in a test.
inline bool& multiplies_pairs() {
    static bool pairs = pairs_are_fast();
    return pairs;
}

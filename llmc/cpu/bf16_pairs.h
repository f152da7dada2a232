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

// Seconds of 1000 times twelve independent instructions, in assembly, so that they cost the same in unoptimized code.
#define ANVIL_SECONDS_OF(instruction)                                                                                 \
    [] {                                                                                                              \
        int64_t rounds = 1000;                                                                                        \
        const auto start = std::chrono::steady_clock::now();                                                          \
        asm volatile(                                                                                                 \
            "vxorps %%xmm12, %%xmm12, %%xmm12\n1:\n.irp sum, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n" instruction      \
            " %%zmm12, %%zmm12, %%zmm\\sum\n.endr\ndec %0\njnz 1b"                                                    \
            : "+r"(rounds)                                                                                            \
            :                                                                                                         \
            : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
              "xmm12");                                                                                               \
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();                       \
    }()

// Whether vdpbf16ps reaches at least three quarters of the FLOP/s of multiply-adds, of which it does twice as many: a
// ratio of 0.5 or 2 on processors that are known, far from the limit. At equal rates pairs win, because they take half
// of the memory. The two alternate in bursts of some microseconds, and the fastest of each counts, so that other load
// does not decide.
inline bool pairs_are_fast() {
    double floats_s = 1, pairs_s = 1;
    for (int i = 0; i < 16; i++) {
        floats_s = std::min(floats_s, ANVIL_SECONDS_OF("vfmadd231ps"));
        pairs_s = std::min(pairs_s, ANVIL_SECONDS_OF("vdpbf16ps"));
    }
    return 2 * floats_s > 0.75 * pairs_s;
}
#undef ANVIL_SECONDS_OF
#else
inline bool pairs_are_fast() { return false; }
#endif

// Assign to it only while nothing multiplies: at the start of the process, or in a test.
inline bool& multiplies_pairs() {
    static bool pairs = pairs_are_fast();
    return pairs;
}

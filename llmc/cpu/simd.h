/*
Sixteen floats at a time, on every machine: one AVX-512 register, two AVX ones, or four of SSE or NEON.

A sum along a row always has sixteen partial sums, combined in one fixed tree, and multiply-adds are always fused, so an
op gives the same bits on all of them. Loads and stores take a width, 16 (`kFull`) or what is left at the end of a row.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

inline constexpr int kLanes = 16;
using Full = std::integral_constant<int, kLanes>;
inline constexpr Full kFull{};

#if defined(__AVX512F__)
inline constexpr int kRegisterLanes = 16;
#elif defined(__AVX__)
inline constexpr int kRegisterLanes = 8;
#else
inline constexpr int kRegisterLanes = 4;
#endif
inline constexpr int kRegisters = kLanes / kRegisterLanes;  // registers that one F32x16 takes

typedef float FloatRegister __attribute__((vector_size(4 * kRegisterLanes)));
typedef int32_t IntRegister __attribute__((vector_size(4 * kRegisterLanes)));
typedef uint32_t UintRegister __attribute__((vector_size(4 * kRegisterLanes)));

struct F32x16 {
    FloatRegister part[kRegisters];
};

#define ANVIL_INLINE inline __attribute__((always_inline))
#define ANVIL_EACH_PART _Pragma("GCC unroll 4") for (int i = 0; i < kRegisters; i++)

ANVIL_INLINE FloatRegister fused(FloatRegister a, FloatRegister b, FloatRegister c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
    return vfmaq_f32(c, a, b);
#else  // the C library's exact fmaf: slow, and the same bits
    FloatRegister out;
    for (int lane = 0; lane < kRegisterLanes; lane++) out[lane] = std::fma(a[lane], b[lane], c[lane]);
    return out;
#endif
}

ANVIL_INLINE FloatRegister root(FloatRegister a) {
#if defined(__AVX512F__)
    return _mm512_maskz_sqrt_ps(0xFFFF, a);  // the plain form warns in g++ 12
#elif defined(__AVX__)
    return _mm256_sqrt_ps(a);
#else
    FloatRegister out;
    for (int lane = 0; lane < kRegisterLanes; lane++) out[lane] = std::sqrt(a[lane]);
    return out;
#endif
}

ANVIL_INLINE F32x16 broadcast(float x) {
    F32x16 out;
    ANVIL_EACH_PART out.part[i] = FloatRegister{} + x;
    return out;
}
ANVIL_INLINE F32x16 zeros() { return F32x16{}; }

ANVIL_INLINE F32x16 load(const float* p, Full = kFull) {
    F32x16 out;
    std::memcpy(&out, p, sizeof out);
    return out;
}
// The first n lanes from memory, the others `rest`.
ANVIL_INLINE F32x16 load(const float* p, int n, float rest = 0) {
    F32x16 out = broadcast(rest);
    std::memcpy(&out, p, size_t(n) * sizeof(float));
    return out;
}
ANVIL_INLINE F32x16 load(const float* p, Full, float) { return load(p); }
ANVIL_INLINE void store(float* p, F32x16 x, Full = kFull) { std::memcpy(p, &x, sizeof x); }
ANVIL_INLINE void store(float* p, F32x16 x, int n) { std::memcpy(p, &x, size_t(n) * sizeof(float)); }

#define ANVIL_BINARY(op)                                    \
    ANVIL_INLINE F32x16 operator op(F32x16 a, F32x16 b) {   \
        ANVIL_EACH_PART a.part[i] = a.part[i] op b.part[i]; \
        return a;                                           \
    }                                                       \
    ANVIL_INLINE F32x16 operator op(F32x16 a, float b) { return a op broadcast(b); }
ANVIL_BINARY(+)
ANVIL_BINARY(-)
ANVIL_BINARY(*)
ANVIL_BINARY(/)
#undef ANVIL_BINARY
ANVIL_INLINE F32x16& operator+=(F32x16& a, F32x16 b) { return a = a + b; }

// a * b + c, rounded once
ANVIL_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    ANVIL_EACH_PART a.part[i] = fused(a.part[i], b.part[i], c.part[i]);
    return a;
}
ANVIL_INLINE F32x16 sqrt(F32x16 a) {
    ANVIL_EACH_PART a.part[i] = root(a.part[i]);
    return a;
}
// The larger one; a NaN in either comes out.
ANVIL_INLINE F32x16 max(F32x16 a, F32x16 b) {
    ANVIL_EACH_PART a.part[i] = (a.part[i] > b.part[i]) | (a.part[i] != a.part[i]) ? a.part[i] : b.part[i];
    return a;
}

// Lane 0 with 8, 1 with 9, ...; then 4 apart, 2 apart, 1 apart.
template <class Combine>
ANVIL_INLINE float reduce_lanes(F32x16 x, Combine combine) {
    float lanes[kLanes];
    store(lanes, x);
    for (int half = kLanes / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = combine(lanes[i], lanes[i + half]);
    return lanes[0];
}
ANVIL_INLINE float sum_lanes(F32x16 x) {
    return reduce_lanes(x, [](float a, float b) { return a + b; });
}
ANVIL_INLINE float max_lanes(F32x16 x) {
    return reduce_lanes(x, [](float a, float b) { return a > b || a != a ? a : b; });
}

// body(i, width) along a row of n: i = 0, 16, 32, ... with width kFull, then the rest with an int width.
template <class Body>
ANVIL_INLINE void for_lanes(int64_t n, Body&& body) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) body(i, kFull);
    if (i < n) body(i, int(n - i));
}

// e^x with an error below 1.5 units in the last place for results that are normal numbers, 0 below them, infinity above
// the largest float, NaN for NaN (test/simd_test.cpp measures it over all of the range).
// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by Taylor to degree 7: the rest, r^8 / 8!, is below 6e-9.
ANVIL_INLINE F32x16 exp(F32x16 x) {
    constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
    constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    constexpr float kSmallest = -87.33654f, kLargest = 88.72283f;
    ANVIL_EACH_PART {
        const FloatRegister in = x.part[i], zero{};
        const FloatRegister shifted = fused(in, zero + kLog2E, zero + kRound);
        const FloatRegister n = shifted - kRound;
        const FloatRegister r = fused(n, zero - kLn2Low, fused(n, zero - kLn2High, in));
        FloatRegister e = zero + 1.f / 5040;
        e = fused(e, r, zero + 1.f / 720);
        e = fused(e, r, zero + 1.f / 120);
        e = fused(e, r, zero + 1.f / 24);
        e = fused(e, r, zero + 1.f / 6);
        e = fused(e, r, zero + 0.5f);
        e = fused(e, r, zero + 1.f);
        e = fused(e, r, zero + 1.f);
        // times 2^n in two steps, since n = 128 alone has no float; unsigned, because inputs that are far out or NaN,
        // whose result is replaced below, overflow here
        UintRegister exponent;
        std::memcpy(&exponent, &shifted, sizeof shifted);
        exponent -= 0x4B400000u;
        const UintRegister half = UintRegister(IntRegister(exponent) >> 1);
        const UintRegister first_bits = (half + 127u) << 23, second_bits = (exponent - half + 127u) << 23;
        FloatRegister first, second;
        std::memcpy(&first, &first_bits, sizeof first);
        std::memcpy(&second, &second_bits, sizeof second);
        e = e * first * second;
        e = in < kSmallest ? zero : e;
        e = in > kLargest ? zero + __builtin_inff() : e;
        x.part[i] = in != in ? in : e;
    }
    return x;
}
#undef ANVIL_EACH_PART

/*
SIMD vectors of sixteen floats on every processor: one AVX-512 register, two of AVX, or four of SSE or NEON.

A sum along a row always has sixteen partial sums, combined in one fixed tree, and multiply-adds are always fused, so an
op gives the same bits on every processor. Loads and stores take a width: 16 (`kFull`), or less at the end of a row.

  F32x16 x = load(p, width);   store(p, fma(x, y, z), width);   float s = sum_lanes(x);
  for_lanes(n, [&](int64_t i, auto width) { ... });             a loop over a row

F32<n> is n independent vectors: n chains of dependent operations, as in a polynomial, keep the processor busy.
for_lanes_unrolled() loops over them.

bf16 exists in memory only: a load converts it to float, which is exact, and a store rounds as to_bf16() does.
*/
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#include "llmc/base/bf16.h"  // bf16, to_float
#include "llmc/base/rng.h"   // pair_bits

inline constexpr int kLanes = 16;
template <int n>
using Vectors = std::integral_constant<int, n * kLanes>;  // the width of n vectors
using Full = Vectors<1>;
inline constexpr Full kFull{};

#if defined(__AVX512F__)
inline constexpr int kRegisterLanes = 16;
#elif defined(__AVX__)
inline constexpr int kRegisterLanes = 8;
#else
inline constexpr int kRegisterLanes = 4;
#endif
inline constexpr int kRegisters = kLanes / kRegisterLanes;  // registers per F32x16

typedef float FloatRegister __attribute__((vector_size(4 * kRegisterLanes)));
typedef int32_t IntRegister __attribute__((vector_size(4 * kRegisterLanes)));
typedef uint32_t UintRegister __attribute__((vector_size(4 * kRegisterLanes)));
typedef uint16_t Bf16Register __attribute__((vector_size(2 * kRegisterLanes)));

template <int n>
struct F32 {
    FloatRegister part[n * kRegisters];
};
using F32x16 = F32<1>;

#define ANVIL_INLINE inline __attribute__((always_inline))
#define ANVIL_LAMBDA __attribute__((always_inline))
#define ANVIL_EACH_PART _Pragma("GCC unroll 16") for (int i = 0; i < n * kRegisters; i++)

ANVIL_INLINE FloatRegister fma(FloatRegister a, FloatRegister b, FloatRegister c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
    return vfmaq_f32(c, a, b);
#else  // the C library's exact fmaf: slow, but the same bits
    FloatRegister out;
    for (int lane = 0; lane < kRegisterLanes; lane++) out[lane] = std::fma(a[lane], b[lane], c[lane]);
    return out;
#endif
}

ANVIL_INLINE FloatRegister sqrt(FloatRegister a) {
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

// Added as integers: 0 + x would be a float addition.
ANVIL_INLINE FloatRegister broadcast_bits(uint32_t bits) { return FloatRegister(UintRegister{} + bits); }

template <int n = 1>
ANVIL_INLINE F32<n> broadcast(float x) {
    F32<n> out;
    ANVIL_EACH_PART out.part[i] = broadcast_bits(std::bit_cast<uint32_t>(x));
    return out;
}
ANVIL_INLINE F32x16 zeros() { return F32x16{}; }

// Masks of the first n lanes, for loads and stores without calling memcpy.
#if defined(__AVX512F__)
ANVIL_INLINE __mmask16 lane_mask(int n) { return __mmask16((1u << n) - 1); }
#elif defined(__AVX2__)
ANVIL_INLINE __m256i lane_mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#endif

// Register by register: g++ 12 copies several through the stack.
template <int lanes>
ANVIL_INLINE F32<lanes / kLanes> load(const float* p, std::integral_constant<int, lanes>) {
    constexpr int n = lanes / kLanes;
    F32<n> out;
    ANVIL_EACH_PART std::memcpy(&out.part[i], p + i * kRegisterLanes, sizeof(FloatRegister));
    return out;
}
ANVIL_INLINE F32x16 load(const float* p) { return load(p, kFull); }
// The first `width` lanes from memory, `fill` in the others. Memory after those lanes is not accessed.
ANVIL_INLINE F32x16 load(const float* p, int width, float fill = 0) {
    F32x16 out = broadcast(fill);
#if defined(__AVX512F__)
    out.part[0] = _mm512_mask_loadu_ps(out.part[0], lane_mask(width), p);
#elif defined(__AVX2__)
    for (int i = 0; i < kRegisters; i++) {
        const __m256i mask = lane_mask(width - 8 * i);
        out.part[i] = _mm256_blendv_ps(out.part[i], _mm256_maskload_ps(p + 8 * i, mask), _mm256_castsi256_ps(mask));
    }
#else
    std::memcpy(&out, p, size_t(width) * sizeof(float));
#endif
    return out;
}
template <int n>
ANVIL_INLINE void store(float* p, F32<n> x, Vectors<n>) {
    ANVIL_EACH_PART std::memcpy(p + i * kRegisterLanes, &x.part[i], sizeof(FloatRegister));
}
ANVIL_INLINE void store(float* p, F32x16 x) { store(p, x, kFull); }
ANVIL_INLINE void store(float* p, F32x16 x, int width) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, lane_mask(width), x.part[0]);
#elif defined(__AVX2__)
    for (int i = 0; i < kRegisters; i++) _mm256_maskstore_ps(p + 8 * i, lane_mask(width - 8 * i), x.part[i]);
#else
    std::memcpy(p, &x, size_t(width) * sizeof(float));
#endif
}

ANVIL_INLINE FloatRegister to_f32(Bf16Register halves) {
#if defined(__AVX512F__)  // g++ 12 compiles the other form to five instructions
    const __m512i bits = _mm512_maskz_cvtepu16_epi32(0xFFFF, __m256i(halves));
    return FloatRegister(_mm512_maskz_slli_epi32(0xFFFF, bits, 16));
#elif defined(__AVX2__)
    return FloatRegister(_mm256_slli_epi32(_mm256_cvtepu16_epi32(__m128i(halves)), 16));
#else
    return FloatRegister(__builtin_convertvector(halves, UintRegister) << 16);
#endif
}
ANVIL_INLINE Bf16Register to_bf16(FloatRegister x) {
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
    // The instruction treats subnormals as zero. They are rare, and take the other path.
    constexpr int kSubnormal = 0x20;
    if (__builtin_expect(_mm512_fpclass_ps_mask(x, kSubnormal) == 0, 1)) return Bf16Register(_mm512_cvtneps_pbh(x));
#endif
    const UintRegister bits = UintRegister(x);
    const UintRegister nearest = bits + 0x7FFFu + (bits >> 16 & 1u), quiet = bits | 0x400000u;
    const UintRegister high = (x != x ? quiet : nearest) >> 16;
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i packed = _mm256_packus_epi32(__m256i(high), __m256i(high));  // each half is duplicated
    return Bf16Register(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0b1000)));
#else
    return __builtin_convertvector(high, Bf16Register);
#endif
}

template <int lanes>
ANVIL_INLINE F32<lanes / kLanes> load(const bf16* p, std::integral_constant<int, lanes>) {
    constexpr int n = lanes / kLanes;
    F32<n> out;
    ANVIL_EACH_PART {
        Bf16Register halves;
        std::memcpy(&halves, p + i * kRegisterLanes, sizeof halves);
        out.part[i] = to_f32(halves);
    }
    return out;
}
ANVIL_INLINE F32x16 load(const bf16* p) { return load(p, kFull); }
ANVIL_INLINE F32x16 load(const bf16* p, int width, float fill = 0) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    const Bf16Register halves = Bf16Register(_mm256_maskz_loadu_epi16(lane_mask(width), p));
    return {_mm512_mask_mov_ps(broadcast(fill).part[0], lane_mask(width), to_f32(halves))};
#else
    float lanes[kLanes];
    for (int i = 0; i < kLanes; i++) lanes[i] = i < width ? to_float(p[i]) : fill;
    return load(lanes);
#endif
}
template <class T, int lanes>
ANVIL_INLINE F32<lanes / kLanes> load(const T* p, std::integral_constant<int, lanes> width, float) {
    return load(p, width);
}
template <int n>
ANVIL_INLINE void store(bf16* p, F32<n> x, Vectors<n>) {
    ANVIL_EACH_PART {
        const Bf16Register halves = to_bf16(x.part[i]);
        std::memcpy(p + i * kRegisterLanes, &halves, sizeof halves);
    }
}
ANVIL_INLINE void store(bf16* p, F32x16 x) { store(p, x, kFull); }
ANVIL_INLINE void store(bf16* p, F32x16 x, int width) {
    bf16 lanes[kLanes];
    store(lanes, x);
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    __m256i halves;
    std::memcpy(&halves, lanes, sizeof halves);
    _mm256_mask_storeu_epi16(p, lane_mask(width), halves);
#else
    std::memcpy(p, lanes, size_t(width) * sizeof(bf16));
#endif
}

// first[0], second[0], first[1], second[1], ...: two rows of bf16 in pairs, as GEMMs take them (gemm_pack.h)
template <int n>
ANVIL_INLINE void store_pairs(bf16* p, F32<n> first, F32<n> second) {
    ANVIL_EACH_PART {
        const UintRegister pairs =
            UintRegister(to_f32(to_bf16(first.part[i]))) >> 16 | UintRegister(to_f32(to_bf16(second.part[i])));
        std::memcpy(p + 2 * i * kRegisterLanes, &pairs, sizeof pairs);
    }
}

#define ANVIL_BINARY(op)                                    \
    template <int n>                                        \
    ANVIL_INLINE F32<n> operator op(F32<n> a, F32<n> b) {   \
        ANVIL_EACH_PART a.part[i] = a.part[i] op b.part[i]; \
        return a;                                           \
    }                                                       \
    template <int n>                                        \
    ANVIL_INLINE F32<n> operator op(F32<n> a, float b) {    \
        return a op broadcast<n>(b);                        \
    }                                                       \
    template <int n>                                        \
    ANVIL_INLINE F32<n> operator op(float a, F32<n> b) {    \
        return broadcast<n>(a) op b;                        \
    }
ANVIL_BINARY(+)
ANVIL_BINARY(-)
ANVIL_BINARY(*)
ANVIL_BINARY(/)
#undef ANVIL_BINARY
ANVIL_INLINE F32x16& operator+=(F32x16& a, F32x16 b) { return a = a + b; }
// ((sum + x's vector 0) + vector 1) + ...
template <int n>
ANVIL_INLINE F32x16 add_in_order(F32x16 sum, F32<n> x) {
    ANVIL_EACH_PART sum.part[i % kRegisters] = sum.part[i % kRegisters] + x.part[i];
    return sum;
}

// a * b + c, rounded once
template <int n>
ANVIL_INLINE F32<n> fma(F32<n> a, F32<n> b, F32<n> c) {
    ANVIL_EACH_PART a.part[i] = fma(a.part[i], b.part[i], c.part[i]);
    return a;
}
template <int n>
ANVIL_INLINE F32<n> fma(F32<n> a, F32<n> b, float c) {
    return fma(a, b, broadcast<n>(c));
}
template <int n>
ANVIL_INLINE F32<n> fma(F32<n> a, float b, F32<n> c) {
    return fma(a, broadcast<n>(b), c);
}
template <int n>
ANVIL_INLINE F32<n> fma(F32<n> a, float b, float c) {
    return fma(a, broadcast<n>(b), broadcast<n>(c));
}
template <int n>
ANVIL_INLINE F32<n> sqrt(F32<n> a) {
    ANVIL_EACH_PART a.part[i] = sqrt(a.part[i]);
    return a;
}
// max(a, b); NaN if either is NaN. If one is, the processor's instruction returns the second operand.
template <int n>
ANVIL_INLINE F32<n> max(F32<n> a, F32<n> b) {
    ANVIL_EACH_PART {
#if defined(__AVX512F__)
        const FloatRegister larger = _mm512_maskz_max_ps(0xFFFF, a.part[i], b.part[i]);
#elif defined(__AVX__)
        const FloatRegister larger = _mm256_max_ps(a.part[i], b.part[i]);
#else
        const FloatRegister larger = a.part[i] > b.part[i] ? a.part[i] : b.part[i];
#endif
        a.part[i] = a.part[i] != a.part[i] ? a.part[i] : larger;
    }
    return a;
}
// min(x, bound), and NaN stays NaN
template <int n>
ANVIL_INLINE F32<n> min(F32<n> x, float bound) {
    const FloatRegister most = broadcast<1>(bound).part[0];
    ANVIL_EACH_PART {
#if defined(__AVX512F__)
        x.part[i] = _mm512_maskz_min_ps(0xFFFF, most, x.part[i]);
#elif defined(__AVX__)
        x.part[i] = _mm256_min_ps(most, x.part[i]);
#else
        x.part[i] = most < x.part[i] ? most : x.part[i];
#endif
    }
    return x;
}

// x in the lanes whose bits are set, `rest` in the others. Higher bits are ignored.
ANVIL_INLINE FloatRegister select_lanes(FloatRegister x, uint32_t lanes, FloatRegister rest) {
#if defined(__AVX512F__)
    return _mm512_mask_mov_ps(rest, __mmask16(lanes), x);
#else
    UintRegister bit;
    for (int i = 0; i < kRegisterLanes; i++) bit[i] = 1u << i;
    return (bit & lanes) != 0 ? x : rest;
#endif
}
template <int n>
ANVIL_INLINE F32<n> select_lanes(F32<n> x, uint64_t lanes, float rest) {
    static_assert(n <= 4);
    const FloatRegister other = broadcast(rest).part[0];
    ANVIL_EACH_PART x.part[i] = select_lanes(x.part[i], uint32_t(lanes >> i * kRegisterLanes), other);
    return x;
}

// A tree: lane 0 with 8, 1 with 9, ...; then 4 apart, 2 apart, 1 apart.
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

// Cuts a and b into runs of `apart` lanes and takes the even (which = 0) or odd (which = 1) ones, alternating between a
// and b.
template <int apart, int which>
constexpr int unzip_lane(int i) {
    return i / apart % 2 * kRegisterLanes + i / (2 * apart) * (2 * apart) + i % apart + which * apart;
}
template <int apart, int which>
ANVIL_INLINE FloatRegister unzip(FloatRegister a, FloatRegister b) {
    constexpr auto at = unzip_lane<apart, which>;
#if defined(__AVX512F__)
    return __builtin_shufflevector(a, b, at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9), at(10),
                                   at(11), at(12), at(13), at(14), at(15));
#elif defined(__AVX__)
    return __builtin_shufflevector(a, b, at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
#else
    return __builtin_shufflevector(a, b, at(0), at(1), at(2), at(3));
#endif
}
// The same for vectors.
template <int apart, int which>
ANVIL_INLINE F32x16 unzip(F32x16 a, F32x16 b) {
    F32x16 out;
    constexpr int registers = std::max(apart / kRegisterLanes, 1);
    for (int i = 0; i < kRegisters; i++)
        if constexpr (apart < kRegisterLanes)
            out.part[i] = unzip<apart, which>(a.part[i], b.part[i]);
        else
            out.part[i] = (i / registers % 2 ? b : a)
                              .part[i / (2 * registers) * (2 * registers) + i % registers + which * registers];
    return out;
}

// One level of the tree for 2 * apart rows: rows[r] = the halves of rows[r] and of rows[r + apart], each combined
template <int apart, class Combine>
ANVIL_INLINE void reduce_rows_once(F32x16* rows, Combine combine) {
#pragma GCC unroll 8
    for (int r = 0; r < apart; r++)
        rows[r] = combine(unzip<apart, 0>(rows[r], rows[r + apart]), unzip<apart, 1>(rows[r], rows[r + apart]));
}

// Lane r is reduce_lanes(rows[r]), in the same tree, for sixteen rows at once.
template <class Combine>
ANVIL_INLINE F32x16 reduce_rows(const F32x16 (&rows)[kLanes], Combine combine) {
    F32x16 r[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) r[i] = rows[i];
    reduce_rows_once<8>(r, combine);
    reduce_rows_once<4>(r, combine);
    reduce_rows_once<2>(r, combine);
    reduce_rows_once<1>(r, combine);
    return r[0];
}
ANVIL_INLINE F32x16 sum_rows(const F32x16 (&rows)[kLanes]) {
    return reduce_rows(rows, [](F32x16 a, F32x16 b) { return a + b; });
}
ANVIL_INLINE F32x16 max_rows(const F32x16 (&rows)[kLanes]) {
    return reduce_rows(rows, [](F32x16 a, F32x16 b) { return max(a, b); });
}

// The random bits of elements e, e + 1, ...: element_bits() of each.
ANVIL_INLINE void element_bits(uint32_t (&bits)[kLanes], uint64_t key, uint64_t e) {
    constexpr int kPairs = kLanes / 2 + 1;  // e may be odd
    uint32_t all[2 * kPairs];
    for (int j = 0; j < kPairs; j++) {
        const uint64_t pair = pair_bits(key, e / 2 + uint64_t(j));
        all[2 * j] = uint32_t(pair);
        all[2 * j + 1] = uint32_t(pair >> 32);
    }
    std::memcpy(bits, all + e % 2, sizeof bits);
}

// For arrays that are read or written from one end to the other. Hardware prefetchers begin anew at every 4 KB of each,
// and may not run ahead of stores.
//   prefetch_ahead(p, width)   asks for the `width` elements that lie kAhead after p, perhaps after the array's end
//   load_ahead(p, width)       load(), and the same
inline constexpr int64_t kAhead = 256;  // elements: 1 KB of floats
template <class T>
ANVIL_INLINE void prefetch_ahead(const T* p, int64_t width) {
    for (int64_t line = 0; line < width; line += 64 / int64_t(sizeof(T))) __builtin_prefetch(p + kAhead + line);
}
template <class T, class Width>
ANVIL_INLINE auto load_ahead(const T* p, Width width) {
    prefetch_ahead(p, width);
    return load(p, width);
}

// Asks for a line, to be in the cache of that level, in this place among other accesses: compilers move
// __builtin_prefetch. An Intel core whose loads and prefetches take turns reads at the full rate of its memory; sixteen
// prefetches in a row make its loads wait.
template <int level>
ANVIL_INLINE void prefetch_here(const void* line) {
    static_assert(level == 1 || level == 2);
#if defined(__x86_64__)
    if constexpr (level == 1)
        asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(line)) : "memory");
    else
        asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(line)) : "memory");
#else
    __builtin_prefetch(line, 0, 4 - level);
#endif
}
template <class T>
ANVIL_INLINE void prefetch_run(const T* p, int64_t n) {
    for (int64_t i = 0; i < n; i += 64 / int64_t(sizeof(T))) prefetch_here<2>(p + i);
}

// body(i, width) along a row of n elements: i = 0, 16, 32, ... with width kFull, then the rest with an int.
template <class Body>
ANVIL_INLINE void for_lanes(int64_t n, Body&& body) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) body(i, kFull);
    if (i < n) body(i, int(n - i));
}

// As many vectors as fit the registers along with their temporaries.
inline constexpr Vectors<4 / kRegisters> kUnrolled{};

// for_lanes() with kUnrolled lanes at a time, while that many are left.
template <class Body>
ANVIL_INLINE void for_lanes_unrolled(int64_t n, Body&& body) {
    int64_t i = 0;
    for (; i + kUnrolled <= n; i += kUnrolled) body(i, kUnrolled);
    for_lanes(n - i, [&](int64_t j, auto width) { body(i + j, width); });
}

// a 2^k, with `shifted` = 1.5 * 2^23 + k, which holds k in its low bits; only for normal results
template <int n>
ANVIL_INLINE F32<n> times_power_of_2(F32<n> a, [[maybe_unused]] F32<n> k, [[maybe_unused]] F32<n> shifted) {
    ANVIL_EACH_PART {
#if defined(__AVX512F__)
        a.part[i] = _mm512_maskz_scalef_ps(0xFFFF, a.part[i], k.part[i]);
#else
        // In two steps, since 2^128 is not a float; unsigned, because a very negative or NaN k overflows here
        const UintRegister exponent = UintRegister(shifted.part[i]) - 0x4B400000u;
        const UintRegister half = UintRegister(IntRegister(exponent) >> 1);
        const UintRegister first = (half + 127u) << 23, second = (exponent - half + 127u) << 23;
        a.part[i] = a.part[i] * FloatRegister(first) * FloatRegister(second);
#endif
    }
    return a;
}

// 0 where in < least, else x
template <int n>
ANVIL_INLINE F32<n> zero_below(F32<n> x, F32<n> in, float least) {
    ANVIL_EACH_PART x.part[i] = in.part[i] < broadcast(least).part[0] ? FloatRegister{} : x.part[i];
    return x;
}

// e^x with an error below 1.5 units in the last place for normal results; 0 below them, infinity above the largest
// float, NaN for NaN (test/cpu/simd_test.cpp measures it over the whole range).
// x = k ln 2 + r with |r| <= ln 2 / 2, and e^r by Taylor to degree 7: the rest, r^8 / 8!, is below 6e-9.
template <int n>
ANVIL_INLINE F32<n> exp(F32<n> x) {
    constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
    constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    constexpr float kSmallest = -87.33654f, kInfinite = 89;  // e^89 overflows, with k = 128
    x = min(x, kInfinite);
    const F32<n> shifted = fma(x, kLog2E, kRound), k = shifted - kRound;
    const F32<n> r = fma(k, -kLn2Low, fma(k, -kLn2High, x));
    F32<n> e = fma(r, 1.f / 5040, 1.f / 720);
    e = fma(e, r, 1.f / 120);
    e = fma(e, r, 1.f / 24);
    e = fma(e, r, 1.f / 6);
    e = fma(e, r, 0.5f);
    e = fma(e, r, 1.f);
    e = fma(e, r, 1.f);
    return zero_below(times_power_of_2(e, k, shifted), x, kSmallest);
}
#undef ANVIL_EACH_PART

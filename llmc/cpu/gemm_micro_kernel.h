/*
The micro-kernel of gemm(): C (MR, NR) stays in registers while k runs over A and a packed micro-panel of B (Goto and
van de Geijn, 2008, doi:10.1145/1356052.1356053). Elements of A are broadcast. A is read through two strides, so it may
be transposed.

The result is specified to the bit. Each element of C is one chain of fused multiply-adds over a block of kBlockK terms,
in the order of k, and blocks are added in order. MR and NR, which depend on the number of registers, and the number of
threads do not affect it, so every processor gives the same bits.

A and B are float or bf16, sums are always float. bf16 is multiplied in pairs of neighbors in k, of which the second is
added first. AVX-512's vdpbf16ps does this in one instruction. Where that is slow or missing, bf16 is packed as floats
in that order (bf16_pairs.h), with the same bits (test/cpu/gemm_test.cpp), except for subnormals, below 1.2e-38, which
that instruction treats as zero. An A that is read in place must have its pairs side by side.

Processors with AMX multiply bf16 in tiles, with another order of sums: gemm_tiles.h.

  multiply_panels(...)   C (=, +=) A times packed micro-panels of B, on the calling thread; attention is built on it
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include "llmc/base/bf16.h"       // bf16
#include "llmc/ops/matmul.h"      // Write
#include "llmc/cpu/bf16_pairs.h"  // multiplies_pairs
#include "llmc/cpu/gemm_pack.h"   // packed_size, Strided
#include "llmc/cpu/gemm_tiles.h"  // tile_kernel_of
#include "llmc/cpu/simd.h"

// Broadcasts one float, or one pair of bf16, to every lane.
template <class T>
ANVIL_INLINE FloatRegister broadcast_pair(const T* a) {
    uint32_t bits;
    std::memcpy(&bits, a, sizeof bits);
    return broadcast_bits(bits);
}

// The first or second elements of pairs of bf16, as floats
ANVIL_INLINE FloatRegister first_of_pairs(FloatRegister pairs) { return FloatRegister(UintRegister(pairs) << 16); }
ANVIL_INLINE FloatRegister second_of_pairs(FloatRegister pairs) {
    return FloatRegister(UintRegister(pairs) & 0xFFFF0000u);
}

template <class T>
ANVIL_INLINE FloatRegister multiply_add(FloatRegister a, FloatRegister b, FloatRegister sum) {
    if constexpr (std::is_same_v<T, float>) {
#if defined(__AVX2__) && !defined(__AVX512F__)
        // In assembly, because g++ 12 also takes the forms that overwrite a factor, and then spills: 2 to 4 % slower.
        asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
        return sum;
#else
        return fma(a, b, sum);
#endif
    } else {
#if defined(__AVX512BF16__)
        return _mm512_dpbf16_ps(sum, __m512bh(a), __m512bh(b));
#else  // only in tests
        return fma(first_of_pairs(a), first_of_pairs(b), fma(second_of_pairs(a), second_of_pairs(b), sum));
#endif
    }
}

// Whether T is multiplied by multiply_three_rows()
template <class T>
inline constexpr bool kThreeRows =
#if defined(__AVX512BF16__)
    true;
#elif defined(__AVX512F__)
    std::is_same_v<T, float>;
#else
    false;
#endif
#if defined(__AVX512F__)
// One step of k for three rows of A, `row` bytes apart:   sum (3, NR) += a b. Moves `a` on by `step` bytes. In
// assembly, because g++ 12 keeps addresses of all rows for four steps, more than there are registers (dev/log/cpu.md).
template <class T>
ANVIL_INLINE void multiply_three_rows(FloatRegister (*sum)[kNRRegisters], const T*& a, int64_t row, int64_t step,
                                      const FloatRegister (&b)[kNRRegisters]) {
    static_assert(kNRRegisters == 2);
    FloatRegister a_ik;
    using Read = const T(*)[1 << 20];  // tells the compiler that memory from `a` on is read
#define ANVIL_ONE_ROW(op, at, sum0, sum1) \
    "vbroadcastss " at ", %[a_ik]\n\t" op " %[b0], %[a_ik], " sum0 "\n\t" op " %[b1], %[a_ik], " sum1 "\n\t"
#define ANVIL_THREE_ROWS(op)                                                                                    \
    asm(ANVIL_ONE_ROW(op, "(%[a])", "%[s00]", "%[s01]") ANVIL_ONE_ROW(op, "(%[a],%[row])", "%[s10]", "%[s11]")  \
            ANVIL_ONE_ROW(op, "(%[a],%[row],2)", "%[s20]", "%[s21]") "add %[step], %[a]"                        \
        : [a] "+r"(a), [a_ik] "=&v"(a_ik), [s00] "+v"(sum[0][0]), [s01] "+v"(sum[0][1]), [s10] "+v"(sum[1][0]), \
          [s11] "+v"(sum[1][1]), [s20] "+v"(sum[2][0]), [s21] "+v"(sum[2][1])                                   \
        : [row] "r"(row), [step] "r"(step), [b0] "v"(b[0]), [b1] "v"(b[1]), "m"(*Read(a))                       \
        : "cc")
    if constexpr (std::is_same_v<T, float>)
        ANVIL_THREE_ROWS("vfmadd231ps");
    else
        ANVIL_THREE_ROWS("vdpbf16ps");
#undef ANVIL_THREE_ROWS
#undef ANVIL_ONE_ROW
}
#endif

// What the micro-kernel adds to A times B before it stores the result. Null data: nothing.
struct Addend {
    const float* data = nullptr;
    int64_t row = 0;

    Addend at(int64_t i, int64_t j) const { return {data ? data + i * row + j : nullptr, row}; }
};

ANVIL_INLINE FloatRegister load_register(const float* p) {
    FloatRegister x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
ANVIL_INLINE FloatRegister load_register(const bf16* p) {
    Bf16Register halves;
    std::memcpy(&halves, p, sizeof halves);
    return to_f32(halves);
}
ANVIL_INLINE void store_register(float* p, FloatRegister x) { std::memcpy(p, &x, sizeof x); }
ANVIL_INLINE void store_register(bf16* p, FloatRegister x) {
    const Bf16Register halves = to_bf16(x);
    std::memcpy(p, &halves, sizeof halves);
}

// Memory that will be needed soon: the micro-kernel brings it into L2, `lines` cache lines at a time, `step` bytes
// apart.
struct Ahead {
    const char *begin = nullptr, *end = nullptr;
    int64_t lines = 0, step = 64;
};
// The micro-kernel asks for memory every four steps of k.
inline constexpr int64_t kStepsPerPrefetch = 4;

// The micro-kernel:   c (rows, cols)  =  a (rows, K) panel (K, kNR) [+ before] [+ bias],   rows <= kMR, cols <= kNR.
// `rows` is a template parameter to keep the sums in registers.
template <int rows, class Out, class T>
void micro_kernel(Out* c, int64_t c_row, int64_t cols, const Strided<T>& a, const float* panel, int64_t K,
                  Addend before, const Out* bias, const Ahead& ahead) {
    // A row of C and of its addend at a time: prefetches of all of them at once would take the 10 to 16 fill buffers of
    // L1, and loads of A and B would wait.
    constexpr int64_t kLine = 64 / int64_t(sizeof(Out));
    const Out *c_next = c, *const c_end = c + rows * c_row;
    const char *ahead_next = ahead.begin, *const ahead_end = ahead.end;
    const float* before_next = static_cast<const void*>(before.data) != c ? before.data : nullptr;
    const auto prefetch = [&]() ANVIL_LAMBDA {
        if (c_next != c_end) {
#pragma GCC unroll 4
            for (int64_t j = 0; j < kNR; j += kLine) __builtin_prefetch(c_next + j, 1);
            c_next += c_row;
            if (before_next) {
#pragma GCC unroll 4
                for (int64_t j = 0; j < kNR; j += 16) __builtin_prefetch(before_next + j);
                before_next += before.row;
            }
        }
        if (ahead_next < ahead_end)
            for (int64_t line = 0; line < ahead.lines; line++, ahead_next += ahead.step)
                __builtin_prefetch(ahead_next, 0, 2);
    };
    FloatRegister sum[rows][kNRRegisters] = {};
    // One pointer per three rows, at offsets that addresses can encode: one per row would need too many registers.
    constexpr int groups = (rows + 2) / 3;
    const T* a_k[groups];
#pragma GCC unroll 4
    for (int g = 0; g < groups; g++) a_k[g] = a.data + 3 * g * a.row;
    const int64_t step = kPair<T> * a.col;
    const auto multiply_step = [&]() ANVIL_LAMBDA {
        FloatRegister b[kNRRegisters];
#pragma GCC unroll 4
        for (int r = 0; r < kNRRegisters; r++) b[r] = load_register(panel + r * kRegisterLanes);
        panel += kNR;
        if constexpr (kThreeRows<T> && rows % 3 == 0) {
            constexpr int64_t size = sizeof(T);
#pragma GCC unroll 4
            for (int g = 0; g < groups; g++) multiply_three_rows(&sum[3 * g], a_k[g], a.row * size, step * size, b);
            return;
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const FloatRegister a_ik = broadcast_pair(a_k[i / 3] + i % 3 * a.row);
#pragma GCC unroll 4
            for (int r = 0; r < kNRRegisters; r++) sum[i][r] = multiply_add<T>(a_ik, b[r], sum[i][r]);
        }
#pragma GCC unroll 4
        for (int g = 0; g < groups; g++) a_k[g] += step;
    };
    // Four steps at a time issue loads of A earlier, which may come from L2. Only whole tiles are worth the code.
    constexpr int64_t kTerms = (rows == kMR ? kStepsPerPrefetch : 1) * kPair<T>;
    int64_t k = 0;
    for (; k + kTerms <= K; k += kTerms) {
        prefetch();
        multiply_step();
        if constexpr (rows == kMR) multiply_step(), multiply_step(), multiply_step();
    }
    for (; k < K; k += kPair<T>) multiply_step();
    // At the right edge of C the rest works on full-width copies.
    Out edge[rows][kNR], edge_bias[kNR] = {};
    float edge_before[rows][kNR];
    const bool whole = cols == kNR;
    if (!whole) {
        if (bias) bias = static_cast<const Out*>(std::memcpy(edge_bias, bias, size_t(cols) * sizeof(Out)));
        if (before.data) {
            for (int i = 0; i < rows; i++)
                std::memcpy(edge_before[i], before.data + i * before.row, size_t(cols) * sizeof(float));
            before = {edge_before[0], kNR};
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kNRRegisters; r++) {
        const int at = r * kRegisterLanes;
        // In bf16 zeros are added even without a bias, to turn -0 into 0.
        const FloatRegister offset = bias ? load_register(bias + at) : FloatRegister{};
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            if constexpr (std::is_same_v<Out, float>)
                if (bias) sum[i][r] += offset;
            if (before.data) sum[i][r] += load_register(before.data + i * before.row + at);
            if constexpr (!std::is_same_v<Out, float>) sum[i][r] += offset;
            store_register((whole ? c + i * c_row : edge[i]) + at, sum[i][r]);
        }
    }
    if (!whole)
        for (int i = 0; i < rows; i++) std::memcpy(c + i * c_row, edge[i], size_t(cols) * sizeof(Out));
}

template <int rows, class Out, class T>
ANVIL_INLINE void micro_kernel_of_rows(int64_t M, Out* c, int64_t c_row, int64_t cols, const Strided<T>& a,
                                       const float* panel, int64_t K, Addend before, const Out* bias,
                                       const Ahead& ahead) {
    if constexpr (rows > 0) {
        if (M == rows)
            micro_kernel<rows>(c, c_row, cols, a, panel, K, before, bias, ahead);
        else
            micro_kernel_of_rows<rows - 1>(M, c, c_row, cols, a, panel, K, before, bias, ahead);
    }
}

// c (M, N)  =  a (M, K) times packed micro-panels of B [+ before] [+ bias], rounded once; K <= kBlockK<T>
template <class Out, class T>
void multiply_panels_in_registers(Out* c, int64_t c_row, int64_t M, int64_t N, int64_t K, const Strided<T>& a,
                                  const float* panels, Addend before, const Out* bias, const Ahead& ahead = {}) {
    const int64_t panel = packed_size<T>(K, 1);
    for (int64_t j = 0; j < N; j += kNR, panels += panel)
        for (int64_t i = 0; i < M; i += kMR)
            micro_kernel_of_rows<kMR>(std::min<int64_t>(kMR, M - i), c + i * c_row + j, c_row,
                                      std::min<int64_t>(kNR, N - j), a.at(i, 0), panels, K, before.at(i, j),
                                      bias ? bias + j : nullptr, ahead);
}

// c (M, N) (=, +=) a (M, K) times packed micro-panels of B, on the calling thread; K <= kBlockK<T>, or kTileBlockK
// with tiles, which leave out `ahead`
template <class T>
void multiply_panels(float* c, int64_t c_row, int64_t M, int64_t N, int64_t K, const Strided<T>& a, const float* panels,
                     Write write, const Ahead& ahead = {}, TileKernel tiles = tile_kernel_of<T>()) {
    if constexpr (std::is_same_v<T, bf16>)
        if (tiles) return tiles->multiply_panels(c, c_row, M, N, K, a, panels, write, false);
    const Addend before = write == Write::add ? Addend{c, c_row} : Addend{};
    multiply_panels_in_registers<float>(c, c_row, M, N, K, a, panels, before, nullptr, ahead);
}

// Calls f with a zero of the type as which operands of T are multiplied here: bf16 may be widened to float.
template <class T, class F>
auto with_packed_type(F&& f) {
    if constexpr (std::is_same_v<T, bf16>)
        if (!tile_kernel() && !multiplies_pairs()) return f(float{});
    return f(T{});
}

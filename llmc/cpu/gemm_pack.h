/*
Packs the operands of a GEMM (gemm_plan.h): B into micro-panels of NR columns and A, if it cannot be read in place, into
micro-panels of MR rows. The last micro-panel is padded with zeros.

  packed B   (panels, K, NR)      a micro-panel is contiguous, with row k after row k - 1
  packed A   (panels, K, MR)      the same for the transpose of A

bf16 is multiplied in pairs of neighbors in k: the two values of a pair lie side by side, (panels, K / 2, NR, 2).
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include "llmc/base/bf16.h"      // bf16
#include "llmc/cpu/gemm_plan.h"  // kMR, kNR, kPair
#include "llmc/cpu/simd.h"

// A matrix in memory: element (i, j) is data[i * row + j * col]. BLIS calls the strides rs and cs.
template <class T>
struct Strided {
    const T* data;
    int64_t row, col;

    Strided at(int64_t i, int64_t j) const { return {data + i * row + j * col, row, col}; }
    Strided transposed() const { return {data, col, row}; }
};
template <class T>
Strided(const T*, int64_t, int64_t) -> Strided<T>;  // clang before 17 deduces none for an aggregate

// The number of micro-panels of B (K, N).
inline int64_t num_panels(int64_t N) { return (N + kNR - 1) / kNR; }
// The size of packed B in floats.
template <class T>
int64_t packed_size(int64_t K, int64_t N) {
    return num_panels(N) * kNR * ((K + kPair<T> - 1) / kPair<T>);
}

// to = lanes at(0), at(1), ... of a and b together, four bytes each. The indices are written out because nvcc drops a
// pack expansion in a builtin's arguments. Vectors are passed by reference, because compilers disagree on how to pass
// them by value on a processor without such registers.
template <auto at, class V>
ANVIL_INLINE void pick_lanes(V& to, const V& a, const V& b) {
    if constexpr (sizeof(V) == 64)
        to = __builtin_shufflevector(a, b, at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9), at(10),
                                     at(11), at(12), at(13), at(14), at(15));
    else if constexpr (sizeof(V) == 32)
        to = __builtin_shufflevector(a, b, at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
    else
        to = __builtin_shufflevector(a, b, at(0), at(1), at(2), at(3));
}
// In each block of four lanes: the lower (which = 0) or upper halves of a and b, interleaved in runs of `run` lanes.
template <int run, int which, int n>
constexpr int zip_lane(int lane) {
    return lane / 4 * 4 + lane % 4 / (2 * run) * run + lane % run + 2 * which + lane / run % 2 * n;
}
template <int run, int which, class V>
ANVIL_INLINE void zip_blocks(V& to, const V& a, const V& b) {
    pick_lanes<zip_lane<run, which, int(sizeof(V) / 4)>>(to, a, b);
}
// The even (which = 0) or odd blocks of four lanes, first those of a, then those of b.
template <int which, int n>
constexpr int unzip_block_lane(int lane) {
    return lane % (n / 2) / 4 * 8 + lane % 4 + 4 * which + lane / (n / 2) * n;
}
template <int which, class V>
ANVIL_INLINE void unzip_blocks(V& to, const V& a, const V& b) {
    pick_lanes<unzip_block_lane<which, int(sizeof(V) / 4)>>(to, a, b);
}

// Transposes n registers of n lanes of four bytes in place; n is 4, 8 or 16.
template <class V, int n>
ANVIL_INLINE void transpose_lanes(V (&r)[n]) {
    static_assert(sizeof(V) == 4 * n && (n == 4 || n == 8 || n == 16));
    V t[n];
    // First 4 x 4, within blocks of four lanes: those shuffles are the fastest.
#pragma GCC unroll 8
    for (int i = 0; i < n; i += 2) {
        zip_blocks<1, 0>(t[i], r[i], r[i + 1]);
        zip_blocks<1, 1>(t[i + 1], r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < n; i += 4) {
        zip_blocks<2, 0>(r[i], t[i], t[i + 2]);
        zip_blocks<2, 1>(r[i + 1], t[i], t[i + 2]);
        zip_blocks<2, 0>(r[i + 2], t[i + 1], t[i + 3]);
        zip_blocks<2, 1>(r[i + 3], t[i + 1], t[i + 3]);
    }
    // Then whole blocks: r[i] has those of rows i, 4 + i, 8 + i and 12 + i of the result.
    if constexpr (n == 8) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            t[i] = r[i];
            unzip_blocks<0>(r[i], t[i], r[4 + i]);
            unzip_blocks<1>(r[4 + i], t[i], r[4 + i]);
        }
    }
    if constexpr (n == 16) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            V even[2], odd[2];
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                unzip_blocks<0>(even[h], r[8 * h + i], r[8 * h + 4 + i]);
                unzip_blocks<1>(odd[h], r[8 * h + i], r[8 * h + 4 + i]);
            }
            unzip_blocks<0>(r[i], even[0], even[1]);
            unzip_blocks<0>(r[4 + i], odd[0], odd[1]);
            unzip_blocks<1>(r[8 + i], even[0], even[1]);
            unzip_blocks<1>(r[12 + i], odd[0], odd[1]);
        }
    }
}

// to (8, 8)  <-  the transpose of from (8, 8), of four bytes each; rows lie to_row and from_row bytes apart
ANVIL_INLINE void transpose_8x8(void* to, int64_t to_row, const void* from, int64_t from_row) {
    typedef float V8 __attribute__((vector_size(32)));
    V8 r[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) std::memcpy(&r[i], static_cast<const char*>(from) + i * from_row, sizeof(V8));
    transpose_lanes(r);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) std::memcpy(static_cast<char*>(to) + i * to_row, &r[i], sizeof(V8));
}

// One row of a micro-panel: a row of floats, or two rows of bf16 in pairs.
template <int width>
ANVIL_INLINE void pack_row(float* to, const float* from, int64_t) {
    std::memcpy(to, from, width * sizeof(float));
}
template <int width>
ANVIL_INLINE void pack_row(float* to, const bf16* from, int64_t next_row) {
    uint32_t pairs[width];
    for (int j = 0; j < width; j++) pairs[j] = from[j].bits | uint32_t(from[next_row + j].bits) << 16;
    std::memcpy(to, pairs, sizeof pairs);
}

// One micro-panel:   to (K / kPair, width, kPair)  <-  from (K, cols), zeros beyond K and cols; one of from's strides
// is 1
template <int width, class T>
void pack_micro_panel(float* to, Strided<T> from, int64_t K, int64_t cols) {
    constexpr int64_t pair = kPair<T>;
    const bool transposed = from.col != 1;
    int64_t whole_k = 0, whole_cols = 0;  // what the fast loops pack; the last loop packs the rest
    if (!transposed && cols == width) {   // copies of constant size are two or three instructions
        whole_k = K / pair * pair, whole_cols = cols;
        for (int64_t k = 0; k < whole_k; k += pair)
            pack_row<width>(to + k / pair * width, from.data + k * from.row, from.row);
    } else if (transposed) {
        // std::max: g++ 12.0 would warn about a negative number, which `cols` never is.
        whole_k = K / (8 * pair) * (8 * pair), whole_cols = std::max<int64_t>(cols, 0) / 8 * 8;
        for (int64_t j = 0; j < whole_cols; j += 8)
            for (int64_t k = 0; k < whole_k; k += 8 * pair)
                transpose_8x8(to + k / pair * width + j, width * sizeof(float), from.data + k + j * from.col,
                              from.col * int64_t(sizeof(T)));
    }
    T* out = reinterpret_cast<T*>(to);
    for (int64_t k = 0; k < (K + pair - 1) / pair * pair; k++)
        for (int64_t j = k < whole_k ? whole_cols : 0; j < width; j++)
            out[(k / pair * width + j) * pair + k % pair] =
                k < K && j < cols ? from.data[k * from.row + j * from.col] : T{};
}

// Micro-panels of a transposed A that are packed together: one alone uses few values of each cache line of A, which
// would be fetched again for the next.
inline constexpr int kPackedTogether = 96 / kMR;

// One step of k of a micro-panel of a transposed A: `rows` lanes, zeros in the others and beyond K.
ANVIL_INLINE FloatRegister load_step(const float* p, int rows, int64_t, int64_t) {
#if defined(__AVX512F__)
    return _mm512_maskz_loadu_ps(lane_mask(rows), p);
#elif defined(__AVX2__)
    return _mm256_maskload_ps(p, lane_mask(rows));
#else
    FloatRegister x{};
    std::memcpy(&x, p, size_t(rows) * sizeof(float));
    return x;
#endif
}
ANVIL_INLINE Bf16Register load_halves(const bf16* p, int rows) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return Bf16Register(_mm256_maskz_loadu_epi16(lane_mask(rows), p));
#else
    Bf16Register x{};
    std::memcpy(&x, p, size_t(rows) * sizeof(bf16));
    return x;
#endif
}
ANVIL_INLINE FloatRegister load_step(const bf16* p, int rows, int64_t next_row, int64_t terms) {
    const FloatRegister first = to_f32(load_halves(p, rows));
    const FloatRegister second = terms > 1 ? to_f32(load_halves(p + next_row, rows)) : FloatRegister{};
    return FloatRegister(UintRegister(first) >> 16 | UintRegister(second));
}

// Four steps of k of MR rows, in the first lanes of four registers, are three registers of the micro-panel. This is the
// lane of registers `part` and part + 1 that becomes `lane` of the part.
template <int part>
constexpr int packed_lane(int lane) {
    const int at = part * kRegisterLanes + lane;
    return (at / kMR - part) * kRegisterLanes + at % kMR;
}

// pack_a() for an A whose columns are contiguous
template <class T>
void pack_transposed_a(float* to, Strided<T> a, int64_t rows, int64_t K) {
    static_assert(4 * kMR == 3 * kRegisterLanes);
    constexpr int64_t pair = kPair<T>;
    const int64_t steps = (K + pair - 1) / pair;
    for (int64_t step = 0; step < steps; step += 4)
        for (int64_t i = 0; i < rows; i += kMR) {
            const int64_t steps_here = std::min<int64_t>(4, steps - step);
            const int rows_here = int(std::min<int64_t>(kMR, rows - i));
            FloatRegister r[4] = {}, packed[3];
#pragma GCC unroll 4
            for (int s = 0; s < 4; s++) {
                const int64_t k = (step + s) * pair;
                if (s < steps_here) r[s] = load_step(a.data + i + k * a.col, rows_here, a.col, K - k);
            }
            pick_lanes<packed_lane<0>>(packed[0], r[0], r[1]);
            pick_lanes<packed_lane<1>>(packed[1], r[1], r[2]);
            pick_lanes<packed_lane<2>>(packed[2], r[2], r[3]);
            float* at = to + i * steps + step * kMR;
            if (steps_here == 4)
                std::memcpy(at, packed, sizeof packed);
            else
                std::memcpy(at, packed, size_t(steps_here * kMR) * sizeof(float));
        }
}

// to (panels, K / kPair, kMR, kPair)  <-  a (rows, K), zeros beyond K and rows
template <class T>
void pack_a(float* to, Strided<T> a, int64_t rows, int64_t K) {
    if constexpr (4 * kMR == 3 * kRegisterLanes)
        if (a.row == 1) return pack_transposed_a(to, a, rows, K);
    const int64_t panel = (K + kPair<T> - 1) / kPair<T> * kMR;
    for (int64_t i = 0; i < rows; i += kMR, to += panel)
        pack_micro_panel<kMR>(to, a.at(i, 0).transposed(), K, std::min<int64_t>(kMR, rows - i));
}

// to (panels, K / kPair, kNR, kPair)  <-  b (K, N), zeros beyond K and N
template <class T>
void pack_b(float* to, Strided<T> b, int64_t K, int64_t N) {
    const int64_t panel = packed_size<T>(K, 1);
    for (int64_t j = 0; j < N; j += kNR, to += panel)
        pack_micro_panel<kNR>(to, b.at(0, j), K, std::min<int64_t>(kNR, N - j));
}

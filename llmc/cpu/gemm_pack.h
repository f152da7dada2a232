/*
Packs the operands of a GEMM (gemm_plan.h): B into micro-panels of NR columns and A, if it cannot be read in place, into
micro-panels of MR rows. The last micro-panel is padded with zeros.

  packed B   (panels, K, NR)      a micro-panel is contiguous, with row k after row k - 1
  packed A   (panels, K, MR)      the same for the transpose of A

bf16 is packed as P, one of two types (bf16_pairs.h). As bf16, it is multiplied in pairs of neighbors in k: the two
values of a pair lie side by side, (panels, K / 2, NR, 2). As float, it is widened, and neighbors in k change places,
because the second of a pair is added first.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include "llmc/base/bf16.h"      // bf16
#include "llmc/cpu/gemm_plan.h"  // kMR, kNR, kPair
#include "llmc/cpu/simd.h"

// A matrix in memory: element (i, j) is data[i * row + j * col]. BLIS calls the strides rs and cs. What is called for
// each tile takes it by reference: by value it is written to the stack in parts and copied whole. Processors do not
// forward the parts to such a load, so it waits until all stores before it, of a tile of C, have reached the cache.
template <class T>
struct Strided {
    const T* data;
    int64_t row, col;

    Strided at(int64_t i, int64_t j) const { return {data + i * row + j * col, row, col}; }
    Strided transposed() const { return {data, col, row}; }
};
template <class T>
Strided(const T*, int64_t, int64_t) -> Strided<T>;  // clang before 17 deduces none for an aggregate

// Whether the rows of a tile share a set of the L1 cache and do not fit in its 8 to 12 lines.
template <class T>
bool rows_collide(const Strided<T>& a) {
    return kMR > 8 && a.col == 1 && a.row * int64_t(sizeof(T)) % 4096 == 0;
}

// The number of micro-panels of B (K, N).
inline int64_t num_panels(int64_t N) { return (N + kNR - 1) / kNR; }
// The steps of the micro-kernel for K terms of T that are packed as P.
template <class P, class T = P>
constexpr int64_t packed_steps(int64_t K) {
    return (K + kPair<T> - 1) / kPair<T> * (kPair<T> / kPair<P>);
}
// The size of packed B in floats.
template <class P, class T = P>
int64_t packed_size(int64_t K, int64_t N) {
    return num_panels(N) * kNR * packed_steps<P, T>(K);
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

// The transpose of from (8, 8), of four bytes each; rows lie from_row bytes apart
typedef float V8 __attribute__((vector_size(32)));
ANVIL_INLINE void load_transposed(V8 (&r)[8], const void* from, int64_t from_row) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) std::memcpy(&r[i], static_cast<const char*>(from) + i * from_row, sizeof(V8));
    transpose_lanes(r);
}
ANVIL_INLINE void transpose_8x8(void* to, int64_t to_row, const void* from, int64_t from_row) {
    V8 r[8];
    load_transposed(r, from, from_row);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) std::memcpy(static_cast<char*>(to) + i * to_row, &r[i], sizeof(V8));
}

// Whether operands of T are packed as the wider P.
template <class P, class T>
inline constexpr bool kWidens = sizeof(P) > sizeof(T);

// kPair<T> rows of a micro-panel: one of floats, or two of bf16 in pairs or widened
template <int width, class P, class T>
ANVIL_INLINE void pack_row(float* to, const T* from, int64_t next_row) {
    if constexpr (kWidens<P, T>) {
        for (int j = 0; j < width; j++) to[j] = to_float(from[next_row + j]);
        for (int j = 0; j < width; j++) to[width + j] = to_float(from[j]);
    } else if constexpr (kPair<T> == 2) {
        uint32_t pairs[width];
        for (int j = 0; j < width; j++) pairs[j] = from[j].bits | uint32_t(from[next_row + j].bits) << 16;
        std::memcpy(to, pairs, sizeof pairs);
    } else {
        std::memcpy(to, from, width * sizeof(float));
    }
}
// The same for eight times as many rows of eight columns, which are contiguous and lie from_col apart
template <int width, class P, class T>
ANVIL_INLINE void pack_eight_columns(float* to, const T* from, int64_t from_col) {
    typedef uint32_t U8 __attribute__((vector_size(32)));
    V8 r[8];
    load_transposed(r, from, from_col * int64_t(sizeof(T)));
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        if constexpr (kWidens<P, T>) {
            const U8 second = U8(r[i]) & 0xFFFF0000u, first = U8(r[i]) << 16;
            std::memcpy(to + 2 * i * width, &second, sizeof second);
            std::memcpy(to + (2 * i + 1) * width, &first, sizeof first);
        } else {
            std::memcpy(to + i * width, &r[i], sizeof r[i]);
        }
    }
}

// One micro-panel:   to (steps of k, width)  <-  from (K, cols), zeros beyond K and cols; one of from's strides is 1
template <int width, class P, class T>
void pack_micro_panel(float* to, const Strided<T>& from, int64_t K, int64_t cols) {
    constexpr int64_t pair = kPair<T>;
    const bool transposed = from.col != 1;
    int64_t whole_k = 0, whole_cols = 0;  // what the fast loops pack; the last loop packs the rest
    if (!transposed && cols == width) {   // copies of constant size are two or three instructions
        whole_k = K / pair * pair, whole_cols = cols;
        for (int64_t k = 0; k < whole_k; k += pair)
            pack_row<width, P>(to + k / kPair<P> * width, from.data + k * from.row, from.row);
    } else if (transposed) {
        // std::max: g++ 12.0 would warn about a negative number, which `cols` never is.
        whole_k = K / (8 * pair) * (8 * pair), whole_cols = std::max<int64_t>(cols, 0) / 8 * 8;
        for (int64_t j = 0; j < whole_cols; j += 8)
            for (int64_t k = 0; k < whole_k; k += 8 * pair)
                pack_eight_columns<width, P>(to + k / kPair<P> * width + j, from.data + k + j * from.col, from.col);
    }
    P* out = reinterpret_cast<P*>(to);
    for (int64_t k = 0; k < (K + pair - 1) / pair * pair; k++)
        for (int64_t j = k < whole_k ? whole_cols : 0; j < width; j++) {
            const T value = k < K && j < cols ? from.data[k * from.row + j * from.col] : T{};
            if constexpr (kWidens<P, T>)
                out[(k ^ 1) * width + j] = to_float(value);
            else
                out[(k / pair * width + j) * pair + k % pair] = value;
        }
}

// Neighbors change places: lanes 1, 0, 3, 2, ...
constexpr int neighbor_lane(int lane) { return lane ^ 1; }
ANVIL_INLINE FloatRegister swap_neighbors(FloatRegister x) {
    FloatRegister out;
    pick_lanes<neighbor_lane>(out, x, x);
    return out;
}

// The first n lanes from memory, zeros in the others. Memory after those lanes is not accessed.
ANVIL_INLINE FloatRegister load_lanes(const float* p, int n) {
#if defined(__AVX512F__)
    return _mm512_maskz_loadu_ps(lane_mask(n), p);
#elif defined(__AVX2__)
    return _mm256_maskload_ps(p, lane_mask(n));
#else
    FloatRegister x{};
    std::memcpy(&x, p, size_t(n) * sizeof(float));
    return x;
#endif
}
ANVIL_INLINE FloatRegister load_lanes(const bf16* p, int n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return to_f32(Bf16Register(_mm256_maskz_loadu_epi16(lane_mask(n), p)));
#else
    Bf16Register halves{};
    if (n == kRegisterLanes)  // a constant size is one instruction
        std::memcpy(&halves, p, sizeof halves);
    else
        std::memcpy(&halves, p, size_t(n) * sizeof(bf16));
    return to_f32(halves);
#endif
}

// One step of k for n rows of a micro-panel, from K terms of which each has its rows side by side. A constant K beyond
// those that are needed saves comparisons.
template <class P, class T, class Terms>
ANVIL_INLINE FloatRegister load_step(const Strided<T>& from, int64_t step, int n, Terms K) {
    const auto term = [=](int64_t k) { return k < K ? load_lanes(from.data + k * from.col, n) : FloatRegister{}; };
    if constexpr (kWidens<P, T>)
        return term(step ^ 1);
    else if constexpr (kPair<T> == 2)
        return FloatRegister(UintRegister(term(2 * step)) >> 16 | UintRegister(term(2 * step + 1)));
    else
        return term(step);
}

// Four steps of k of MR rows, in the first lanes of four registers, are three registers of the micro-panel. This is the
// lane of registers `part` and part + 1 that becomes `lane` of the part.
template <int part>
constexpr int packed_lane(int lane) {
    const int at = part * kRegisterLanes + lane;
    return (at / kMR - part) * kRegisterLanes + at % kMR;
}

// pack_a() for an A whose columns are contiguous, where MR is three quarters of a register
template <class P, class T>
void pack_transposed_a(float* to, int64_t panel, const Strided<T>& a, int64_t rows, int64_t K) {
    const int64_t steps = packed_steps<P, T>(K);
    const auto four_steps = [=](FloatRegister(&packed)[3], int64_t i, int64_t step, auto terms) ANVIL_LAMBDA {
        FloatRegister r[4];
#pragma GCC unroll 4
        for (int s = 0; s < 4; s++)
            r[s] = load_step<P>(a.at(i, 0), step + s, int(std::min<int64_t>(kMR, rows - i)), terms);
        pick_lanes<packed_lane<0>>(packed[0], r[0], r[1]);
        pick_lanes<packed_lane<1>>(packed[1], r[1], r[2]);
        pick_lanes<packed_lane<2>>(packed[2], r[2], r[3]);
    };
    constexpr std::integral_constant<int64_t, std::numeric_limits<int64_t>::max()> kAll;
    int64_t step = 0;
    FloatRegister packed[3];
    for (; (step + 4) * kPair<P> <= K; step += 4)
        for (int64_t i = 0; i < rows; i += kMR) {
            four_steps(packed, i, step, kAll);
            std::memcpy(to + i / kMR * panel + step * kMR, packed, sizeof packed);
        }
    for (; step < steps; step += 4)
        for (int64_t i = 0; i < rows; i += kMR) {
            four_steps(packed, i, step, K);
            std::memcpy(to + i / kMR * panel + step * kMR, packed,
                        size_t(std::min<int64_t>(4, steps - step) * kMR) * sizeof(float));
        }
}

// to (rows, K), to_row floats apart  <-  from (rows, K); if widened, with zeros beyond K up to whole pairs
template <class P, class T>
void copy_rows(float* to, int64_t to_row, const Strided<T>& from, int64_t rows, int64_t K) {
    for (int64_t i = 0; i < rows; i++, to += to_row) {
        const T* row = from.data + i * from.row;
        if constexpr (!kWidens<P, T>) {
            std::memcpy(to, row, size_t(K) * sizeof(T));
            continue;
        }
        int64_t k = 0;
        for (; k + kRegisterLanes <= K; k += kRegisterLanes) {
            const FloatRegister x = swap_neighbors(load_lanes(row + k, kRegisterLanes));
            std::memcpy(to + k, &x, sizeof x);
        }
        for (; k < packed_steps<P, T>(K); k++) to[k] = (k ^ 1) < K ? to_float(row[k ^ 1]) : 0;
    }
}

// to (panels, steps of k, kMR), panels `panel` floats apart  <-  a (rows, K), zeros beyond K and rows
template <class P, class T>
void pack_a(float* to, int64_t panel, const Strided<T>& a, int64_t rows, int64_t K) {
    if constexpr (4 * kMR == 3 * kRegisterLanes)
        if (a.row == 1) return pack_transposed_a<P>(to, panel, a, rows, K);
    for (int64_t i = 0; i < rows; i += kMR, to += panel)
        pack_micro_panel<kMR, P>(to, a.at(i, 0).transposed(), K, std::min<int64_t>(kMR, rows - i));
}

// to (panels, steps of k, kNR)  <-  b (K, N), zeros beyond K and N
template <class P, class T>
void pack_b(float* to, const Strided<T>& b, int64_t K, int64_t N) {
    const int64_t panel = packed_size<P, T>(K, 1);
    for (int64_t j = 0; j < N; j += kNR, to += panel)
        pack_micro_panel<kNR, P>(to, b.at(0, j), K, std::min<int64_t>(kNR, N - j));
}

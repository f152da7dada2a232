/*
How the operands of a matrix product lie in memory: a matrix of any strides, and the panels into which its right factor
is packed, kTileCols columns each, zeros filling the last one.

Operands in bf16 are taken two at a time, neighbours in k: a panel of bf16 consists of such pairs, column by column.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include "llmc/base/bf16.h"  // bf16
#include "llmc/cpu/simd.h"

// Sums of so many rows and registers stay in registers while k runs.
#if defined(__AVX512F__)
inline constexpr int kTileRows = 12, kTileRegisters = 2;  // 24 of 32 registers hold sums
#elif defined(__ARM_NEON)
inline constexpr int kTileRows = 6, kTileRegisters = 4;  // 24 of 32
#else
inline constexpr int kTileRows = 6, kTileRegisters = 2;  // 12 of AVX2's 16
#endif
inline constexpr int kTileCols = kTileRegisters * kRegisterLanes;

// A matrix in memory: element (i, j) is data[i * row + j * col].
template <class T>
struct Strided {
    const T* data;
    int64_t row, col;

    Strided at(int64_t i, int64_t j) const { return {data + i * row + j * col, row, col}; }
    Strided transposed() const { return {data, col, row}; }
};

// What is multiplied at a time has four bytes: one float, or a pair of bf16. Of a float there is one.
template <class T>
inline constexpr int64_t kPair = int64_t(sizeof(float) / sizeof(T));

// Terms that are summed in one go, part of the definition of the result: see gemm.h. In tiles, whose sums it has no say
// in, it is what stays in the L1 cache.
template <class T>
inline constexpr int64_t kBlockK = 256 * kPair<T>;
inline constexpr int64_t kTileBlockK = 256;

inline int64_t num_panels(int64_t N) { return (N + kTileCols - 1) / kTileCols; }
// Floats that packed panels take.
template <class T>
int64_t packed_size(int64_t K, int64_t N) {
    return num_panels(N) * kTileCols * ((K + kPair<T> - 1) / kPair<T>);
}

// to (8, 8)  <-  the transpose of from (8, 8), of four bytes each; rows lie to_row and from_row bytes apart
ANVIL_INLINE void transpose_8x8(void* to, int64_t to_row, const void* from, int64_t from_row) {
    typedef float V8 __attribute__((vector_size(32)));
    V8 r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) std::memcpy(&r[i], static_cast<const char*>(from) + i * from_row, sizeof(V8));
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        t[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 8; i++) {
        if (i & 2) continue;
        r[i] = __builtin_shufflevector(t[i], t[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        r[i + 2] = __builtin_shufflevector(t[i], t[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = __builtin_shufflevector(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        t[i + 4] = __builtin_shufflevector(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) std::memcpy(static_cast<char*>(to) + i * to_row, &t[i], sizeof(V8));
}

// Row k of a panel: one row of what is packed, or two, column by column.
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

// to (K / kPair, width), contiguous  <-  from (K, cols), zeros beyond K and cols; one of from's strides is 1
template <int width, class T>
void pack_panel(float* to, Strided<T> from, int64_t K, int64_t cols) {
    constexpr int64_t pair = kPair<T>;
    const bool turned = from.col != 1;
    int64_t whole_k = 0, whole_cols = 0;  // of which is done in blocks
    if (!turned && cols == width) {       // copies of constant size are two or three instructions
        whole_k = K / pair * pair, whole_cols = cols;
        for (int64_t k = 0; k < whole_k; k += pair)
            pack_row<width>(to + k / pair * width, from.data + k * from.row, from.row);
    } else if (turned) {
        whole_k = K / (8 * pair) * (8 * pair), whole_cols = cols / 8 * 8;
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

// A transposed left factor is packed so many rows at a time: of a strip alone, a few values of each of its columns,
// every cache line would be fetched again for the next one.
inline constexpr int kStripsAtOnce = 48 / kTileRows;

// to (strips, K / kPair, kTileRows)  <-  the transpose of a (rows, K), zeros beyond K and rows; a strip is kTileRows
// rows
template <class T>
void pack_strips(float* to, Strided<T> a, int64_t rows, int64_t K) {
    constexpr int64_t pair = kPair<T>;
    const int64_t strip = (K + pair - 1) / pair * kTileRows;
    if (a.row == 1 && rows == kStripsAtOnce * kTileRows && K % pair == 0) {
        for (int64_t k = 0; k < K; k += pair, to += kTileRows)
#pragma GCC unroll 16
            for (int s = 0; s < kStripsAtOnce; s++)
                pack_row<kTileRows>(to + s * strip, a.data + k * a.col + s * kTileRows, a.col);
        return;
    }
    for (int64_t i = 0; i < rows; i += kTileRows, to += strip)
        pack_panel<kTileRows>(to, a.at(i, 0).transposed(), K, std::min<int64_t>(kTileRows, rows - i));
}

// to (panels, K / kPair, kTileCols)  <-  from (K, N)
template <class T>
void pack_panels(float* to, Strided<T> from, int64_t K, int64_t N) {
    const int64_t panel = packed_size<T>(K, 1);
    for (int64_t j = 0; j < N; j += kTileCols, to += panel)
        pack_panel<kTileCols>(to, from.at(0, j), K, std::min<int64_t>(kTileCols, N - j));
}

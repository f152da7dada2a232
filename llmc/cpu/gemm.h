/*
The inner loops of every matrix product:   C (M,N) = or += A (M,K) B (K,N) [+ bias (N)]

B is packed into panels of kTileCols columns, zeros filling the last one; a tile of kTileRows x kTileCols of C then
stays in registers while k runs (Goto and van de Geijn, 2008, doi:10.1145/1356052.1356053). A is read in place by
broadcasts through two strides, so it may be transposed.

Each element of C is one chain of fused multiply-adds over a block of kBlockK, and the blocks are added in order.
Neither the tile's shape, which follows the machine's registers, nor the number of threads has any say in that: same
bits everywhere.

  pack_panels(...)       one block of B into panels
  multiply_panels(...)   one thread: C (=, +=) A times packed panels; what attention is made of
  gemm(...)              all threads, any size; what matmul is made of
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/simd.h"

#if defined(__AVX512F__)
inline constexpr int kTileRows = 12, kTileRegisters = 2;  // 24 of 32 registers hold sums
#elif defined(__ARM_NEON)
inline constexpr int kTileRows = 6, kTileRegisters = 4;  // 24 of 32
#else
inline constexpr int kTileRows = 6, kTileRegisters = 2;  // 12 of AVX2's 16
#endif
inline constexpr int kTileCols = kTileRegisters * kRegisterLanes;
inline constexpr int64_t kBlockK = 256;  // part of the definition of the result: see above

// A matrix in memory: element (i, j) is data[i * row + j * col].
struct Strided {
    const float* data;
    int64_t row, col;

    Strided at(int64_t i, int64_t j) const { return {data + i * row + j * col, row, col}; }
};

enum class Write { set, add };

inline int64_t num_panels(int64_t N) { return (N + kTileCols - 1) / kTileCols; }
inline int64_t packed_size(int64_t K, int64_t N) { return num_panels(N) * kTileCols * K; }  // floats

// to (8, 8)  <-  the transpose of from (8, 8); rows lie to_row and from_row floats apart
ANVIL_INLINE void transpose_8x8(float* to, int64_t to_row, const float* from, int64_t from_row) {
    typedef float V8 __attribute__((vector_size(32)));
    V8 r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) std::memcpy(&r[i], from + i * from_row, sizeof(V8));
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
    for (int i = 0; i < 8; i++) std::memcpy(to + i * to_row, &t[i], sizeof(V8));
}

// to (K, width), contiguous  <-  from (K, cols), zeros beyond cols; one of from's strides is 1
template <int width>
void pack_panel(float* to, Strided from, int64_t K, int64_t cols) {
    if (from.col == 1 && cols == width) {  // copies of constant size are two or three instructions
        for (int64_t k = 0; k < K; k++) std::memcpy(to + k * width, from.data + k * from.row, width * sizeof(float));
        return;
    }
    const bool turned = from.col != 1;
    const int64_t whole_cols = turned ? cols / 8 * 8 : 0, whole_k = turned ? K / 8 * 8 : 0;
    for (int64_t j = 0; j < whole_cols; j += 8)
        for (int64_t k = 0; k < whole_k; k += 8)
            transpose_8x8(to + k * width + j, width, from.data + k + j * from.col, from.col);
    for (int64_t k = 0; k < K; k++)
        for (int64_t j = k < whole_k ? whole_cols : 0; j < width; j++)
            to[k * width + j] = j < cols ? from.data[k * from.row + j * from.col] : 0;
}

// to (panels, K, kTileCols)  <-  from (K, N)
inline void pack_panels(float* to, Strided from, int64_t K, int64_t N) {
    for (int64_t j = 0; j < N; j += kTileCols)
        pack_panel<kTileCols>(to + j * K, from.at(0, j), K, std::min<int64_t>(kTileCols, N - j));
}

// One tile: c (rows, cols) (=, +=) a (rows, K) panel (K, kTileCols) [+ bias]. `rows` is a constant so that the sums
// stay in registers.
template <int rows>
void multiply_tile(float* c, int64_t c_row, int64_t cols, Strided a, const float* panel, int64_t K, const float* bias,
                   Write write) {
    FloatRegister sum[rows][kTileRegisters] = {};
    const float* a_k = a.data;
    for (int64_t k = 0; k < K; k++, a_k += a.col, panel += kTileCols) {
        FloatRegister b[kTileRegisters];
#pragma GCC unroll 4
        for (int r = 0; r < kTileRegisters; r++) std::memcpy(&b[r], panel + r * kRegisterLanes, sizeof b[r]);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            const FloatRegister a_ik = FloatRegister{} + a_k[i * a.row];
#pragma GCC unroll 4
            for (int r = 0; r < kTileRegisters; r++) sum[i][r] = fused(a_ik, b[r], sum[i][r]);
        }
    }
    // A tile at the right edge is finished in a copy of full width.
    float edge[rows][kTileCols], edge_bias[kTileCols] = {};
    const bool whole = cols == kTileCols;
    if (!whole) {
        for (int i = 0; i < rows; i++) std::memcpy(edge[i], c + i * c_row, size_t(cols) * sizeof(float));
        if (bias) bias = static_cast<const float*>(std::memcpy(edge_bias, bias, size_t(cols) * sizeof(float)));
    }
#pragma GCC unroll 4
    for (int r = 0; r < kTileRegisters; r++) {
        FloatRegister offset{};
        if (bias) std::memcpy(&offset, bias + r * kRegisterLanes, sizeof offset);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            float* out = (whole ? c + i * c_row : edge[i]) + r * kRegisterLanes;
            if (bias) sum[i][r] += offset;
            if (write == Write::add) {
                FloatRegister old;
                std::memcpy(&old, out, sizeof old);
                sum[i][r] += old;
            }
            std::memcpy(out, &sum[i][r], sizeof sum[i][r]);
        }
    }
    if (!whole)
        for (int i = 0; i < rows; i++) std::memcpy(c + i * c_row, edge[i], size_t(cols) * sizeof(float));
}

template <int rows>
ANVIL_INLINE void multiply_rows(int64_t M, float* c, int64_t c_row, int64_t cols, Strided a, const float* panel,
                                int64_t K, const float* bias, Write write) {
    if constexpr (rows > 0) {
        if (M == rows)
            multiply_tile<rows>(c, c_row, cols, a, panel, K, bias, write);
        else
            multiply_rows<rows - 1>(M, c, c_row, cols, a, panel, K, bias, write);
    }
}

// c (M, N) (=, +=) a (M, K) times packed panels, by the calling thread; K <= kBlockK
inline void multiply_panels(float* c, int64_t c_row, int64_t M, int64_t N, int64_t K, Strided a, const float* panels,
                            const float* bias, Write write) {
    for (int64_t j = 0; j < N; j += kTileCols)
        for (int64_t i = 0; i < M; i += kTileRows)
            multiply_rows<kTileRows>(std::min<int64_t>(kTileRows, M - i), c + i * c_row + j, c_row,
                                     std::min<int64_t>(kTileCols, N - j), a.at(i, 0), panels + j * K, K,
                                     bias ? bias + j : nullptr, write);
}

// c (M, N), rows c_row apart  (=, +=)  a (M, K) b (K, N) + bias (N, may be null)
inline void gemm(Cpu& cpu, float* c, int64_t c_row, int64_t M, int64_t N, int64_t K, Strided a, Strided b,
                 const float* bias, Write write) {
    constexpr int64_t kPackedCols = 2048;  // a block of B: kBlockK x kPackedCols floats, 2 MiB, shared by all threads
    constexpr int64_t kMostChunkRows = 16 * kTileRows;  // rows of A that stay in a core's L2 while its panels pass by
    const bool pack_a = a.col != 1;  // a transposed A is copied into strips of kTileRows, contiguous in k
    const int64_t block_k = std::min(K, kBlockK), strips = (M + kTileRows - 1) / kTileRows;
    // Chunks of equal size, to a tile, so that each thread gets as much as the next.
    const int64_t chunks = (M + kMostChunkRows - 1) / kMostChunkRows;
    const int64_t chunk_rows = (strips + chunks - 1) / chunks * kTileRows;
    float* packed_b =
        cpu.shared(packed_size(block_k, std::min(N, kPackedCols)) + (pack_a ? strips * kTileRows * block_k : 0));
    float* packed_a = packed_b + packed_size(block_k, std::min(N, kPackedCols));

    for (int64_t j0 = 0; j0 < N; j0 += kPackedCols) {
        const int64_t cols = std::min(kPackedCols, N - j0), panels = num_panels(cols);
        for (int64_t k0 = 0; k0 < K; k0 += kBlockK) {
            const int64_t depth = std::min(kBlockK, K - k0);
            parallel_for(cpu, panels + (pack_a ? strips : 0), [=](int64_t item) {
                if (item < panels) {
                    const int64_t j = item * kTileCols;
                    pack_panel<kTileCols>(packed_b + j * depth, b.at(k0, j0 + j), depth,
                                          std::min<int64_t>(kTileCols, cols - j));
                } else {  // strip (depth, kTileRows): A's rows are the columns of a panel
                    const int64_t i = (item - panels) * kTileRows;
                    const Strided turned{a.data + i * a.row + k0 * a.col, a.col, a.row};
                    pack_panel<kTileRows>(packed_a + i * depth, turned, depth, std::min<int64_t>(kTileRows, M - i));
                }
            });
            const float* block_bias = bias && k0 == 0 ? bias + j0 : nullptr;
            const Write block_write = k0 == 0 ? write : Write::add;
            parallel_for(cpu, chunks * panels, [=](int64_t item) {
                const int64_t j = item % panels * kTileCols;
                const int64_t begin = item / panels * chunk_rows, end = std::min(M, begin + chunk_rows);
                for (int64_t i = begin; i < end; i += kTileRows)
                    multiply_panels(c + i * c_row + j0 + j, c_row, std::min<int64_t>(kTileRows, end - i),
                                    std::min<int64_t>(kTileCols, cols - j), depth,
                                    pack_a ? Strided{packed_a + i * depth, 1, kTileRows} : a.at(i, k0),
                                    packed_b + j * depth, block_bias ? block_bias + j : nullptr, block_write);
            });
        }
    }
}

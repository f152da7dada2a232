/*
C (M,N) = A (M,K) B (K,N) [+ bias (N)] with few rows of A and contiguous columns of B, as in weight^T: B is read once,
in place. That is a linear layer in generation, with one row per sequence, and takes as long as reading the weights from
memory. Packing them (gemm_pack.h) would write and read all of them once more, for a single use.

Blocks of kRegisterLanes terms of as many columns are transposed in registers, so that lanes are columns. Then k runs as
in gemm_micro_kernel.h, whose bit-exact definition of the result also holds here.

Columns are short, and several are read side by side, which hardware prefetchers do not predict. So B is prefetched by
instructions, far ahead and into L2: L1, which is refilled from L2 in time, has too few fill buffers for lines on their
way from memory.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include "llmc/cpu/gemm_micro_kernel.h"  // broadcast_pair, load_register, multiply_add, store_register
#include "llmc/cpu/gemm_pack.h"          // Strided, transpose_lanes
#include "llmc/cpu/gemm_plan.h"          // kBlockK, kPair, kStreamedRows
#include "llmc/cpu/simd.h"

// A has the type P as which operands are multiplied, so that each use is a plain load. B is widened in registers.
template <class P, class T>
ANVIL_INLINE FloatRegister multiply_add_terms(const P* a, FloatRegister b, FloatRegister sum) {
    if constexpr (kWidens<P, T>)
        return fma(broadcast_pair(a), first_of_pairs(b), fma(broadcast_pair(a + 1), second_of_pairs(b), sum));
    else
        return multiply_add<T>(broadcast_pair(a), b, sum);
}

// Registers of columns that are read side by side. One row in one register would be a single chain of multiply-adds,
// each waiting for the one before.
template <int rows>
inline constexpr int kStreamedRegisters = rows * kRegisters <= 4 ? kRegisters : 1;

// How far ahead B is prefetched, in bytes. Prefetching past the end of B is harmless.
inline constexpr int64_t kStreamedAhead = 32 << 10;

// c (M, width)  =  a (M, K) b (K, width) + bias (width, may be null), M <= rows, width = kStreamedRegisters registers
template <int rows, class P, class T>
void stream_columns(T* c, int64_t c_row, int64_t M, int64_t K, Strided<P> a, Strided<T> b, const T* bias) {
    constexpr int registers = kStreamedRegisters<rows>, width = registers * kRegisterLanes;
    constexpr int64_t step = kLanes * kPair<T>;  // 64 bytes of a column
    static_assert(kBlockK<T> % step == 0);
    const int64_t steps = std::max<int64_t>(K / step, 1), ahead = kStreamedAhead / (64 * width);
    const T* next_b = b.data + ahead / steps * width * b.col;
    int64_t next_k = ahead % steps;

    const P* a_row[rows];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) a_row[i] = a.data + std::min<int64_t>(i, M - 1) * a.row;
    FloatRegister total[registers][rows] = {};
    for (int64_t k0 = 0; k0 < K; k0 += kBlockK<T>) {
        const int64_t end = std::min(K, k0 + kBlockK<T>);
        FloatRegister sum[registers][rows] = {};
        int64_t k = k0;
        for (; k + step <= end; k += step) {
            for (int j = 0; j < width; j++) __builtin_prefetch(next_b + j * b.col + next_k * step, 0, 2);
            if (++next_k == steps) next_k = 0, next_b += width * b.col;
            for (int64_t part = k; part < k + step; part += kRegisterLanes * kPair<T>)
#pragma GCC unroll 4
                for (int r = 0; r < registers; r++) {
                    FloatRegister terms[kRegisterLanes];
#pragma GCC unroll 16
                    for (int j = 0; j < kRegisterLanes; j++)
                        std::memcpy(&terms[j], b.data + (r * kRegisterLanes + j) * b.col + part, sizeof terms[j]);
                    transpose_lanes(terms);
#pragma GCC unroll 16
                    for (int t = 0; t < kRegisterLanes; t++)
#pragma GCC unroll 8
                        for (int i = 0; i < rows; i++)
                            sum[r][i] = multiply_add_terms<P, T>(a_row[i] + part + t * kPair<T>, terms[t], sum[r][i]);
                }
        }
        for (; k < end; k += kPair<T>)  // the last terms
#pragma GCC unroll 4
            for (int r = 0; r < registers; r++) {
                float terms[kRegisterLanes];
                for (int j = 0; j < kRegisterLanes; j++)
                    std::memcpy(&terms[j], b.data + (r * kRegisterLanes + j) * b.col + k, sizeof terms[j]);
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++)
                    sum[r][i] = multiply_add_terms<P, T>(a_row[i] + k, load_register(terms), sum[r][i]);
            }
#pragma GCC unroll 4
        for (int r = 0; r < registers; r++)
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                // As in the micro-kernel: in fp32 the bias belongs to the first block.
                if constexpr (std::is_same_v<T, float>)
                    if (k0 == 0 && bias) sum[r][i] += load_register(bias + r * kRegisterLanes);
                total[r][i] = k0 == 0 ? sum[r][i] : sum[r][i] + total[r][i];
            }
    }
#pragma GCC unroll 4
    for (int r = 0; r < registers; r++)
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            if constexpr (!std::is_same_v<T, float>)
                total[r][i] += bias ? load_register(bias + r * kRegisterLanes) : FloatRegister{};
            if (i < M) store_register(c + i * c_row + r * kRegisterLanes, total[r][i]);
        }
}

// The same for kLanes columns and M <= kStreamedRows. M is rounded up to a power of two: memory is the bottleneck, so
// the additional rows cost nothing.
template <int rows = kStreamedRows, class P, class T>
void stream_lanes(T* c, int64_t c_row, int64_t M, int64_t K, Strided<P> a, Strided<T> b, const T* bias) {
    if constexpr (rows > 1)
        if (M <= rows / 2) return stream_lanes<rows / 2>(c, c_row, M, K, a, b, bias);
    constexpr int width = kStreamedRegisters<rows> * kRegisterLanes;
    for (int64_t j = 0; j < kLanes; j += width)
        stream_columns<rows>(c + j, c_row, M, K, a, b.at(0, j), bias ? bias + j : nullptr);
}

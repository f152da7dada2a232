/*
C (M,N) = A (M,K) B (K,N) [+ bias (N)] with few rows of A and contiguous columns of B, as in weight^T: B is read once,
in place. That is a linear layer in generation, with one row per sequence, and takes as long as reading the weights from
memory. Packing them (gemm_pack.h) would write and read all of them once more, for a single use.

Blocks of kRegisterLanes terms of as many columns are transposed in registers, so that lanes are columns, and stored to
L1. Then k runs as in gemm_micro_kernel.h, whose bit-exact definition of the result also holds here.

Columns are short, and several are read side by side, which hardware prefetchers do not predict. So B is prefetched by
instructions, a block of columns ahead (ColumnsAhead), and into L2: L1, which is refilled from L2 in time, has too few
fill buffers for lines on their way from memory. For the same reason they take turns with loads and multiply-adds: in a
burst they would take all of those buffers, and the loads of this block would wait for memory.

With AMX: stream_columns_in_tiles() of gemm_tiles.h.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include "llmc/cpu/gemm_micro_kernel.h"  // broadcast_pair, load_register, multiply_add, store_register
#include "llmc/cpu/gemm_pack.h"          // Strided, transpose_lanes
#include "llmc/cpu/gemm_plan.h"          // kBlockK, kPair, kStreamedRows
#include "llmc/cpu/gemm_tiles.h"         // StreamPlace
#include "llmc/cpu/simd.h"

// Registers of columns that are read side by side. Each is a chain of multiply-adds that wait for the one before, so
// that there are several even for one row. Sums take half of all registers, two thirds of what the micro-kernel's take.
template <int rows>
inline constexpr int kStreamedRegisters =
    std::min<int>(kStreamedColumns / kRegisterLanes, kMR* kNRRegisters * 2 / 3 / rows);

// c (M, width)  =  a (M, K) b (K, width) + bias (width, may be null), M <= rows, width = `registers` registers.
// If operands are widened, neighbors in k have changed places in A, as when it is packed.
template <int rows, int registers, bool are_long, class P, class T>
void stream_columns(T* c, int64_t c_row, int64_t M, int64_t K, Strided<P> a, Strided<T> b, const T* bias,
                    StreamPlace place) {
    constexpr int width = registers * kRegisterLanes;
    constexpr int64_t step = kLanes * kPair<T>;    // 64 bytes of a column
    constexpr int kSteps = kWidens<P, T> ? 2 : 1;  // of k in four bytes of B
    constexpr int64_t depth = step / kPair<P>;
    static_assert(kBlockK<T> % step == 0);
    // Half of a step's lines are asked for between its loads, half between its multiply-adds.
    constexpr int kLoadsPerPrefetch = 2 * 64 / int(sizeof(FloatRegister)), kTermsPerPrefetch = 2 * depth / width;
    static_assert(width % ColumnsAhead<are_long>::kRun == 0 && 2 * depth % width == 0);
    ColumnsAhead ahead = place.ahead<are_long>(b, width);

    const P* a_row[rows];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) a_row[i] = a.data + std::min<int64_t>(i, M - 1) * a.row;
    FloatRegister total[registers][rows] = {};
    alignas(64) float block[depth][width];
    for (int64_t k0 = 0; k0 < K; k0 += kBlockK<T>) {
        const int64_t end = std::min(K, k0 + kBlockK<T>);
        FloatRegister sum[registers][rows] = {};
        int64_t k = k0;
        for (; k + step <= end; k += step, ahead.end_step()) {
            const auto multiply_step = [&](int64_t t, const FloatRegister(&terms)[registers]) ANVIL_LAMBDA {
                if (t % kTermsPerPrefetch == 0) ahead.ask(width / 2 + t / kTermsPerPrefetch);
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++) {
                    const FloatRegister x = broadcast_pair(a_row[i] + k + t * kPair<P>);
#pragma GCC unroll 4
                    for (int r = 0; r < registers; r++) sum[r][i] = multiply_add<P>(x, terms[r], sum[r][i]);
                }
            };
            for (int64_t part = 0, loads = 0; part < depth; part += kRegisterLanes * kSteps)
#pragma GCC unroll 4
                for (int r = 0; r < registers; r++) {
                    FloatRegister pairs[kRegisterLanes];
#pragma GCC unroll 16
                    for (int j = 0; j < kRegisterLanes; j++, loads++) {
                        if (loads % kLoadsPerPrefetch == 0) ahead.ask(loads / kLoadsPerPrefetch);
                        std::memcpy(&pairs[j], b.data + (r * kRegisterLanes + j) * b.col + k + part * kPair<P>,
                                    sizeof pairs[j]);
                    }
                    transpose_lanes(pairs);
#pragma GCC unroll 16
                    for (int t = 0; t < kRegisterLanes; t++)
#pragma GCC unroll 2
                        for (int s = 0; s < kSteps; s++) {
                            const FloatRegister terms = kSteps == 1 ? pairs[t]
                                                        : s == 0    ? second_of_pairs(pairs[t])
                                                                    : first_of_pairs(pairs[t]);
                            if constexpr (registers == 1)
                                multiply_step(part + t * kSteps + s, {terms});
                            else
                                store_register(block[part + t * kSteps + s] + r * kRegisterLanes, terms);
                        }
                }
            if constexpr (registers > 1)
#pragma GCC unroll 4
                for (int64_t t = 0; t < depth; t++) {
                    FloatRegister terms[registers];
#pragma GCC unroll 4
                    for (int r = 0; r < registers; r++) terms[r] = load_register(block[t] + r * kRegisterLanes);
                    multiply_step(t, terms);
                }
        }
        for (; k < end; k += kPair<T>)  // the last terms
#pragma GCC unroll 4
            for (int r = 0; r < registers; r++) {
                float pairs[kRegisterLanes];
                for (int j = 0; j < kRegisterLanes; j++)
                    std::memcpy(&pairs[j], b.data + (r * kRegisterLanes + j) * b.col + k, sizeof pairs[j]);
                const FloatRegister terms = load_register(pairs);
#pragma GCC unroll 8
                for (int i = 0; i < rows; i++) {
                    const P* x = a_row[i] + k;
                    if constexpr (kWidens<P, T>)
                        sum[r][i] = fma(broadcast_pair(x + 1), first_of_pairs(terms),
                                        fma(broadcast_pair(x), second_of_pairs(terms), sum[r][i]));
                    else
                        sum[r][i] = multiply_add<T>(broadcast_pair(x), terms, sum[r][i]);
                }
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

// The same for kStreamedColumns columns and M <= kStreamedRows. M is rounded up to a power of two: memory is the
// bottleneck, so the additional rows cost nothing.
template <int rows = kStreamedRows, class P, class T>
void stream_block(T* c, int64_t c_row, int64_t M, int64_t K, Strided<P> a, Strided<T> b, const T* bias,
                  StreamPlace place) {
    if constexpr (rows > 1)
        if (M <= rows / 2) return stream_block<rows / 2>(c, c_row, M, K, a, b, bias, place);
    with_column_length(b, [&](auto are_long) {
        // At most kLanes long columns at a time: hardware prefetchers follow each in its page, but not 32 pages.
        constexpr int most = kStreamedRegisters<rows>,
                      registers = are_long ? std::min(most, kLanes / kRegisterLanes) : most;
        constexpr int width = registers * kRegisterLanes;
        for (int64_t j = 0; j < kStreamedColumns; j += width)
            stream_columns<rows, registers, are_long>(c + j, c_row, M, K, a, b.at(0, j), bias ? bias + j : nullptr,
                                                      place.of_part(j, width));
    });
}

/*
FP8 codes of a norm's output with a delayed scale, and their transpose, written by the norm's own kernel: what quantize
would make of the output, which is not stored itself (llmc/ops/quantize.h has the formulas)

  out.codes (N, C) e4m3 =     out.transposed (C, N) e4m3 =     out.inverse_scale =     out.notes: as in quantize

Work      a block has kCodesUnit rows, or twice that, and a warp one row or two, kept in shared memory as a norm keeps
          them; there the codes overwrite the values that they are made of. After a barrier, each thread writes 16 rows
          of 4 columns of the transposed copy. Two units of rows fill whole sectors of 32 bytes there; with one unit,
          for rows so long that two would leave an SM only one block, the L2 cache joins the halves
Banks     the codes of odd units lie 8 bytes into their packs, those of even units at the beginning, because the lanes
          of a warp read both units at once
Bytes     2*N*C, and what the norm reads and writes besides
Accuracy  quantize's bits (test/cuda/quantize_cuda_test.cu)
Requires  N and C multiples of 16, rows for which codes_rows() is not 0
*/
#pragma once
#include "llmc/base/check.h"       // require
#include "llmc/base/fp8.h"         // e4m3, fp8_scale, kFp8Multiple
#include "llmc/cuda/device.cuh"    // Pack, store16, fp8x2, atomic_largest
#include "llmc/cuda/reduce.cuh"    // block_largest, magnitude_bits
#include "llmc/cuda/quantize.cuh"  // quantize
#include "llmc/ops/op_cost.h"      // with_codes
#include "llmc/ops/quantize.h"     // DelayedCodes, GemmInput

inline constexpr int kCodesUnit = 16;   // rows: 16 bytes of a column's codes
inline constexpr int kCodesWarps = 16;  // per block
inline constexpr int kCodesThreads = kWarp * kCodesWarps;

// The number of rows of C elements per block: two units if two such blocks fit an SM, else one; 0 if not even one unit
// fits.
template <class T>
int codes_rows(const Cuda& cuda, int64_t C) {
    // Shared memory per SM, of which each block reserves 1 KiB, and per block: CUDA C++ Programming Guide, "Compute
    // Capabilities".
    const int generation = cuda.compute_capability / 10;
    const int64_t of_sm = generation == 9 || generation == 10 ? 228 << 10 : 100 << 10, of_block = of_sm - (1 << 10);
    const int64_t unit = kCodesUnit * C * int64_t(sizeof(T));
    constexpr int64_t kStatic = 1 << 10;  // more than the warps' largest magnitudes take
    if (2 * (2 * unit + kStatic + (1 << 10)) <= of_sm) return 2 * kCodesUnit;
    return unit + kStatic <= of_block ? kCodesUnit : 0;
}

// Runs an op that computes out (N, C). Its codes, if they are wanted, are part of the op, or follow in a separate pass
// where rows are too long for the op's kernel. The name comes first, because functions of (Cuda&, ...) are ops, each of
// which `make cuda-check` compiles.
template <class T, class Run>
void run_norm(const char* name, Cuda& cuda, const OpCost& cost, const GemmInput<T>& out, int64_t N, int64_t C,
              Run run) {
    const DelayedCodes& to = out.codes;
    const bool has_codes = to.codes && codes_rows<T>(cuda, C) > 0;
    {
        const OpScope op(cuda, name, has_codes ? with_codes<T>(cost, N * C) : cost);
        run();
    }
    if (to.codes && !has_codes)
        quantize<e4m3, T>(cuda, to.codes, to.transposed, to.inverse_scale, out.values, to.amax, N, C, nullptr,
                          Activation::none, nullptr, to.notes);
}

// Checks the shape of an output that is to be quantized.
inline void check_codes(const char* op, int64_t N, int64_t C) {
    require(N % kFp8Multiple == 0 && C % kFp8Multiple == 0, "%s of (%ld, %ld): fp8 needs multiples of %ld", op, N, C,
            kFp8Multiple);
}

// A block's part of the codes. `rows` is its shared memory, (codes_rows(C), C) T.
template <class T>
struct CodesTile {
    static constexpr int P = Pack<T>::size, kWords = P / 4;
    T* rows;
    DelayedCodes out;
    int64_t N, first_row;
    int C, num_rows;
    float scale;
    uint32_t amax_bits, largest = 0, saturated = 0;

    DEVICE CodesTile(T* rows, const DelayedCodes& out, int64_t N, int C, int num_rows)
        : rows(rows), out(out), N(N), first_row(int64_t(blockIdx.x) * num_rows), C(C), num_rows(num_rows) {
        scale = fp8_scale<e4m3>(*out.amax), amax_bits = __float_as_uint(*out.amax);
    }
    DEVICE T* row(int r) const { return rows + r * C; }
    DEVICE uint32_t* kept(int r, int pack) const {
        return reinterpret_cast<uint32_t*>(rows + r * C) + 4 * pack + 2 * (r / kCodesUnit & 1);
    }

    // Stores the codes of elements [c, c + P) of row r over their values in shared memory, which are no longer needed.
    DEVICE void store(int r, int c, const Pack<T>& y) {
        struct alignas(4 * kWords) Words {
            uint32_t of[kWords];
        } words;
#pragma unroll
        for (int k = 0; k < P; k += 4) {
            // An infinity would become a finite code: adding 0 * value makes it NaN.
            const auto scaled = [&](int i) {
                const uint32_t magnitude = magnitude_bits(y[k + i]);
                largest = max(largest, magnitude), saturated += magnitude > amax_bits;
                const float value = to_float(y[k + i]);
                return fmaf(value, scale, 0 * value);
            };
            const uint32_t low = fp8x2<e4m3>(scaled(0), scaled(1)), high = fp8x2<e4m3>(scaled(2), scaled(3));
            words.of[k / 4] = low | high << 16;
        }
        *reinterpret_cast<Words*>(out.codes + (first_row + r) * C + c) = words;
#pragma unroll
        for (int w = 0; w < kWords; w++) kept(r, c / P)[w] = words.of[w];
    }

    // Called by the whole block after all its rows are stored.
    DEVICE void finish() {
        SMEM_STATIC(uint32_t, of_warps, [kCodesWarps]);
        const int thread = int(threadIdx.y) * kWarp + int(threadIdx.x);
        largest = warp_largest(largest);
        if (threadIdx.x == 0) of_warps[threadIdx.y] = largest;
        if (saturated > 0 && out.notes.saturated) atomic_add(out.notes.saturated, saturated);
        __syncthreads();
        if (thread == 0 && out.notes.amax) {
            for (int w = 1; w < kCodesWarps; w++) largest = max(largest, of_warps[w]);
            atomic_largest(out.notes.amax, largest);
        }
        if (thread == 0 && blockIdx.x == 0) *out.inverse_scale = 1 / scale;
        const int units = num_rows / kCodesUnit;
        for (int at = thread; at < units * C / 4; at += kCodesThreads) {
            const int unit = at % units, c = at / units * 4, r = unit * kCodesUnit;
            if (first_row + r >= N) continue;
            Pack<uint32_t> columns[4];
#pragma unroll
            for (int k = 0; k < kCodesUnit; k += 4) {
                uint32_t word[4];
#pragma unroll
                for (int i = 0; i < 4; i++) word[i] = kept(r + k + i, c / P)[c % P / 4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    columns[j][k / 4] = 0;
#pragma unroll
                    for (int i = 0; i < 4; i++) columns[j][k / 4] |= (word[i] >> 8 * j & 0xFF) << 8 * i;
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
                store16(reinterpret_cast<uint32_t*>(out.transposed + (c + j) * N + first_row + r), columns[j]);
        }
    }
};

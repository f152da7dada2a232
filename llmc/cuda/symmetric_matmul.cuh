/*
Symmetric GEMM (BLAS: syrk):   out = alpha X X^T + beta addend   or   alpha X^T X + beta addend

  X (batch, R, K) T     out, addend (batch, n, n) T, symmetric; addend may be null     n = R for Gram::rows, else K

Math      sums in f32, one rounding; both triangles have the same bits. f32 goes through cuBLASLt, as a full GEMM
Work      bf16: 4 warps per tile of 128 x 128 on or below the diagonal, 64 x 64 per warp, by mma.sync; the next 64 terms
          are loaded to shared memory while these are multiplied. The tile is stored twice, the second time transposed.
          Blocks above the diagonal return at once
Banks     tiles lie in shared memory as those of flash attention do (flash_tile.cuh)
FLOPs     (n + 128) n terms, about half of the full GEMM's 2 n^2 terms
Bytes     of X, each tile's 2 * 128 rows; out, and half of addend
Accuracy  a sum of `terms` products in any order, then 1 rounding (test/cuda/symmetric_matmul_cuda_test.cu). The bits of
          a matrix do not depend on the rest of its batch
Requires  R (for Gram::rows) and K multiples of 16 bytes, pointers 16-byte aligned, out apart from X and addend
*/
#pragma once
#include "llmc/base/check.h"                   // require
#include "llmc/cuda/attention/flash_tile.cuh"  // FlashTile, multiply_by_rows, for_elements
#include "llmc/cuda/cublaslt.h"                // CublasLt
#include "llmc/cuda/device.cuh"                // launch
#include "llmc/cuda/matmul.cuh"                // kDType
#include "llmc/ops/newton_schulz.h"            // Gram
#include "llmc/ops/op_cost.h"                  // OpCost

inline constexpr int kSymmetricTile = 128, kSymmetricDepth = 64;
inline constexpr int kSymmetricElements = kSymmetricTile * kSymmetricDepth;  // of one operand, in shared memory
inline constexpr size_t kSymmetricSharedBytes = 4 * kSymmetricElements * sizeof(bf16);

// One operand's rows of X, (128, 64 of the terms), or its columns, (64 of the terms, 128): as in memory.
template <bool of_rows>
using SymmetricOperand = FlashTile<of_rows ? kSymmetricDepth : kSymmetricTile>;

// Starts loading rows or columns [first, first + 128) and terms [term, term + 64) of X, zeros beyond its ends. Needs a
// commit and a wait.
template <bool of_rows>
DEVICE void fetch_operand(const SymmetricOperand<of_rows>& tile, const bf16* X, int R, int K, int first, int term) {
    constexpr int kChunks = of_rows ? kSymmetricDepth / 8 : kSymmetricTile / 8;
    constexpr int kStep = kFlashThreads / kChunks, kRows = kSymmetricElements / 8 / kChunks;
    const int row = int(threadIdx.x) / kChunks, chunk = int(threadIdx.x) % kChunks;
    const int r = (of_rows ? first : term) + row, k = (of_rows ? term : first) + 8 * chunk;
#pragma unroll
    for (int i = 0; i < kRows; i += kStep) {
        const bool valid = r + i < R && k < K;
        cp_async16(tile.at(row + i, chunk), valid ? X + int64_t(r + i) * K + k : X, valid);
    }
}

// c (64, 64)  +=  rows [row, row + 64) of a times rows [col, col + 64) of b, transposed; the same for columns of both
DEVICE void multiply_operands(float (&c)[4][8][4], const FlashTile<kSymmetricDepth>& a, int row,
                              const FlashTile<kSymmetricDepth>& b, int col) {
    multiply_by_rows(c, FlashSharedRows<kSymmetricDepth, 4>{a, row}, b, col);
}
DEVICE void multiply_operands(float (&c)[4][8][4], const FlashTile<kSymmetricTile>& a, int row,
                              const FlashTile<kSymmetricTile>& b, int col) {
    // Both operands are transposed on their way to the registers; row and col are multiples of 64, eight chunks.
    const int place_a = a.place(lane_id() % 8 + lane_id() / 16 * 8, row / 8 + lane_id() / 8 % 2);
    const int place_b = b.place(lane_id() % 16, col / 8 + lane_id() / 16);
#pragma unroll
    for (int k = 0; k < kSymmetricDepth; k += 16) {
        uint32_t left[4][4];
#pragma unroll
        for (int m = 0; m < 4; m++)
            ldmatrix_x4_transposed(left[m], a.shared + (place_a ^ (16 * m)) + k * kSymmetricTile);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            uint32_t right[4];
            ldmatrix_x4_transposed(right, b.shared + (place_b ^ (8 * n)) + k * kSymmetricTile);
#pragma unroll
            for (int m = 0; m < 4; m++) {
                mma_m16n8k16(c[m][n], left[m], {right[0], right[1]});
                mma_m16n8k16(c[m][n + 1], left[m], {right[2], right[3]});
            }
        }
    }
}

// Block (col, row, matrix) of tiles.
template <bool of_rows>
__global__ void __launch_bounds__(kFlashThreads, 2)
    symmetric_matmul_kernel(bf16* out, const bf16* X, const bf16* addend, int R, int K, float alpha, float beta) {
    SMEM_DYNAMIC(bf16, shared);  // two stages of both operands; then the tile of out and its mirror image
    if (blockIdx.x > blockIdx.y) return;
    const int n = of_rows ? R : K, terms = of_rows ? K : R;
    const int row0 = int(blockIdx.y) * kSymmetricTile, col0 = int(blockIdx.x) * kSymmetricTile;
    const bool diagonal = row0 == col0;
    X += int64_t(blockIdx.z) * R * K;
    out += int64_t(blockIdx.z) * n * n;
    if (addend) addend += int64_t(blockIdx.z) * n * n;

    const auto left = [&](int step) { return SymmetricOperand<of_rows>{shared, step % 2 * 2 * kSymmetricElements}; };
    const auto right = [&](int step) {
        return SymmetricOperand<of_rows>{shared, left(step).first + (diagonal ? 0 : kSymmetricElements)};
    };
    const auto fetch = [&](int step) {
        fetch_operand<of_rows>(left(step), X, R, K, row0, step * kSymmetricDepth);
        if (!diagonal) fetch_operand<of_rows>(right(step), X, R, K, col0, step * kSymmetricDepth);
    };
    const int warp_row = warp_id() / 2 * 64, warp_col = warp_id() % 2 * 64;
    const int steps = ceil_div(terms, kSymmetricDepth);
    float c[4][8][4] = {};
    fetch(0);
    cp_async_commit();
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        cp_async_wait<0>();
        __syncthreads();  // these operands have arrived, and no warp reads the others any more
        if (step + 1 < steps) fetch(step + 1);
        cp_async_commit();
        multiply_operands(c, left(step), warp_row, right(step), warp_col);
    }

    __syncthreads();
    const FlashTile<kSymmetricTile> tile{shared, 0}, mirror{shared, diagonal ? 0 : 2 * kSymmetricElements};
    for_elements<4, 8>([&](int r, int k, int m, int j, int i) {
        const int row = warp_row + r, col = warp_col + k;
        // A tile on the diagonal takes both triangles from the lower one, so that they surely agree.
        if (diagonal && row < col) return;
        float x = alpha * c[m][j][i];
        if (addend && row0 + row < n && col0 + col < n)
            x = fmaf(beta, to_float(addend[int64_t(row0 + row) * n + col0 + col]), x);
        tile.at(row, col / 8)[col % 8] = mirror.at(col, row / 8)[row % 8] = from_float<bf16>(x);
    });
    __syncthreads();
    constexpr int kChunks = kSymmetricTile / 8;
    const int chunk = int(threadIdx.x) % kChunks;
#pragma unroll 4
    for (int row = int(threadIdx.x) / kChunks; row < kSymmetricTile; row += kFlashThreads / kChunks) {
        if (row0 + row < n && col0 + 8 * chunk < n)
            store16(out + int64_t(row0 + row) * n + col0 + 8 * chunk, load16(tile.at(row, chunk)));
        if (!diagonal && col0 + row < n && row0 + 8 * chunk < n)
            store16(out + int64_t(col0 + row) * n + row0 + 8 * chunk, load16(mirror.at(row, chunk)));
    }
}

template <class T>
void symmetric_matmul(Cuda& cuda, T* out, const T* X, const T* addend, int64_t batch, int64_t R, int64_t K, Gram gram,
                      float alpha, float beta) {
    const OpScope op(cuda, __func__);
    constexpr int P = Pack<T>::size;
    const bool rows = gram == Gram::rows;
    require(K % P == 0 && (!rows || R % P == 0),
            "symmetric_matmul of the %s of (%ld, %ld): the sizes must be multiples of %d, 16 bytes",
            rows ? "rows" : "columns", R, K, P);
    if constexpr (std::is_same_v<T, bf16>) {
        const unsigned tiles = unsigned(ceil_div(rows ? R : K, int64_t(kSymmetricTile)));
        const double n = double(rows ? R : K), terms = double(rows ? K : R);
        const OpCost cost = {.bytes = double(sizeof(T)) * double(batch) * n * (terms + (addend ? 1.5 : 1) * n),
                             .flops = double(batch) * n * (n + kSymmetricTile) * terms};
        launch(cuda, {"symmetric_matmul", cost}, rows ? symmetric_matmul_kernel<true> : symmetric_matmul_kernel<false>,
               dim3(tiles, tiles, unsigned(batch)), kFlashThreads, kSymmetricSharedBytes, out, X, addend, int(R),
               int(K), alpha, beta);
    } else {
        const int64_t n = rows ? R : K;
        const MatmulCall call{.m = n,
                              .n = n,
                              .k = rows ? K : R,
                              .transpose_a = !rows,
                              .transpose_b = rows,
                              .a = kDType<T>,
                              .b = kDType<T>,
                              .out = kDType<T>,
                              .accumulate = addend != nullptr,
                              .alpha = alpha,
                              .beta = addend ? beta : 1};
        // One at a time: for a batch the library might choose an algorithm with other bits.
        for (int64_t i = 0; i < batch; i++)
            cuda.cublaslt().run(cuda, call, out + i * n * n, X + i * R * K, X + i * R * K, nullptr, nullptr,
                                addend ? addend + i * n * n : nullptr);
    }
}

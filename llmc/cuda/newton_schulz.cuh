/*
Newton-Schulz iterations:   A = X X^T,   X = a X + (b A + c A^2) X   for R <= K;   else from the right, with A = X^T X

  X (batch, R, K) T, in place     (purpose and sources: llmc/ops/newton_schulz.h)

Math      GEMMs in f32, one rounding to T each: A, b A + c A^2, X
Work      the two symmetric GEMMs by our kernel, a triangle of all matrices at once, or whole by cuBLASLt; the third one
          by cuBLASLt. cuBLASLt gets one matrix at a time: for a batch it might choose an algorithm with other bits, and
          the result must not depend on how many matrices a process owns
FLOPs     per iteration, with n <= m the sides: 4 n^2 m + 2 n^3 whole; 3 n^2 m + n^3 by triangles, and a little more
Bytes     per iteration at least sizeof(T) (4 n m + 4 n^2) per matrix; the last X is copied after an odd number of them
Accuracy  bf16: test/cuda/newton_schulz_cuda_test.cu derives the band of the singular values
Requires  K a multiple of Pack<T>::size, X 16-byte aligned; no singular value much larger than 1
*/
#pragma once
#include <algorithm>
#include <utility>
#include "llmc/base/check.h"               // require
#include "llmc/cuda/cublaslt.h"            // CublasLt, MatmulCall
#include "llmc/cuda/device.cuh"            // Pack
#include "llmc/cuda/matmul.cuh"            // kDType
#include "llmc/cuda/symmetric_matmul.cuh"  // symmetric_matmul
#include "llmc/ops/newton_schulz.h"        // Gram, SymmetricProducts, NewtonSchulzOptions
#include "llmc/ops/op_cost.h"              // newton_schulz_cost

// The row stride of A: padded, so that cuBLASLt has rows of whole packs where R is not a multiple of them.
template <class T>
int64_t newton_schulz_row(int64_t R, int64_t K) {
    return ceil_div(std::min(R, K), Pack<T>::size) * Pack<T>::size;
}

// Bytes: cuBLASLt's own, then A, b A + c A^2 and the next X of every matrix.
template <class T>
size_t newton_schulz_workspace(Cuda&, int64_t batch, int64_t R, int64_t K) {
    const int64_t square = std::min(R, K) * newton_schulz_row<T>(R, K);
    return CublasLt::kWorkspaceBytes + size_t(batch * (2 * square + R * K)) * sizeof(T);
}

// On Hopper the library's wgmma makes the whole faster than a triangle by mma.sync: 0.3 to 0.9 of the time of all
// iterations for 768 channels and more, alone or in batches (doc/results/h200-2026-11-27). Elsewhere expected, not
// measured: before Hopper a triangle is always faster; after it below 2048, where one matrix does not fill the GPU.
template <class T>
bool newton_schulz_by_triangles(const Cuda& cuda, int64_t R, int64_t K, SymmetricProducts products) {
    const int64_t n = std::min(R, K);
    if (std::is_same_v<T, float> || n % Pack<T>::size != 0 || products == SymmetricProducts::whole) return false;
    if (products == SymmetricProducts::triangle) return true;
    return cuda.compute_capability < 90 || (cuda.compute_capability > 90 && n < 2048);
}

template <class T>
void newton_schulz(Cuda& cuda, T* X, int64_t batch, int64_t R, int64_t K, const NewtonSchulzOptions& options) {
    const OpScope op(cuda, __func__, newton_schulz_cost<T>(batch, R, K, options.iterations));
    require(K % Pack<T>::size == 0, "newton_schulz of a (%ld, %ld) matrix: its rows must be a multiple of %d, 16 bytes",
            R, K, Pack<T>::size);
    const int64_t n = std::min(R, K), row = newton_schulz_row<T>(R, K), square = n * row, size = R * K;
    const bool wide = R <= K, by_triangles = newton_schulz_by_triangles<T>(cuda, R, K, options.products);
    // After cuBLASLt's own workspace, which is at the beginning of the same block.
    T* const A = reinterpret_cast<T*>(
        static_cast<char*>(cuda.workspace(newton_schulz_workspace<T>(cuda, batch, R, K))) + CublasLt::kWorkspaceBytes);
    T* const B = A + batch * square;
    T *from = X, *to = B + batch * square;
    for (int iteration = 0; iteration < options.iterations; iteration++) {
        const auto& [a, b, c] = options.of_iteration(iteration);
        MatmulCall gram{.m = n, .n = n, .k = wide ? K : R, .transpose_a = !wide, .transpose_b = wide, .ldo = row};
        MatmulCall squares{.m = n,
                           .n = n,
                           .k = n,
                           .accumulate = true,
                           .lda = row,
                           .ldb = row,
                           .ldo = row,
                           .alpha = float(c),
                           .beta = float(b)};
        MatmulCall next{.m = R, .n = K, .k = n, .accumulate = true, .beta = float(a)};
        (wide ? next.lda : next.ldb) = row;
        for (MatmulCall* call : {&gram, &squares, &next}) call->a = call->b = call->out = kDType<T>;
        if (by_triangles) {
            symmetric_matmul(cuda, A, from, static_cast<T*>(nullptr), batch, R, K, wide ? Gram::rows : Gram::columns, 1,
                             0);
            symmetric_matmul(cuda, B, A, A, batch, n, n, Gram::rows, float(c), float(b));
        }
        for (int64_t i = 0; i < batch; i++) {
            T *A_i = A + i * square, *B_i = B + i * square, *from_i = from + i * size, *to_i = to + i * size;
            if (!by_triangles) {
                cuda.cublaslt().run(cuda, gram, A_i, from_i, from_i);
                cuda.cublaslt().run(cuda, squares, B_i, A_i, A_i, nullptr, nullptr, A_i);
            }
            cuda.cublaslt().run(cuda, next, to_i, wide ? B_i : from_i, wide ? from_i : B_i, nullptr, nullptr, from_i);
        }
        std::swap(from, to);
    }
    if (from != X) copy_on_device(cuda, X, from, batch * size);
}

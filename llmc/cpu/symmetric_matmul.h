/*
Symmetric GEMM (BLAS: syrk):   out = alpha X X^T + beta addend   or   alpha X^T X + beta addend

  X (batch, R, K) T     out, addend (batch, n, n), symmetric; addend may be null     n = R for Gram::rows, else K

T and addend are float or bf16; out is of their type or float. Sums are float; an out of bf16 is rounded once, and once
more if it is scaled or added to.
For a symmetric A, A^2 is A A^T: Gram::rows. gemm() computes only the lower triangle, in blocks of rows up to the
diagonal; it is then scaled and mirrored, so both triangles have the same bits. Apart from the blocks on the diagonal
this is half the FLOPs of a full GEMM. A single block is a full GEMM, which is symmetric to the bit without mirroring.
out overlaps neither X nor addend.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/gemm.h"    // gemm, Strided
#include "llmc/cpu/simd.h"
#include "llmc/ops/matmul.h"         // Write
#include "llmc/ops/newton_schulz.h"  // Gram

template <class Out, class T>
void symmetric_matmul(Cpu& cpu, Out* out, const T* X, const std::type_identity_t<T>* addend, int64_t batch, int64_t R,
                      int64_t K, Gram gram, float alpha, float beta) {
    const OpScope op(cpu, __func__);
    constexpr int64_t kBlockRows = 192;
    const int64_t n = gram == Gram::rows ? R : K, terms = gram == Gram::rows ? K : R;
    for (int64_t i = 0; i < batch; i++, out += n * n, X += R * K) {
        const Strided<T> left = gram == Gram::rows ? Strided{X, K, 1} : Strided{X, 1, K}, right = left.transposed();
        for (int64_t row = 0; row < n; row += kBlockRows) {
            const int64_t end = std::min(n, row + kBlockRows);
            gemm(cpu, out + row * n, n, end - row, end, terms, left.at(row, 0), right, nullptr, Write::set);
        }
        const bool scaled = alpha != 1 || addend;
        if (scaled || n > kBlockRows) {
            // A tile and its mirror image stay in L1. Rows i and tiles - 1 - i of tiles together are the same amount of
            // work for every i, so threads get equal parts of the triangle.
            constexpr int64_t kTile = 64;
            const int64_t tiles = (n + kTile - 1) / kTile;
            const auto finish = [=](int64_t tile, int64_t col0) {
                const int64_t end = std::min(n, (tile + 1) * kTile), cols_end = std::min(n, col0 + kTile);
                for (int64_t row = tile * kTile; row < end; row++)
                    for_lanes(std::min(row + 1, cols_end) - col0, [=](int64_t col, auto width) {
                        const int64_t at = row * n + col0 + col;
                        F32x16 x = load(out + at, width) * alpha;
                        if (addend) x = fma(broadcast(beta), load(addend + at, width), x);
                        store(out + at, x, width);
                    });
                for (int64_t col = col0; col < cols_end; col++)
                    for (int64_t row = std::max(tile * kTile, col + 1); row < end; row++)
                        out[col * n + row] = out[row * n + col];
            };
            parallel_for(cpu, (tiles + 1) / 2, [=](int64_t i) {
                for (int64_t col0 = 0; col0 <= i * kTile; col0 += kTile) finish(i, col0);
                const int64_t partner = tiles - 1 - i;
                for (int64_t col0 = 0; partner != i && col0 <= partner * kTile; col0 += kTile) finish(partner, col0);
            });
        }
        if (addend) addend += n * n;
    }
}

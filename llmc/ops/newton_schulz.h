/*
Newton-Schulz iterations, the middle of a Muon step (Jordan et al., 2024, kellerjordan.github.io/posts/muon; Amsel et
al., 2025, arXiv:2505.16932): with the singular value decomposition X = U S V^T, X becomes U p(S) V^T, where the
polynomials of the options take all but the smallest singular values near 1.

  A = X X^T,   X = a X + (b A + c A^2) X   for R <= K;   else  A = X^T X,   X = a X + X (b A + c A^2)

  X (batch, R, K) float or bf16, in place; no singular value may be much larger than 1, which muon_normalise sees to

Sums are float; of a bf16 X, A, b A + c A^2 and every next X are rounded once.

With n = min(R, K), m = max(R, K), an iteration is 4 n^2 m + 2 n^3 FLOPs, of which the two symmetric products (n^2 m +
n^3) are computed for one triangle. A matrix has the same bits whatever else is in its batch. Accuracy: rounding errors
of the first iterations grow with the singular values that they disturb, by up to the product of the later a's
(test/newton_schulz_test.cpp). Zeros stay zeros.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include "llmc/base/op_types.h"  // NewtonSchulzOptions

template <class Device, class T>
struct NewtonSchulzOps {
    size_t (*newton_schulz_workspace)(Device&, int64_t batch, int64_t R, int64_t K);
    void (*newton_schulz)(Device&, T* X, int64_t batch, int64_t R, int64_t K, const NewtonSchulzOptions& options);
};

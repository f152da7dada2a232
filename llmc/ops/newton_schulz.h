/*
Newton-Schulz iterations, the middle of a Muon step (Jordan et al., 2024, kellerjordan.github.io/posts/muon; Amsel et
al., 2025, arXiv:2505.16932). With the singular value decomposition X = U S V^T, X becomes U p(S) V^T, where p is the
composition of the options' polynomials, which brings all but the smallest singular values close to 1.

  A = X X^T,   X = a X + (b A + c A^2) X   for R <= K;   else  A = X^T X,   X = a X + X (b A + c A^2)

  X (batch, R, K) float or bf16, in place; no singular value may be much larger than 1: see muon_normalize

Sums are float. For a bf16 X the matrices A, b A + c A^2 and each new X are rounded once.

With n = min(R, K) and m = max(R, K), an iteration is 4 n^2 m + 2 n^3 FLOPs; of the two symmetric GEMMs in it, only one
triangle (n^2 m + n^3) is computed. The bits of a matrix do not depend on the others in its batch. Accuracy: rounding
errors of the first iterations grow like the singular values that they perturb, by up to the product of the later a's
(test/cpu/newton_schulz_test.cpp). Zeros stay zeros.
*/
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

// The Gram matrix of X (R, K): X X^T (R, R), the dot products of its rows, or X^T X (K, K), those of its columns.
enum class Gram { rows, columns };

// How newton_schulz computes its symmetric GEMMs on a GPU: one triangle by our kernel (llmc/cuda/symmetric_matmul.cuh),
// or the whole by the library. The CPU always computes a triangle, and a GPU in float always the whole.
enum class SymmetricProducts { automatic, triangle, whole };

// X = a X + (b A + c A^2) X with A = X X^T, `iterations` times: each singular value s becomes a s + b s^3 + c s^5.
struct NewtonSchulzOptions {
    struct Coefficients {
        double a, b, c;
    };
    std::vector<Coefficients> coefficients;  // per iteration; the last is repeated
    int iterations;
    SymmetricProducts products = SymmetricProducts::automatic;

    const Coefficients& of_iteration(int i) const { return coefficients[std::min(size_t(i), coefficients.size() - 1)]; }

    // Amsel et al., 2025 (arXiv:2505.16932): each polynomial is optimal for the range in which the one before leaves
    // the singular values. These are nanochat's, for values from 10^-3 on, with a margin of 2% for rounding.
    static NewtonSchulzOptions polar_express(int iterations = 5) {
        return {.coefficients = {{8.156554524902461, -22.48329292557795, 15.878769915207462},
                                 {4.042929935166739, -2.808917465908714, 0.5000178451051316},
                                 {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                                 {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                                 {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}},
                .iterations = iterations};
    }
    // Jordan et al., 2024 (kellerjordan.github.io/posts/muon): one polynomial, steep at zero, which brings singular
    // values near one, not to it.
    static NewtonSchulzOptions quintic(int iterations = 5) {
        return {.coefficients = {{3.4445, -4.7750, 2.0315}}, .iterations = iterations};
    }
};

template <class Device, class T>
struct NewtonSchulzOps {
    size_t (*newton_schulz_workspace)(Device&, int64_t batch, int64_t R, int64_t K);
    void (*newton_schulz)(Device&, T* X, int64_t batch, int64_t R, int64_t K, const NewtonSchulzOptions& options);
};

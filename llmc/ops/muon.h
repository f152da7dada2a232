/*
Muon (Jordan et al., 2024, kellerjordan.github.io/posts/muon) in nanochat's variant, for one matrix (R, K): all but
newton_schulz, the orthogonalization in the middle.

  muon_momentum    momentum += (1 - mu) (grad - momentum),   X = (1 - mu) grad + mu momentum (Nesterov)
  muon_normalize   X_r *= |X|_F / sqrt(R) / max(|X_r|, 1e-6) for each row if equal_rows;   X /= margin |X|_F + 1e-6
  newton_schulz    replaces X, with singular value decomposition U S V^T, by about U V^T (newton_schulz.h)
  muon_squares     squares = the sums of squares of X's rows if R >= K, else of its columns
  muon_scales      v = mean of g^2 along these rows or columns, where g = X sqrt(min(R, K)) / max(|X|_F, 1e-6) if
                   fixed_norm, else X;   V += (1 - beta2) (v - V);   s = 1 / sqrt(max(V, 1e-10));   scale such that
                   s g has the norm of g again (NorMuon: Li et al., 2025, arXiv:2510.05491)
  muon_update      W -= rate (g + weight_decay W where g W >= 0)      with g = X * scale and MuonStep::rate();
                   all of W decays unless cautious

  weight, X (R, K) float or bf16     master (R, K) float: weight is master rounded; null if weight is float, or bf16
                  that is read and rounded stochastically (moments.h)
  grad (R, K) float     row_squares (R)     squares, scales, V (max(R, K)); V null: no division by it
  momentum (R, K) float, or bf16 that is rounded stochastically (moments.h)
Rows of X have muon_row(K) elements: a device may need them padded with zeros to whole vectors. grad is multiplied by
StepScalars::grad_scale. If the step is not applied, momentum, V and weight keep their bits. Each pass reads and writes
X once: norms are computed from the sums of squares of the previous pass, which are those of X as rounded. Sums of R or
K squares are in double, in order.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include "llmc/ops/moments.h"       // MomentRounding
#include "llmc/ops/step_scalars.h"  // StepScalars

// One step of Muon for one matrix (R, K), as in nanochat.
struct MuonStep {
    double learning_rate, momentum, beta2, weight_decay;
    bool equal_rows = true;  // MuonEq: all rows get the same norm before the matrix is orthogonalized
    bool fixed_norm = true;  // Muon+: the result gets the norm of an exactly orthogonal matrix
    bool cautious = true;    // weights decay only where the update does not make them larger; else everywhere
    double margin = 1.01;    // X is divided by margin times its norm, so that all singular values are below one

    // A tall matrix, with more outputs than inputs, gets a larger rate.
    static double shape_factor(int64_t R, int64_t K) { return std::sqrt(std::max(1.0, double(R) / double(K))); }
    double rate(int64_t R, int64_t K) const { return learning_rate * shape_factor(R, K); }
};

inline constexpr int64_t kMuonRowMultiple = 8;  // rows are padded to a multiple of at most this

template <class Device, class T>
struct MuonOps {
    int64_t (*muon_row)(Device&, int64_t K);
    void (*muon_momentum)(Device&, T* X, float* row_squares, float* momentum, const float* grad, int64_t R, int64_t K,
                          const MuonStep& step, const StepScalars* s);
    void (*muon_momentum_bf16)(Device&, T* X, float* row_squares, bf16* momentum, const float* grad, int64_t R,
                               int64_t K, const MuonStep& step, const StepScalars* s, const MomentRounding& rounding);
    void (*muon_normalize)(Device&, T* X, const float* row_squares, int64_t R, int64_t K, const MuonStep& step);
    void (*muon_squares)(Device&, float* squares, const T* X, int64_t R, int64_t K);
    void (*muon_scales)(Device&, float* scales, float* V, const float* squares, int64_t R, int64_t K,
                        const MuonStep& step, const StepScalars* s);
    void (*muon_update)(Device&, T* weight, float* master, const T* X, const float* scales, int64_t R, int64_t K,
                        const MuonStep& step, const StepScalars* s, const MomentRounding& rounding);
};

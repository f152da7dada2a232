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
  muon_lifts       with MuonStep::norms alone, from the norms of W and of u = shape_factor g, g = X * scale:
                   floor       lift = max(1, floor |W| / |u|); row_floor: of each row its own. (Skylight-001 and
                               RowFloor, KellerJordan/modded-nanogpt #269 and #328)
                   hyperball   lift = radius / |u|,   keep = radius / |W - rate lift g|: steps of rate times the
                               radius, back to the sphere (Wen et al., 2026, arXiv:2606.16899). The radius is |W| before
                               the first step, if that is least_radius; smaller ones, and zeros, grow to it without keep
  muon_update      W = keep (W - rate (g + weight_decay W where g W >= 0))      with g = X * scale * lift and
                   MuonStep::rate(); all of W decays unless cautious; lift and keep are 1 if they are null

  weight, X (R, K) float or bf16     master (R, K) float: weight is master rounded; null if weight is float, or bf16
                  that is read and rounded stochastically (moments.h)
  grad (R, K) float     row_squares, lifts (R)     squares, scales, V (max(R, K)); V null: no division by it
  keep (1)        radius (1) 0 before the first step, negative while W grows to it; read by hyperball alone
  momentum (R, K) float, or bf16 that is rounded stochastically (moments.h)
Rows of X have muon_row(K) elements: a device may need them padded with zeros to whole vectors. grad is multiplied by
StepScalars::grad_scale. If the step is not applied, momentum, V, radius and weight keep their bits. Each pass reads and
writes X once: norms are computed from the sums of squares of the previous pass, which are those of X as rounded. Sums
of R or K squares are in double, in order.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include "llmc/ops/moments.h"       // MomentRounding
#include "llmc/ops/step_scalars.h"  // StepScalars

// Whether the norm of a matrix bounds or fixes that of its update: see muon_lifts.
enum class MuonNorms { none, hyperball, floor, row_floor };

// One step of Muon for one matrix (R, K), as in nanochat.
struct MuonStep {
    double learning_rate, momentum, beta2, weight_decay;
    bool equal_rows = true;  // MuonEq: all rows get the same norm before the matrix is orthogonalized
    bool fixed_norm = true;  // Muon+: the result gets the norm of an exactly orthogonal matrix
    bool cautious = true;    // weights decay only where the update does not make them larger; else everywhere
    double margin = 1.01;    // X is divided by margin times its norm, so that all singular values are below one
    MuonNorms norms = MuonNorms::none;
    double floor = 0;   // of |u| / |W|
    double radius = 1;  // the least, as a multiple of sqrt(R), the norm of rows with a variance of 1 / K

    // A tall matrix, with more outputs than inputs, gets a larger rate.
    static double shape_factor(int64_t R, int64_t K) { return std::sqrt(std::max(1.0, double(R) / double(K))); }
    double rate(int64_t R, int64_t K) const { return learning_rate * shape_factor(R, K); }
    double least_radius(int64_t R) const { return radius * std::sqrt(double(R)); }
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
    void (*muon_lifts)(Device&, float* lifts, float* keep, float* radius, const T* weight, const float* master,
                       const T* X, const float* scales, int64_t R, int64_t K, const MuonStep& step,
                       const StepScalars* s);
    void (*muon_update)(Device&, T* weight, float* master, const T* X, const float* scales, const float* lifts,
                        const float* keep, int64_t R, int64_t K, const MuonStep& step, const StepScalars* s,
                        const MomentRounding& rounding);
};

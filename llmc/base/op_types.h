/*
Arguments that an op takes as one, the same on every device.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>
#include "llmc/base/check.h"      // require
#include "llmc/base/exact_sum.h"  // ExactSum

// What becomes of what a result's memory holds: overwritten (=), and never read, or added to (+=).
enum class Write { set, add };

inline constexpr int64_t kMaxHeadSize = 256;  // what attention's tiles are made for

// Causal self-attention with grouped heads: NKV key/value heads, each shared by NH / NKV query heads that follow each
// other. In memory (B, T, NH + 2 NKV, HS): the queries of all heads, then the keys, then the values.
struct AttentionShape {
    int64_t B, T, NH, NKV, HS;
    // Query t sees the keys s with t - window <= s <= t, window + 1 of them; negative: all up to t. This is what
    // FlashAttention calls window_size = (window, 0).
    int64_t window = -1;
    float scale = 0;  // of the scores; 0: 1 / sqrt(HS)
    // (B, T), in the device's memory: where in its row the document of each token begins, which is as far back as the
    // token sees; starts[b, t] <= t, never falling along a row (llmc/cpu/document_starts.h). null: a row is one
    // document.
    const int32_t* starts = nullptr;

    int64_t row() const { return (NH + 2 * NKV) * HS; }  // from one token of qkv to the next
    float score_scale() const { return scale != 0 ? scale : 1 / std::sqrt(float(HS)); }
    // The first key that query t sees in a row of one document; in row b, if the host can read `starts`.
    int64_t first_key(int64_t t) const { return window < 0 || t < window ? 0 : t - window; }
    int64_t first_key(int64_t b, int64_t t) const {
        return starts ? std::max<int64_t>(starts[b * T + t], first_key(t)) : first_key(t);
    }
};

// Keys and values of the tokens so far, kept for those that come one by one (llmc/cpu/attention_decode.h): of each of B
// rows the last `capacity` at least, in a ring: position p is in slot p % capacity. In memory
//   keys (B, NKV, capacity / kCacheTile, HS, kCacheTile)     values (B, NKV, capacity, HS)
// A tile of keys lies turned, so that the scores of neighbouring keys are sums in neighbouring lanes.
inline constexpr int64_t kCacheTile = 64;
struct KeyValueShape {
    int64_t B, NH, NKV, HS;
    int64_t window;   // as AttentionShape::window, but never negative: what is seen has an end
    float scale = 0;  // of the scores; 0: 1 / sqrt(HS)

    // Room for the window + 1 that are seen.
    int64_t capacity() const { return (window / kCacheTile + 1) * kCacheTile; }
    int64_t row_size() const { return NKV * capacity() * HS; }  // elements of a row, of keys and of values each
    int64_t qkv_row() const { return (NH + 2 * NKV) * HS; }
    float score_scale() const { return scale != 0 ? scale : 1 / std::sqrt(float(HS)); }
};

// Rotary positions and QK-norm of the queries and keys (llmc/cpu/rotary.h). Llama: {.base = 500000}. nanochat:
// {.base = 100000, .clockwise = true, .qk_norm = true, .scale = 1.2f}.
struct RotaryOptions {
    double base = 10000;          // frequency j of HS/2 turns base^(-2j / HS) a position
    bool half_truncated = false;  // modded-nanogpt: the first HS/4 turn 1 to 1/base a position, the others not at all
    bool clockwise = false;       // turns the other way: nanochat and modded-nanogpt do, Llama and the paper do not
    bool qk_norm = false;         // each head's query and key is divided by its root mean square
    float eps = 0x1p-23f;         // of QK-norm; PyTorch's rms_norm takes the epsilon of float32 when told nothing
    float scale = 1;              // queries and keys both are multiplied by it

    bool operator==(const RotaryOptions&) const = default;
};

// cos and sin of every position below T, (T, 2, HS/2): a row of cosines, a row of sines. In double, rounded once; the
// direction is in the sign of the sines.
inline std::vector<float> rotary_table(int64_t T, int64_t HS, const RotaryOptions& options) {
    require(HS % (options.half_truncated ? 4 : 2) == 0, "head size %ld: rotary positions need a multiple of %d",
            long(HS), options.half_truncated ? 4 : 2);
    const int64_t half = HS / 2, turning = options.half_truncated ? HS / 4 : half;
    const double steps = options.half_truncated ? double(std::max<int64_t>(turning - 1, 1)) : double(half);
    std::vector<float> table(size_t(T * HS));
    for (int64_t j = 0; j < half; j++) {
        const double frequency = j < turning ? std::pow(options.base, -double(j) / steps) : 0;
        for (int64_t t = 0; t < T; t++) {
            const double angle = double(t) * frequency;
            table[size_t(t * HS + j)] = float(std::cos(angle));
            table[size_t(t * HS + half + j)] = float(options.clockwise ? -std::sin(angle) : std::sin(angle));
        }
    }
    return table;
}

// A bound that logits bend towards on their way into the softmax, so that none grows without end; nearly the identity
// far below it.
//   tanh   limit * tanh(logit / limit)                         Gemma 2, 2024, arXiv:2408.00118; nanochat, at 15
//   isru   limit * logit / sqrt(logit^2 + limit^2)             Carlile et al., 2017, arXiv:1710.09967; modded-nanogpt
struct Softcap {
    enum class Kind { none, tanh, isru } kind = Kind::none;
    float limit = 0;  // above 0, but for none

    bool operator==(const Softcap&) const = default;
};

inline void check_softcap(Softcap cap) { ensure(cap.kind == Softcap::Kind::none || cap.limit > 0); }

// Beyond this many limits a logit is at the limit in any precision of ours, and its slope 0.
inline constexpr float kSoftcapFar = 0x1p60f;

// One logit on the host, for samplers, which take logits as the head leaves them.
inline float capped(float logit, Softcap cap) {
    check_softcap(cap);
    if (cap.kind == Softcap::Kind::none) return logit;
    const double limit = double(cap.limit), far = double(kSoftcapFar), x = std::clamp(double(logit) / limit, -far, far);
    return float(limit * (cap.kind == Softcap::Kind::tanh ? std::tanh(x) : x / std::sqrt(x * x + 1)));
}

// How far a learned gate is open, between 0 and 1, and how that changes with what it sees.
struct GateOpening {
    float open, slope;  // the sigmoid and its derivative, open (1 - open)
};

// What one optimizer step adds up, in 64-bit integers alone: those of all ranks are added word by word, and come to the
// same bits whatever the number of ranks that parts of them come from.
struct StepSums {
    ExactSum loss;           // mean over the step's tokens
    ExactSum squares;        // of the gradient, before clipping
    ExactSum rank_squares;   // of each rank's own gradient (llmc/train/noise_scale.h)
    uint64_t votes[4] = {};  // how many ranks want something of all (Vote in llmc/train/step.h)
};

// What one optimizer step finds out and decides. It lies in the device's memory, so that the host need not wait.
struct StepScalars {
    StepSums sums = {};
    double loss = 0;        // NaN if it is not finite
    double norm = 0;        // of the gradient, before clipping; NaN if it is not finite
    double grad_scale = 1;  // what clipping multiplies the gradient by
    int64_t updates = 0;    // that changed the weights, this one included
    int32_t applied = 0;    // 0: something was not finite, and nothing may change
};

struct AdamWHyper {
    double learning_rate, beta1, beta2, eps, weight_decay;
};

// One step of Muon for one matrix (R, K), as nanochat has it (llmc/cpu/muon.h).
struct MuonStep {
    double learning_rate, momentum, beta2, weight_decay;
    bool equal_rows = true;  // MuonEq: all rows have the same norm before the matrix is made orthogonal
    bool fixed_norm = true;  // Muon+: the orthogonal matrix has the norm of an exact one
    bool cautious = true;    // weights decay only where the update does not make them larger; else everywhere
    double margin = 1.01;    // how far below one the largest singular value stays

    // A tall matrix maps onto more outputs than it has inputs, and moves faster.
    static double shape_factor(int64_t R, int64_t K) { return std::sqrt(std::max(1.0, double(R) / double(K))); }
    double rate(int64_t R, int64_t K) const { return learning_rate * shape_factor(R, K); }
};

// Of a matrix X (R, K): X X^T (R, R) holds the dot products of its rows, X^T X (K, K) those of its columns.
enum class Gram { rows, columns };

// How newton_schulz makes its symmetric products: our kernel, which computes one triangle
// (llmc/cuda/symmetric_matmul.cuh), or the library's whole product. The CPU always computes a triangle, and float on a
// GPU always the whole.
enum class SymmetricProducts { automatic, triangle, whole };

// X = a X + (b A + c A^2) X with A = X X^T, `iterations` times: each singular value s becomes a s + b s^3 + c s^5.
struct NewtonSchulzOptions {
    struct Coefficients {
        double a, b, c;
    };
    std::vector<Coefficients> coefficients;  // of each iteration; later ones repeat the last
    int iterations;
    SymmetricProducts products = SymmetricProducts::automatic;

    const Coefficients& of_iteration(int i) const { return coefficients[std::min(size_t(i), coefficients.size() - 1)]; }

    // Amsel et al., 2025 (arXiv:2505.16932): each polynomial is the best one for where the one before leaves the
    // singular values. These are nanochat's, for values from 10^-3 on, with a margin of 2% for rounding.
    static NewtonSchulzOptions polar_express(int iterations = 5) {
        return {.coefficients = {{8.156554524902461, -22.48329292557795, 15.878769915207462},
                                 {4.042929935166739, -2.808917465908714, 0.5000178451051316},
                                 {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                                 {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                                 {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}},
                .iterations = iterations};
    }
    // Jordan et al., 2024 (kellerjordan.github.io/posts/muon): one polynomial, steep at zero; values end near one, not
    // at it.
    static NewtonSchulzOptions quintic(int iterations = 5) {
        return {.coefficients = {{3.4445, -4.7750, 2.0315}}, .iterations = iterations};
    }
};

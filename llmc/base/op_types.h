/*
Arguments that an op takes as one, the same on every device.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>
#include "llmc/base/check.h"  // require

// Causal self-attention with grouped heads: NKV key/value heads, each shared by NH / NKV query heads that follow each
// other. In memory (B, T, NH + 2 NKV, HS): the queries of all heads, then the keys, then the values.
struct AttentionShape {
    int64_t B, T, NH, NKV, HS;
    // Query t sees the keys s with t - window <= s <= t, window + 1 of them; negative: all up to t. This is what
    // FlashAttention calls window_size = (window, 0).
    int64_t window = -1;
    float scale = 0;  // of the scores; 0: 1 / sqrt(HS)

    int64_t row() const { return (NH + 2 * NKV) * HS; }  // from one token of qkv to the next
    float score_scale() const { return scale != 0 ? scale : 1 / std::sqrt(float(HS)); }
    // The first key that query t sees.
    int64_t first_key(int64_t t) const { return window < 0 || t < window ? 0 : t - window; }
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

// What one optimizer step finds out and decides. It lies in the device's memory, so that the host need not wait.
struct StepScalars {
    double loss = 0;          // mean over the step's tokens
    double norm_squared = 0;  // of the gradient, before clipping
    double norm = 0;
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
    double margin = 1.01;    // how far below one the largest singular value stays

    // A tall matrix maps onto more outputs than it has inputs, and moves faster.
    double rate(int64_t R, int64_t K) const { return learning_rate * std::sqrt(std::max(1.0, double(R) / double(K))); }
};

/*
Rotary positions (Su et al., 2021, arXiv:2104.09864) with QK-norm (Henry et al., 2020, arXiv:2010.04245), in place on
the queries and keys of one attention layer; values are unchanged. For each head of each token, x of HS elements:

  rotated_j        =  x_j cos - x_(j + HS/2) sin          cos, sin of the token's position and j < HS/2
  rotated_(j+HS/2) =  x_j sin + x_(j + HS/2) cos
  out = scale * rstd * rotated,   rstd = 1 / sqrt(mean(x^2) + eps)          (rstd = 1 without QK-norm)

  qkv, dqkv (B, T, NH + 2 NKV, HS) T     rstd (B, T, NH + NKV) float, null without QK-norm
  table (T, 2, HS/2) float: rotary_table(); to start at a later position, pass the table from that row on
A rotation preserves the norm, so the order of rotation and norm does not matter: this op serves nanochat and
modded-nanogpt alike.

Both passes overwrite their buffer. Backward needs only rstd and the rotated queries and keys, which attention keeps
anyway: with y = out / scale = rstd * rotated, the derivative of the norm is evaluated at y, and the transpose undoes
the rotation.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>
#include "llmc/base/check.h"     // require
#include "llmc/ops/attention.h"  // AttentionShape

// Scaled frequencies for longer contexts: llama3 is Llama 3.1's (Grattafiori et al., 2024, arXiv:2407.21783), yarn is
// YaRN's (Peng et al., 2023, arXiv:2309.00071), whose other half is RotaryOptions::scale. Frequencies with fewer than
// low_turns turns in original_length positions are divided by the factor, those with more than high_turns are
// unchanged. In between, the multiplier goes from 1/factor to 1: llama3 linearly with the number of turns, yarn
// linearly with the frequency's index j, from and to whole ones, as YaRN's program and transformers do (the paper's
// formula is llama3's).
struct RotaryScaling {
    enum class Kind { llama3, yarn };
    double factor = 1;  // 1: none
    double low_turns = 1, high_turns = 4;
    double original_length = 8192;
    Kind kind = Kind::llama3;

    // Frequency j of HS/2, base^(-2j / HS).
    double frequency(int64_t j, int64_t HS, double base) const {
        const double whole = std::pow(base, -2 * double(j) / double(HS));
        if (factor == 1) return whole;
        constexpr double kTurn = 2 * 3.14159265358979323846;
        double kept;
        if (kind == Kind::yarn) {
            // The index, no integer, of the frequency with so many turns.
            const auto index_of = [&](double turns) {
                return double(HS) * std::log(original_length / (turns * kTurn)) / (2 * std::log(base));
            };
            const double first = std::max(std::floor(index_of(high_turns)), 0.);
            const double last = std::min(std::ceil(index_of(low_turns)), double(HS - 1));
            kept = 1 - std::clamp((double(j) - first) / (first == last ? 0.001 : last - first), 0., 1.);
        } else {
            kept = std::clamp((original_length * whole / kTurn - low_turns) / (high_turns - low_turns), 0., 1.);
        }
        return (1 - kept) * whole / factor + kept * whole;
    }
    bool is_yarn() const { return factor != 1 && kind == Kind::yarn; }
    // YaRN's attention temperature: what it multiplies queries and keys by.
    static double yarn_scale(double factor) { return 1 + 0.1 * std::log(std::max(factor, 1.)); }
    bool operator==(const RotaryScaling&) const = default;
};

// Llama: {.base = 500000}. nanochat: {.base = 100000, .clockwise = true, .qk_norm = true, .scale = 1.2f}.
struct RotaryOptions {
    double base = 10000;          // frequency j of HS/2 is base^(-2j / HS) radians per position
    bool half_truncated = false;  // modded-nanogpt: the first HS/4 frequencies go from 1 to 1/base, the others are 0
    bool clockwise = false;       // rotates the other way: nanochat and modded-nanogpt do, Llama and the paper do not
    bool qk_norm = false;         // each head's query and key is divided by its root mean square
    float eps = 0x1p-23f;         // of QK-norm; the default of PyTorch's rms_norm, the epsilon of float32
    float scale = 1;              // multiplies both queries and keys
    RotaryScaling scaling = {};

    bool operator==(const RotaryOptions&) const = default;
};

// cos and sin of every position below T, (T, 2, HS/2): a row of cosines, a row of sines. Computed in double and rounded
// once; `clockwise` changes the sign of the sines.
inline std::vector<float> rotary_table(int64_t T, int64_t HS, const RotaryOptions& options) {
    require(HS % (options.half_truncated ? 4 : 2) == 0, "head size %ld: rotary positions need a multiple of %d",
            long(HS), options.half_truncated ? 4 : 2);
    const int64_t half = HS / 2, turning = options.half_truncated ? HS / 4 : half;
    const double steps = double(std::max<int64_t>(turning - 1, 1));  // of half_truncated
    std::vector<float> table(size_t(T * HS));
    for (int64_t j = 0; j < half; j++) {
        const double frequency = j >= turning             ? 0
                                 : options.half_truncated ? std::pow(options.base, -double(j) / steps)
                                                          : options.scaling.frequency(j, HS, options.base);
        for (int64_t t = 0; t < T; t++) {
            const double angle = double(t) * frequency;
            table[size_t(t * HS + j)] = float(std::cos(angle));
            table[size_t(t * HS + half + j)] = float(options.clockwise ? -std::sin(angle) : std::sin(angle));
        }
    }
    return table;
}

template <class Device, class T>
struct RotaryOps {
    void (*rotary_forward)(Device&, T* qkv, float* rstd, const float* table, AttentionShape shape,
                           RotaryOptions options);
    void (*rotary_backward)(Device&, T* dqkv, const T* qkv, const float* rstd, const float* table, AttentionShape shape,
                            RotaryOptions options);
};

/*
Softmax cross-entropy:   loss[n] = log(sum over v < V of exp(logits[n,v])) - logits[n, targets[n]]

  logits  (N, Vp), of which the first V columns count; the rest is padding and is never predicted
  targets (N) int32 in [0, V)     losses (N), in nats
The fused form turns logits into their gradients in place, dlogits = (softmax - onehot) * dloss, the padding into zeros:
a second buffer of V columns never exists.

With a softcap c > 0 (Gemma 2, 2024, arXiv:2408.00118) the logits are replaced by c tanh(logits / c) first, and dlogits
gets the factor 1 - tanh^2. With e = exp(2 logits / c) that is c - 2c / (e + 1) and 4e / (e + 1)^2.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/simd.h"

// Sums of `term(v, width)` over v < V: blocks of 1024 in float lanes, the blocks in double.
template <class Term>
ANVIL_INLINE double sum_in_blocks(int64_t V, Term&& term) {
    constexpr int64_t kBlock = 1024;
    double sum = 0;
    for (int64_t begin = 0; begin < V; begin += kBlock) {
        F32x16 block = zeros();
        for_lanes(std::min(kBlock, V - begin), [&](int64_t v, auto width) { block += term(begin + v, width); });
        sum += double(sum_lanes(block));
    }
    return sum;
}

inline float row_max(const float* row, int64_t V) {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    F32x16 largest = broadcast(kLowest);
    for_lanes(V, [&](int64_t v, auto width) { largest = max(largest, load(row + v, width, kLowest)); });
    return max_lanes(largest);
}

// Lanes beyond the row read as -infinity, whose exponential is 0.
template <class Width>
ANVIL_INLINE F32x16 exp_shifted(const float* logits, Width width, float shift) {
    return exp(load(logits, width, -std::numeric_limits<float>::infinity()) - shift);
}

// capped = softcap * tanh(logits / softcap), in place too, and the slope of it
inline void cap_row(float* capped, float* slope, const float* logits, int64_t V, float softcap) {
    constexpr float kLargest = std::numeric_limits<float>::max();
    for_lanes(V, [=](int64_t v, auto width) {
        const F32x16 e = exp(load(logits + v, width) * (2 / softcap)), rest = broadcast(1) / (e + 1);
        // e / (e + 1), where an infinite e is to give 0 in the slope, not NaN
        const F32x16 part = (zeros() - max(zeros() - e, broadcast(-kLargest))) * rest;
        store(capped + v, fma(rest, broadcast(-2 * softcap), broadcast(softcap)), width);
        store(slope + v, part * rest * 4, width);
    });
}

inline void cross_entropy_forward(Cpu& cpu, float* losses, const float* logits, const int32_t* targets, int64_t N,
                                  int64_t V, int64_t Vp, float softcap = 0) {
    parallel_for(cpu, N, [=, &cpu](int64_t n) {
        const float* row = logits + n * Vp;
        if (softcap > 0) {
            float* capped = cpu.own(2 * V);
            cap_row(capped, capped + V, row, V, softcap);
            row = capped;
        }
        const float largest = row_max(row, V);
        const double sum =
            sum_in_blocks(V, [&](int64_t v, auto width) { return exp_shifted(row + v, width, largest); });
        losses[n] = float(std::log(sum) + (double(largest) - double(row[targets[n]])));
    });
}

inline void cross_entropy_forward_backward(Cpu& cpu, float* losses, float* logits, const int32_t* targets, float dloss,
                                           int64_t N, int64_t V, int64_t Vp, float softcap = 0) {
    parallel_for(cpu, N, [=, &cpu](int64_t n) {
        float* row = logits + n * Vp;
        float* slope = nullptr;
        if (softcap > 0) {
            slope = cpu.own(V);
            cap_row(row, slope, row, V, softcap);
        }
        const float largest = row_max(row, V), target_logit = row[targets[n]];
        const double sum = sum_in_blocks(V, [&](int64_t v, auto width) {
            const F32x16 e = exp_shifted(row + v, width, largest);
            store(row + v, e, width);
            return e;
        });
        losses[n] = float(std::log(sum) + (double(largest) - double(target_logit)));
        const float scale = float(double(dloss) / sum);
        // softmax - 1 is taken before scaling: where the model is sure of the target it would otherwise cancel twice
        const double target_grad = (double(row[targets[n]]) - sum) / sum * double(dloss);
        for_lanes(V, [&](int64_t v, auto width) { store(row + v, load(row + v, width) * scale, width); });
        row[targets[n]] = float(target_grad);
        if (slope)
            for_lanes(V, [&](int64_t v, auto width) {
                store(row + v, load(row + v, width) * load(slope + v, width), width);
            });
        for (int64_t v = V; v < Vp; v++) row[v] = 0;
    });
}

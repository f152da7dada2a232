/*
Softmax cross-entropy on the CPU: llmc/ops/cross_entropy.h.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/simd.h"
#include "llmc/ops/cross_entropy.h"  // Softcap, kSoftcapFar, check_softcap
#include "llmc/ops/op_cost.h"        // cross_entropy_forward_backward_cost, cross_entropy_forward_cost

// Sums term(v, width) over v < V: in float lanes within blocks of 1024, in double across blocks.
template <class Term>
ANVIL_INLINE double sum_in_blocks(int64_t V, Term&& term) {
    constexpr int64_t kBlock = 1024;
    double sum = 0;
    for (int64_t begin = 0; begin < V; begin += kBlock) {
        F32x16 block = zeros();
        for_lanes_unrolled(std::min(kBlock, V - begin),
                           [&](int64_t v, auto width) { block = add_in_order(block, term(begin + v, width)); });
        sum += double(sum_lanes(block));
    }
    return sum;
}

template <class T>
float row_max(const T* row, int64_t V) {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    F32x16 largest = broadcast(kLowest);
    for_lanes(V, [&](int64_t v, auto width) { largest = max(largest, load(row + v, width, kLowest)); });
    return max_lanes(largest);
}

// Lanes after the end of the row read -infinity, whose exponential is 0.
template <class T, class Width>
ANVIL_INLINE auto exp_shifted(const T* logits, Width width, float shift) {
    return exp(load(logits, width, -std::numeric_limits<float>::infinity()) - shift);
}

// capped (V) = the softcapped logits, may be `logits` itself; slope (V) = their derivative, may be null.
template <class T>
void cap_row(float* capped, float* slope, const T* logits, int64_t V, Softcap cap) {
    constexpr float kLargest = std::numeric_limits<float>::max();
    const float c = cap.limit, far = c * kSoftcapFar;
    if (cap.kind == Softcap::Kind::tanh)
        for_lanes_unrolled(V, [=](int64_t v, auto width) {
            const auto e = exp(load(logits + v, width) * (2 / c)), rest = 1 / (e + 1);
            store(capped + v, fma(rest, -2 * c, c), width);
            if (slope) store(slope + v, min(e, kLargest) * rest * rest * 4, width);  // an infinite e: 0, not NaN
        });
    else
        for_lanes(V, [=](int64_t v, auto width) {
            const F32x16 x = min(max(load(logits + v, width), broadcast(-far)), far), y = x * (1 / c);
            const F32x16 r = 1 / sqrt(fma(y, y, 1));
            store(capped + v, x * r, width);
            if (slope) store(slope + v, r * r * r, width);
        });
}

// -log softmax(row)[target]. Writes the exponentials e^(row - max) to `powers`, which may be `row` or null, and their
// sum to `sum`.
template <class T>
float row_loss(double* sum, float* powers, const T* row, int64_t V, int32_t target) {
    const float largest = row_max(row, V), target_logit = to_float(row[target]);
    *sum = sum_in_blocks(V, [&](int64_t v, auto width) {
        const auto e = exp_shifted(row + v, width, largest);
        if (powers) store(powers + v, e, width);
        return e;
    });
    return float(std::log(*sum) + (double(largest) - double(target_logit)));
}

template <class T>
void cross_entropy_forward(Cpu& cpu, float* losses, const T* logits, const int32_t* targets, int64_t N, int64_t V,
                           int64_t Vp, Softcap softcap = {}) {
    const OpScope op(cpu, __func__, cross_entropy_forward_cost<T>(N, V, softcap, Cpu::kExpFlops));
    check_softcap(softcap);
    parallel_for(cpu, N, [=, &cpu](int64_t n) {
        const T* row = logits + n * Vp;
        if (targets[n] < 0) {
            losses[n] = 0;
            return;
        }
        double sum;
        if (softcap.kind == Softcap::Kind::none) {
            losses[n] = row_loss(&sum, nullptr, row, V, targets[n]);
        } else {
            float* capped = cpu.thread_scratch(V);
            cap_row(capped, nullptr, row, V, softcap);
            losses[n] = row_loss<float>(&sum, nullptr, capped, V, targets[n]);
        }
    });
}

template <class T>
void cross_entropy_forward_backward(Cpu& cpu, float* losses, T* logits, const int32_t* targets, float dloss, int64_t N,
                                    int64_t V, int64_t Vp, Softcap softcap = {}) {
    const OpScope op(cpu, __func__, cross_entropy_forward_backward_cost<T>(N, V, Vp, softcap, Cpu::kExpFlops));
    check_softcap(softcap);
    parallel_for(cpu, N, [=, &cpu](int64_t n) {
        T* row = logits + n * Vp;
        const int32_t target = targets[n];
        if (target < 0) {
            losses[n] = 0;
            std::memset(static_cast<void*>(row), 0, size_t(Vp) * sizeof(T));
            return;
        }
        float* slope = cpu.thread_scratch(2 * V);
        float* powers = slope + V;
        if constexpr (std::is_same_v<T, float>) powers = row;
        double sum;
        if (softcap.kind == Softcap::Kind::none) {
            slope = nullptr;
            losses[n] = row_loss(&sum, powers, row, V, target);
        } else {
            cap_row(powers, slope, row, V, softcap);
            losses[n] = row_loss<float>(&sum, powers, powers, V, target);
        }
        // Subtract 1 before scaling: with a probability near 1 the other order would cancel twice.
        const auto target_grad = float((double(powers[target]) - sum) / sum * double(dloss));
        const float scale = float(double(dloss) / sum), target_slope = slope ? slope[target] : 1;
        for_lanes(V, [&](int64_t v, auto width) {
            const F32x16 grad = load(powers + v, width) * scale;
            store(row + v, slope ? grad * load(slope + v, width) : grad, width);
        });
        store(row + target, broadcast(target_grad * target_slope), 1);
        std::memset(static_cast<void*>(row + V), 0, size_t(Vp - V) * sizeof(T));
    });
}

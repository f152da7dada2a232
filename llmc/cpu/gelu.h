/*
GELU on the CPU: llmc/ops/gelu.h.
*/
#pragma once
#include <cstdint>
#include <limits>
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks
#include "llmc/cpu/reduce.h"  // largest_magnitude
#include "llmc/cpu/simd.h"
#include "llmc/ops/op_cost.h"  // gelu_backward_cost, gelu_forward_cost

inline constexpr float kGeluMinus2Scale = -1.5957691216f;  // -2 sqrt(2/pi)
inline constexpr float kGeluCube = 0.044715f;
inline constexpr int64_t kGeluChunk = 4096;  // elements: many enough to hide the loop overhead, few enough for L1

// e^-2u: sigmoid(2u) = 1 / (1 + e^-2u)
template <int n>
ANVIL_INLINE F32<n> gelu_exp(F32<n> x) {
    return exp(x * fma(x * x, kGeluCube, 1) * kGeluMinus2Scale);
}

// Runs on the calling thread alone.
template <class T>
void gelu_values(T* out, const T* inp, int64_t n) {
    for_lanes_unrolled(n, [=](int64_t i, auto width) {
        const auto x = load_ahead(inp + i, width);
        prefetch_ahead(out + i, width);
        store(out + i, x * (1 / (gelu_exp(x) + 1)), width);
    });
}

template <class T>
void gelu_forward(Cpu& cpu, T* out, const T* inp, int64_t n) {
    const OpScope op(cpu, __func__, gelu_forward_cost<T>(n, Cpu::kExpFlops));
    parallel_chunks(cpu, n, kGeluChunk,
                    [=](int64_t begin, int64_t end) { gelu_values(out + begin, inp + begin, end - begin); });
}

// d out / dx = s + x s (1 - s) d(2u)/dx  with  s = sigmoid(2u),  d(2u)/dx = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
// 1 - s is computed as e^-2u s, since the difference would lose all digits where s is near 1. Where e^-2u is infinite,
// s is 0; the largest float replaces the infinity, so that their product is 0, not NaN.
template <class T>
void gelu_backward(Cpu& cpu, const GemmInput<T>& dinp, const T* dout, const T* inp, int64_t n) {
    const OpScope op(cpu, __func__, gelu_backward_cost<T>(n, Cpu::kExpFlops));
    constexpr float kLargest = std::numeric_limits<float>::max();
    parallel_chunks(cpu, n, kGeluChunk, [=, to = dinp.values](int64_t begin, int64_t end) {
        for_lanes_unrolled(end - begin, [=](int64_t i, auto width) {
            const auto x = load_ahead(inp + begin + i, width), e = gelu_exp(x), s = 1 / (e + 1);
            const auto rest = min(e, kLargest) * s;
            const auto slope = fma(x * x, 3 * kGeluCube, 1) * -kGeluMinus2Scale;
            const auto derivative = fma(x * (s * rest), slope, s);
            store(to + begin + i, load_ahead(dout + begin + i, width) * derivative, width);
        });
    });
    if (dinp.amax) largest_magnitude(cpu, dinp.amax, dinp.values, n);
}

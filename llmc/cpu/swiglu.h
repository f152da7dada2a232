/*
SwiGLU on the CPU: llmc/ops/swiglu.h.
*/
#pragma once
#include <cstdint>
#include <limits>
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/reduce.h"  // largest_magnitude
#include "llmc/cpu/simd.h"
#include "llmc/ops/op_cost.h"  // swiglu_backward_cost, swiglu_forward_cost

// Runs on the calling thread alone.
template <class T>
void swiglu_values(T* out, const T* gates, const T* ups, int64_t n) {
    for_lanes_unrolled(n, [=](int64_t i, auto width) {
        const auto gate = load_ahead(gates + i, width), up = load_ahead(ups + i, width);
        prefetch_ahead(out + i, width);
        store(out + i, gate / (exp(0 - gate) + 1) * up, width);
    });
}

template <class T>
void swiglu_forward(Cpu& cpu, T* out, const T* inp, int64_t N, int64_t C) {
    const OpScope op(cpu, __func__, swiglu_forward_cost<T>(N * C, Cpu::kExpFlops));
    parallel_for(cpu, N, [=](int64_t n) {
        const T* row = inp + n * 2 * C;
        swiglu_values(out + n * C, row, row + C, C);
    });
}

// 1 - s is computed as e^-gate s, since the difference would lose all digits where s is near 1. Where e^-gate is
// infinite, s is 0; the largest float replaces the infinity, so that their product is 0, not NaN.
template <class T>
void swiglu_backward(Cpu& cpu, const GemmInput<T>& dinp, const T* dout, const T* inp, int64_t N, int64_t C) {
    const OpScope op(cpu, __func__, swiglu_backward_cost<T>(N * C, Cpu::kExpFlops));
    constexpr float kLargest = std::numeric_limits<float>::max();
    parallel_for(cpu, N, [=, to = dinp.values](int64_t n) {
        const T* row = inp + n * 2 * C;
        T* drow = to + n * 2 * C;
        for_lanes_unrolled(C, [=](int64_t c, auto width) {
            prefetch_ahead(drow + c, width);
            prefetch_ahead(drow + C + c, width);
            const auto gate = load_ahead(row + c, width), up = load_ahead(row + C + c, width);
            const auto d = load_ahead(dout + n * C + c, width);
            const auto e = exp(0 - gate), s = 1 / (e + 1);
            const auto slope = fma(gate * s, min(e, kLargest) * s, s);
            store(drow + c, d * up * slope, width);
            store(drow + C + c, d * (gate * s), width);
        });
    });
    if (dinp.amax) largest_magnitude(cpu, dinp.amax, dinp.values, N * 2 * C);
}

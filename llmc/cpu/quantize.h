/*
Quantization to FP8 on the CPU: llmc/ops/quantize.h.
*/
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include "llmc/base/bf16.h"         // to_float
#include "llmc/base/check.h"        // ensure
#include "llmc/base/fp8.h"          // to_fp8, fp8_scale
#include "llmc/cpu/device.h"        // Cpu, parallel_chunks
#include "llmc/cpu/gelu.h"          // gelu_values
#include "llmc/cpu/reduce.h"        // add_column_sums, largest_magnitude_of
#include "llmc/cpu/relu_squared.h"  // relu_squared_values
#include "llmc/cpu/transpose.h"     // transpose
#include "llmc/ops/op_cost.h"       // absmax_cost, quantize_cost
#include "llmc/ops/quantize.h"      // Activation

inline constexpr int64_t kQuantizeChunk = 16384;

// body(values, n) for the numbers [begin, end) of inp, or their activation, a stretch at a time; by one thread.
template <class T, class Body>
void for_activated(const T* inp, int64_t begin, int64_t end, Activation activation, Body body) {
    if (activation == Activation::none) return body(inp + begin, begin, end - begin);
    constexpr int64_t kStretch = 2048;
    T values[kStretch];
    for (int64_t i = begin; i < end; i += kStretch) {
        const int64_t n = std::min(kStretch, end - i);
        if (activation == Activation::gelu)
            gelu_values(values, inp + i, n);
        else
            relu_squared_values(values, inp + i, n);
        body(values, i, n);
    }
}

template <class T>
void absmax(Cpu& cpu, float* amax, const T* inp, int64_t n, Activation activation = Activation::none) {
    const OpScope op(cpu, __func__, absmax_cost<T>(n, activation, Cpu::kExpFlops));
    largest_magnitude_of(cpu, amax, n, [=](int64_t begin, int64_t end, auto see) {
        for_activated(inp, begin, end, activation,
                      [&](const T* values, int64_t, int64_t count) { see(values, count); });
    });
}

template <class Fp8, class T>
void quantize(Cpu& cpu, Fp8* out, Fp8* out_transposed, float* inverse_scale, const T* inp, const float* amax,
              int64_t rows, int64_t cols, float* column_sums = nullptr, Activation activation = Activation::none) {
    const OpScope op(cpu, __func__,
                     quantize_cost<T>(rows * cols, out_transposed != nullptr, activation, Cpu::kExpFlops));
    ensure(!column_sums || activation == Activation::none);
    const float scale = fp8_scale<Fp8>(*amax);
    parallel_chunks(cpu, rows * cols, kQuantizeChunk, [=](int64_t begin, int64_t end) {
        for_activated(inp, begin, end, activation, [=](const T* values, int64_t first, int64_t count) {
            for (int64_t i = 0; i < count; i++) out[first + i] = to_fp8<Fp8>(to_float(values[i]) * scale);
        });
    });
    if (out_transposed) transpose(cpu, out_transposed, out, rows, cols);
    *inverse_scale = 1 / scale;
    if (column_sums) add_column_sums(cpu, column_sums, inp, rows, cols);
}

/*
Quantization to FP8 on the CPU: llmc/ops/quantize.h.
*/
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include "llmc/base/bf16.h"         // to_float
#include "llmc/base/check.h"        // ensure
#include "llmc/base/fp8.h"          // to_fp8, fp8_scale, mx_scale
#include "llmc/cpu/device.h"        // Cpu, parallel_chunks
#include "llmc/cpu/gelu.h"          // gelu_values, gelu_backward
#include "llmc/cpu/reduce.h"        // add_column_sums, largest_magnitude_of
#include "llmc/cpu/relu_squared.h"  // relu_squared_values, relu_squared_backward
#include "llmc/cpu/swiglu.h"        // swiglu_values, swiglu_backward
#include "llmc/cpu/transpose.h"     // transpose
#include "llmc/ops/op_cost.h"       // absmax_cost, quantize_cost, ...
#include "llmc/ops/quantize.h"      // Activation

inline constexpr int64_t kQuantizeChunk = 16384;

// Calls body(values, first, n) on the calling thread for successive parts of elements [begin, end) of inp, or of its
// activation. SwiGLU's activation has rows of `cols` elements.
template <class T, class Body>
void for_activated(const T* inp, int64_t begin, int64_t end, Activation activation, int64_t cols, Body body) {
    if (activation == Activation::none) return body(inp + begin, begin, end - begin);
    constexpr int64_t kStretch = 2048;
    T values[kStretch];
    for (int64_t i = begin, n; i < end; i += n) {
        n = std::min(kStretch, end - i);
        if (activation == Activation::swiglu) {
            const int64_t c = i % cols;
            const T* const gates = inp + i / cols * 2 * cols + c;
            n = std::min(n, cols - c);
            swiglu_values(values, gates, gates + cols, n);
        } else if (activation == Activation::gelu) {
            gelu_values(values, inp + i, n);
        } else {
            relu_squared_values(values, inp + i, n);
        }
        body(values, i, n);
    }
}

template <class T>
void absmax(Cpu& cpu, float* amax, const T* inp, int64_t n, Activation activation = Activation::none,
            int64_t cols = 0) {
    const OpScope op(cpu, __func__, absmax_cost<T>(n, activation, Cpu::kExpFlops));
    ensure(activation != Activation::swiglu || cols > 0);
    largest_magnitude_of(cpu, amax, n, [=](int64_t begin, int64_t end, auto see) {
        for_activated(inp, begin, end, activation, cols,
                      [&](const T* values, int64_t, int64_t count) { see(values, count); });
    });
}

// Quantizes with a delayed scale, and records the largest magnitude and the saturated elements in `notes`.
template <class Fp8, class T>
void quantize_noting(Cpu& cpu, Fp8* out, const T* inp, float amax, int64_t n, Activation activation, int64_t cols,
                     const QuantizeNotes& notes) {
    struct Noted {
        uint32_t largest;
        int32_t saturated;
    };
    static_assert(sizeof(Noted) == 2 * sizeof(float));
    const float scale = fp8_scale<Fp8>(amax);
    const int64_t chunks = (n + kQuantizeChunk - 1) / kQuantizeChunk;
    Noted* const noted = reinterpret_cast<Noted*>(cpu.shared_scratch(2 * chunks));
    parallel_chunks(cpu, n, kQuantizeChunk, [=](int64_t begin, int64_t end) {
        Noted all = {};
        for_activated(inp, begin, end, activation, cols, [&](const T* values, int64_t first, int64_t count) {
            for (int64_t i = 0; i < count; i++) {
                const float x = to_float(values[i]);
                const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7FFFFFFF;
                all.largest = std::max(all.largest, magnitude);
                all.saturated += magnitude > std::bit_cast<uint32_t>(amax);
                out[first + i] = magnitude < kInfinityBits ? to_fp8<Fp8>(x * scale) : Fp8{uint8_t(Fp8::kNan)};
            }
        });
        noted[begin / kQuantizeChunk] = all;
    });
    uint32_t largest = std::bit_cast<uint32_t>(*notes.amax);
    for (int64_t i = 0; i < chunks; i++) {
        largest = std::max(largest, noted[i].largest);
        if (notes.saturated) *notes.saturated += uint64_t(noted[i].saturated);
    }
    *notes.amax = std::bit_cast<float>(largest);
}

template <class Fp8, class T>
void quantize(Cpu& cpu, Fp8* out, Fp8* out_transposed, float* inverse_scale, const T* inp, const float* amax,
              int64_t rows, int64_t cols, float* column_sums = nullptr, Activation activation = Activation::none,
              const T* hidden = nullptr, const QuantizeNotes& notes = {}) {
    const int64_t n = rows * cols;
    const OpScope op(cpu, __func__,
                     hidden ? quantize_gradient_cost<T>(n, out_transposed != nullptr, activation, Cpu::kExpFlops)
                            : quantize_cost<T>(n, out_transposed != nullptr, activation, Cpu::kExpFlops));
    ensure(!column_sums || hidden || activation == Activation::none);
    if (hidden) {  // stored here: FP8 on a CPU is a reference, not an optimization
        ensure(notes.amax && activation != Activation::none && (activation != Activation::swiglu || !column_sums));
        T* const gradient = reinterpret_cast<T*>(cpu.outer_scratch(n));
        if (activation == Activation::gelu)
            gelu_backward(cpu, gradient, inp, hidden, n);
        else if (activation == Activation::swiglu)
            swiglu_backward(cpu, gradient, inp, hidden, rows, cols / 2);
        else
            relu_squared_backward(cpu, gradient, inp, hidden, n);
        inp = gradient, activation = Activation::none;
    }
    const float scale = fp8_scale<Fp8>(*amax);
    if (notes.amax)
        quantize_noting(cpu, out, inp, *amax, n, activation, cols, notes);
    else
        parallel_chunks(cpu, n, kQuantizeChunk, [=](int64_t begin, int64_t end) {
            for_activated(inp, begin, end, activation, cols, [=](const T* values, int64_t first, int64_t count) {
                for (int64_t i = 0; i < count; i++) out[first + i] = to_fp8<Fp8>(to_float(values[i]) * scale);
            });
        });
    if (out_transposed) transpose(cpu, out_transposed, out, rows, cols);
    *inverse_scale = 1 / scale;
    if (column_sums) add_column_sums(cpu, column_sums, inp, rows, cols);
}

template <class T>
void quantize_mx(Cpu& cpu, const MxTensor& out, const T* inp, float* column_sums = nullptr,
                 Activation activation = Activation::none) {
    const int64_t rows = out.rows, cols = out.cols, n = rows * cols;
    const OpScope op(cpu, __func__, quantize_mx_cost<T>(n, activation, Cpu::kExpFlops));
    check_mx_tensor("quantize_mx", rows, cols);
    ensure(!column_sums || activation == Activation::none);
    const T* values = inp;
    if (activation != Activation::none) {
        T* const activated = reinterpret_cast<T*>(cpu.outer_scratch(n));
        parallel_chunks(cpu, n, kQuantizeChunk, [=](int64_t begin, int64_t end) {
            for_activated(inp, begin, end, activation, cols, [=](const T* from, int64_t first, int64_t count) {
                std::copy(from, from + count, activated + first);
            });
        });
        values = activated;
    }
    std::fill_n(out.scales, mx_scale_bytes(rows, cols), e8m0{0});
    std::fill_n(out.transposed_scales, mx_scale_bytes(cols, rows), e8m0{0});
    // Blocks along columns of `values` are those along rows of its transpose.
    const auto quantize_blocks = [&](e4m3* codes, e8m0* scales, int64_t num_rows, int64_t num_cols, int64_t row_step,
                                     int64_t col_step) {
        parallel_for(cpu, num_rows, [=](int64_t row) {
            for (int64_t col = 0; col < num_cols; col += kMxBlock) {
                const T* const block = values + row * row_step + col * col_step;
                uint32_t largest = 0;
                for (int64_t i = 0; i < kMxBlock; i++)
                    largest =
                        std::max(largest, std::bit_cast<uint32_t>(float(to_float(block[i * col_step]))) & 0x7FFFFFFF);
                const e8m0 scale = mx_scale(largest);
                for (int64_t i = 0; i < kMxBlock; i++)
                    codes[row * num_cols + col + i] = to_fp8<e4m3>(to_float(block[i * col_step]) * mx_inverse(scale));
                scales[mx_scale_at(row, col, num_cols)] = scale;
            }
        });
    };
    quantize_blocks(out.data, out.scales, rows, cols, cols, 1);
    quantize_blocks(out.transposed, out.transposed_scales, cols, rows, 1, cols);
    if (column_sums) add_column_sums(cpu, column_sums, inp, rows, cols);
}

// After an op has written x.values: computes what else their GEMM wants.
template <class T>
void finish_gemm_input(Cpu& cpu, const GemmInput<T>& x, int64_t rows, int64_t cols) {
    if (x.column_sums) add_column_sums(cpu, x.column_sums, x.values, rows, cols);
    if (x.amax) largest_magnitude(cpu, x.amax, x.values, rows * cols);
    if (const DelayedCodes& to = x.codes; to.codes)
        quantize<e4m3, T>(cpu, to.codes, to.transposed, to.inverse_scale, x.values, to.amax, rows, cols, nullptr,
                          Activation::none, nullptr, to.notes);
}

inline void transpose_codes(Cpu& cpu, e4m3* out, const e4m3* inp, int64_t rows, int64_t cols) {
    const OpScope op(cpu, __func__, elements_cost<e4m3>(2, 0, rows * cols));
    transpose(cpu, out, inp, rows, cols);
}

inline void update_amax(Cpu& cpu, const AmaxState& state, const float* seen, int64_t ranks) {
    const OpScope op(cpu, __func__, update_amax_cost(state.tensors, state.length, ranks));
    float* const entries = state.history() + int64_t(state.data[0]) * state.tensors;
    for (int64_t i = 0; i < state.tensors; i++) {
        uint32_t largest = 0;
        for (int64_t r = 0; r < ranks; r++)
            largest = std::max(largest, std::bit_cast<uint32_t>(seen[r * state.tensors + i]));
        entries[i] = largest < kInfinityBits ? std::bit_cast<float>(largest) : 0;
        float amax = 0;
        for (int64_t k = 0; k < state.length; k++) amax = std::max(amax, state.history()[k * state.tensors + i]);
        state.amax()[i] = amax > 0 ? amax : kNoAmax;
    }
    state.data[0] = state.data[0] + 1 < float(state.length) ? state.data[0] + 1 : 0;
    state.data[1] = std::min(state.data[1] + 1, float(state.length));
}

/*
LayerNorm on the CPU: llmc/ops/layernorm.h.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include "llmc/cpu/device.h"    // Cpu, parallel_for
#include "llmc/cpu/quantize.h"  // finish_gemm_input
#include "llmc/cpu/reduce.h"    // add_partials
#include "llmc/cpu/simd.h"
#include "llmc/ops/op_cost.h"  // layernorm_backward_cost, ...

template <class T>
void layernorm_row(T* out, float* mean, float* rstd, const T* inp, const T* weight, const T* bias, int64_t C,
                   float eps) {
    F32x16 sum = zeros(), squares = zeros();
    for_lanes(C, [&](int64_t c, auto width) { sum += load(inp + c, width); });
    const float m = sum_lanes(sum) / float(C);
    for_lanes(C, [&](int64_t c, auto width) {
        const F32x16 centered = load(inp + c, width, m) - m;
        squares = fma(centered, centered, squares);
    });
    const float s = 1 / std::sqrt(sum_lanes(squares) / float(C) + eps);
    for_lanes(C, [&](int64_t c, auto width) {
        const F32x16 normed = (load(inp + c, width) - m) * s;
        store(out + c, fma(normed, load(weight + c, width), load(bias + c, width)), width);
    });
    *mean = m;
    *rstd = s;
}

template <class T>
void layernorm_forward(Cpu& cpu, const GemmInput<T>& out, float* mean, float* rstd, const T* inp, const T* weight,
                       const T* bias, int64_t N, int64_t C, float eps) {
    const OpScope op(cpu, __func__, elements_cost<T>(kLayernormForward, N * C));
    parallel_for(cpu, N, [=, y = out.values](int64_t n) {
        layernorm_row(y + n * C, mean + n, rstd + n, inp + n * C, weight, bias, C, eps);
    });
    finish_gemm_input<T>(cpu, out, N, C);
}

template <class T>
void residual_layernorm_forward(Cpu& cpu, T* residual, const GemmInput<T>& out, float* mean, float* rstd, const T* inp1,
                                const T* inp2, const T* weight, const T* bias, int64_t N, int64_t C, float eps) {
    const OpScope op(cpu, __func__, elements_cost<T>(kResidualLayernormForward, N * C));
    parallel_for(cpu, N, [=, y = out.values](int64_t n) {
        for_lanes(C, [=](int64_t c, auto width) {
            const int64_t i = n * C + c;
            prefetch_ahead(residual + i, width);
            store(residual + i, load_ahead(inp1 + i, width) + load_ahead(inp2 + i, width), width);
        });
        layernorm_row(y + n * C, mean + n, rstd + n, residual + n * C, weight, bias, C, eps);
    });
    finish_gemm_input<T>(cpu, out, N, C);
}

// With x = (inp - mean) * rstd and g = dout * weight:
//   dinp = or += rstd * (g - mean(g) - x * mean(g * x)),   dweight += sum of dout * x,   dbias += sum of dout
template <class T>
void layernorm_backward(Cpu& cpu, const GemmInput<T>& dinp, float* dweight, float* dbias, const T* dout, const T* inp,
                        const T* weight, const float* mean, const float* rstd, int64_t N, int64_t C,
                        Write write = Write::add) {
    const OpScope op(cpu, __func__, layernorm_backward_cost<T>(N * C, write));
    const int64_t chunks = num_row_chunks(N);
    float* partials = cpu.shared_scratch(chunks * 2 * C);  // (chunks, 2, C): dweight, dbias
    parallel_for(cpu, chunks, [=, to = dinp.values](int64_t chunk) {
        float* dw = partials + chunk * 2 * C;
        float* db = dw + C;
        std::memset(dw, 0, size_t(2 * C) * sizeof(float));
        const int64_t end = std::min(N, (chunk + 1) * kRowsPerChunk);
        for (int64_t n = chunk * kRowsPerChunk; n < end; n++) {
            const float m = mean[n], s = rstd[n];
            const T* x_row = inp + n * C;
            const T* grad = dout + n * C;
            T* dx = to + n * C;
            F32x16 sum_g = zeros(), sum_gx = zeros();
            for_lanes(C, [&](int64_t c, auto width) {
                prefetch_ahead(dx + c, width);
                const F32x16 x = (load_ahead(x_row + c, width) - m) * s;
                const F32x16 d = load_ahead(grad + c, width);
                const F32x16 g = d * load(weight + c, width);
                sum_g += g;
                sum_gx = fma(g, x, sum_gx);
                store(dw + c, fma(d, x, load(dw + c, width)), width);
                store(db + c, load(db + c, width) + d, width);
            });
            const float mean_g = sum_lanes(sum_g) / float(C), mean_gx = sum_lanes(sum_gx) / float(C);
            for_lanes(C, [&](int64_t c, auto width) {
                const F32x16 x = (load(x_row + c, width) - m) * s;
                const F32x16 g = load(grad + c, width) * load(weight + c, width);
                const F32x16 before = write == Write::add ? load(dx + c, width) : zeros();
                store(dx + c, fma(g - mean_g - x * mean_gx, broadcast(s), before), width);
            });
        }
    });
    add_partials(cpu, dweight, partials, chunks, C, 2 * C);
    add_partials(cpu, dbias, partials + C, chunks, C, 2 * C);
    finish_gemm_input<T>(cpu, dinp, N, C);
}

/*
RMSNorm on the CPU: llmc/ops/rmsnorm.h.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include "llmc/base/check.h"    // ensure
#include "llmc/cpu/device.h"    // Cpu, parallel_for
#include "llmc/cpu/quantize.h"  // finish_gemm_input
#include "llmc/cpu/reduce.h"    // add_partials
#include "llmc/cpu/simd.h"
#include "llmc/ops/op_cost.h"  // kResidualRmsnormForward, ...

template <class T>
void rmsnorm_row(T* out, float* rstd, const T* inp, std::type_identity_t<const T*> weight, int64_t C, float eps) {
    F32x16 squares = zeros();
    for_lanes(C, [&](int64_t c, auto width) {
        const F32x16 x = load(inp + c, width);
        squares = fma(x, x, squares);
    });
    const float s = 1 / std::sqrt(sum_lanes(squares) / float(C) + eps);
    for_lanes(C, [&](int64_t c, auto width) {
        const F32x16 x = load(inp + c, width) * s;
        store(out + c, weight ? x * load(weight + c, width) : x, width);
    });
    *rstd = s;
}

template <class T>
void rmsnorm_forward(Cpu& cpu, const GemmInput<T>& out, float* rstd, const T* inp,
                     std::type_identity_t<const T*> weight, int64_t N, int64_t C, float eps) {
    const OpScope op(cpu, __func__, elements_cost<T>(kRmsnormForward, N * C));
    parallel_for(cpu, N,
                 [=, y = out.values](int64_t n) { rmsnorm_row(y + n * C, rstd + n, inp + n * C, weight, C, eps); });
    finish_gemm_input<T>(cpu, out, N, C);
}

template <class T>
void residual_rmsnorm_forward(Cpu& cpu, T* residual, const GemmInput<T>& out, float* rstd, const T* inp1, const T* inp2,
                              std::type_identity_t<const T*> weight, int64_t N, int64_t C, float eps) {
    const OpScope op(cpu, __func__, elements_cost<T>(kResidualRmsnormForward, N * C));
    parallel_for(cpu, N, [=, y = out.values](int64_t n) {
        for_lanes(C, [=](int64_t c, auto width) {
            const int64_t i = n * C + c;
            prefetch_ahead(residual + i, width);
            store(residual + i, load_ahead(inp1 + i, width) + load_ahead(inp2 + i, width), width);
        });
        rmsnorm_row(y + n * C, rstd + n, residual + n * C, weight, C, eps);
    });
    finish_gemm_input<T>(cpu, out, N, C);
}

// With x = inp * rstd and g = dout * weight:   dinp = or += rstd * (g - x * mean(g * x)),   dweight += sum of dout * x
template <class T>
void rmsnorm_backward(Cpu& cpu, T* dinp, float* dweight, const T* dout, const T* inp,
                      std::type_identity_t<const T*> weight, const float* rstd, int64_t N, int64_t C,
                      Write write = Write::add) {
    const OpScope op(cpu, __func__, rmsnorm_backward_cost<T>(N * C, write));
    ensure(weight || !dweight);
    const int64_t chunks = num_row_chunks(N);
    float* partials = dweight ? cpu.shared_scratch(chunks * C) : nullptr;
    parallel_for(cpu, chunks, [=](int64_t chunk) {
        float* dw = dweight ? partials + chunk * C : nullptr;
        if (dw) std::memset(dw, 0, size_t(C) * sizeof(float));
        const int64_t end = std::min(N, (chunk + 1) * kRowsPerChunk);
        for (int64_t n = chunk * kRowsPerChunk; n < end; n++) {
            const float s = rstd[n];
            const T* x_row = inp + n * C;
            const T* grad = dout + n * C;
            T* dx = dinp + n * C;
            F32x16 sum_gx = zeros();
            for_lanes(C, [&](int64_t c, auto width) {
                prefetch_ahead(dx + c, width);
                const F32x16 x = load_ahead(x_row + c, width) * s, d = load_ahead(grad + c, width);
                sum_gx = fma(weight ? d * load(weight + c, width) : d, x, sum_gx);
                if (dw) store(dw + c, fma(d, x, load(dw + c, width)), width);
            });
            const float mean_gx = sum_lanes(sum_gx) / float(C);
            for_lanes(C, [&](int64_t c, auto width) {
                const F32x16 x = load(x_row + c, width) * s, d = load(grad + c, width);
                const F32x16 g = weight ? d * load(weight + c, width) : d;
                const F32x16 before = write == Write::add ? load(dx + c, width) : zeros();
                store(dx + c, fma(g - x * mean_gx, broadcast(s), before), width);
            });
        }
    });
    if (dweight) add_partials(cpu, dweight, partials, chunks, C, C);
}

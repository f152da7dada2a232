/*
RMSNorm (Zhang and Sennrich, 2019, arXiv:1910.07467):   out = inp * rstd * weight,   rstd = 1 / sqrt(mean(inp^2) + eps)

  inp, out (N, C)     weight (C), or null for a norm without gain     rstd (N): saved for backward
One row of C at a time. The fused form adds the two branches of a residual stream on the way:   residual = inp1 + inp2,
out = rmsnorm(residual). Backward adds to dinp, so the gradient that already flows along the residual stream is fused
in; it adds to dweight as well, which may be null.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include "llmc/base/check.h"  // ensure
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/reduce.h"  // add_partials
#include "llmc/cpu/simd.h"

inline void rmsnorm_row(float* out, float* rstd, const float* inp, const float* weight, int64_t C, float eps) {
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

inline void rmsnorm_forward(Cpu& cpu, float* out, float* rstd, const float* inp, const float* weight, int64_t N,
                            int64_t C, float eps) {
    parallel_for(cpu, N, [=](int64_t n) { rmsnorm_row(out + n * C, rstd + n, inp + n * C, weight, C, eps); });
}

inline void residual_rmsnorm_forward(Cpu& cpu, float* residual, float* out, float* rstd, const float* inp1,
                                     const float* inp2, const float* weight, int64_t N, int64_t C, float eps) {
    parallel_for(cpu, N, [=](int64_t n) {
        for_lanes(C, [=](int64_t c, auto width) {
            const int64_t i = n * C + c;
            store(residual + i, load(inp1 + i, width) + load(inp2 + i, width), width);
        });
        rmsnorm_row(out + n * C, rstd + n, residual + n * C, weight, C, eps);
    });
}

// With x = inp * rstd and g = dout * weight:   dinp += rstd * (g - x * mean(g * x)),   dweight += sum of dout * x
inline void rmsnorm_backward(Cpu& cpu, float* dinp, float* dweight, const float* dout, const float* inp,
                             const float* weight, const float* rstd, int64_t N, int64_t C) {
    ensure(weight || !dweight);
    const int64_t chunks = num_row_chunks(N);
    float* partials = dweight ? cpu.shared(chunks * C) : nullptr;
    parallel_for(cpu, chunks, [=](int64_t chunk) {
        float* dw = dweight ? partials + chunk * C : nullptr;
        if (dw) std::memset(dw, 0, size_t(C) * sizeof(float));
        const int64_t end = std::min(N, (chunk + 1) * kRowsPerChunk);
        for (int64_t n = chunk * kRowsPerChunk; n < end; n++) {
            const float s = rstd[n];
            const float* x_row = inp + n * C;
            const float* grad = dout + n * C;
            F32x16 sum_gx = zeros();
            for_lanes(C, [&](int64_t c, auto width) {
                const F32x16 x = load(x_row + c, width) * s, d = load(grad + c, width);
                sum_gx = fma(weight ? d * load(weight + c, width) : d, x, sum_gx);
                if (dw) store(dw + c, fma(d, x, load(dw + c, width)), width);
            });
            const float mean_gx = sum_lanes(sum_gx) / float(C);
            float* dx = dinp + n * C;
            for_lanes(C, [&](int64_t c, auto width) {
                const F32x16 x = load(x_row + c, width) * s, d = load(grad + c, width);
                const F32x16 g = weight ? d * load(weight + c, width) : d;
                store(dx + c, fma(g - x * mean_gx, broadcast(s), load(dx + c, width)), width);
            });
        }
    });
    if (dweight) add_partials(cpu, dweight, partials, chunks, C, C);
}

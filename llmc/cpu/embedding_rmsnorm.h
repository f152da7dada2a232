/*
Embedding and RMSNorm in one pass on the CPU: llmc/ops/embedding_rmsnorm.h.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"     // Cpu, parallel_for
#include "llmc/cpu/embedding.h"  // embedding_backward
#include "llmc/cpu/rmsnorm.h"    // rmsnorm_row
#include "llmc/cpu/simd.h"

template <class T>
void embedding_rmsnorm_forward(Cpu& cpu, T* out, float* rstd, const int32_t* tokens, const T* wte, int64_t N, int64_t C,
                               float eps) {
    const OpScope op(cpu, __func__);
    parallel_for(cpu, N,
                 [=](int64_t n) { rmsnorm_row(out + n * C, rstd + n, wte + int64_t(tokens[n]) * C, nullptr, C, eps); });
}

// With y = x * rstd:   dx = rstd * (dout - y * mean(dout * y)),   dwte[tokens[n]] += dx[n]
template <class T>
void embedding_rmsnorm_backward(Cpu& cpu, float* dwte, T* dout, const int32_t* tokens, const T* wte, const float* rstd,
                                int64_t B, int64_t T_, int64_t C) {
    const OpScope op(cpu, __func__);
    parallel_for(cpu, B * T_, [=](int64_t n) {
        const T* x = wte + int64_t(tokens[n]) * C;
        T* d = dout + n * C;
        const float s = rstd[n];
        F32x16 sum = zeros();
        for_lanes(C, [&](int64_t c, auto width) { sum = fma(load(d + c, width), load(x + c, width) * s, sum); });
        const float mean = sum_lanes(sum) / float(C);
        for_lanes(C, [=](int64_t c, auto width) {
            const F32x16 y = load(x + c, width) * s;
            store(d + c, (load(d + c, width) - y * mean) * s, width);
        });
    });
    embedding_backward(cpu, dwte, nullptr, dout, tokens, B, T_, C);
}

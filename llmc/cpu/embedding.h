/*
Embedding on the CPU, and the fused form with RMSNorm: llmc/ops/embedding.h.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"   // Cpu, parallel_for
#include "llmc/cpu/rmsnorm.h"  // rmsnorm_row
#include "llmc/cpu/simd.h"
#include "llmc/ops/op_cost.h"  // embedding_backward_cost, kEmbeddingForward

template <class T>
void embedding_forward(Cpu& cpu, T* out, const int32_t* tokens, const T* wte, std::type_identity_t<const T*> wpe,
                       int64_t B, int64_t T_, int64_t C) {
    const OpScope op(cpu, __func__, elements_cost<T>(kEmbeddingForward, B * T_ * C));
    parallel_for(cpu, B * T_, [=](int64_t row) {
        const T* token = wte + int64_t(tokens[row]) * C;
        const T* position = wpe ? wpe + row % T_ * C : nullptr;
        for_lanes(C, [=](int64_t c, auto width) {
            const F32x16 x = load(token + c, width);
            store(out + row * C + c, position ? x + load(position + c, width) : x, width);
        });
    });
}

template <class T>
void embedding_backward(Cpu& cpu, float* dwte, float* dwpe, const T* dout, const int32_t* tokens, int64_t B, int64_t T_,
                        int64_t C) {
    const OpScope op(cpu, __func__, embedding_backward_cost<T>(B * T_ * C));
    parallel_chunks(cpu, C, 64, [=](int64_t begin, int64_t end) {
        for (int64_t row = 0; row < B * T_; row++) {
            float* dtoken = dwte + int64_t(tokens[row]) * C + begin;
            float* dposition = dwpe ? dwpe + row % T_ * C + begin : nullptr;
            const T* grad = dout + row * C + begin;
            for_lanes(end - begin, [=](int64_t c, auto width) {
                store(dtoken + c, load(dtoken + c, width) + load(grad + c, width), width);
                if (dposition) store(dposition + c, load(dposition + c, width) + load(grad + c, width), width);
            });
        }
    });
}

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

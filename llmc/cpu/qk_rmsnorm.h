/*
RMSNorm of queries and keys on the CPU: llmc/ops/qk_rmsnorm.h.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include "llmc/cpu/device.h"   // Cpu, parallel_for
#include "llmc/cpu/reduce.h"   // add_partials
#include "llmc/cpu/rmsnorm.h"  // rmsnorm_row
#include "llmc/cpu/simd.h"
#include "llmc/ops/attention.h"  // AttentionShape
#include "llmc/ops/op_cost.h"    // kQkRmsnormForward, ...

template <class T>
void qk_rmsnorm_forward(Cpu& cpu, T* qkv, T* saved, float* rstd, const T* q_weight, const T* k_weight,
                        AttentionShape shape, float eps) {
    const int64_t heads = shape.NH + shape.NKV, HS = shape.HS;
    const OpScope op(cpu, __func__, elements_cost<T>(kQkRmsnormForward, shape.B * shape.T * heads * HS));
    parallel_for(cpu, shape.B * shape.T, [=](int64_t n) {
        T* kept = saved + n * heads * HS;
        std::memcpy(kept, qkv + n * shape.row(), size_t(heads * HS) * sizeof(T));
        for (int64_t head = 0; head < heads; head++)
            rmsnorm_row(qkv + n * shape.row() + head * HS, rstd + n * heads + head, kept + head * HS,
                        head < shape.NH ? q_weight : k_weight, HS, eps);
    });
}

// With x = saved * rstd and g = dout * weight:   dinp = rstd * (g - x * mean(g * x)),   dweight += sum of dout * x
template <class T>
void qk_rmsnorm_backward(Cpu& cpu, T* dqkv, float* dq_weight, float* dk_weight, const T* saved, const float* rstd,
                         const T* q_weight, const T* k_weight, AttentionShape shape) {
    const int64_t N = shape.B * shape.T, heads = shape.NH + shape.NKV, HS = shape.HS, chunks = num_row_chunks(N);
    const OpScope op(cpu, __func__, elements_cost<T>(kQkRmsnormBackward, N * heads * HS));
    float* partials = cpu.shared_scratch(chunks * 2 * HS);  // (chunks, 2, HS): dq_weight, dk_weight
    parallel_for(cpu, chunks, [=](int64_t chunk) {
        float* both = partials + chunk * 2 * HS;
        std::memset(both, 0, size_t(2 * HS) * sizeof(float));
        const int64_t end = std::min(N, (chunk + 1) * kRowsPerChunk);
        for (int64_t n = chunk * kRowsPerChunk; n < end; n++)
            for (int64_t head = 0; head < heads; head++) {
                const bool is_query = head < shape.NH;
                const float s = rstd[n * heads + head];
                const T* x_row = saved + (n * heads + head) * HS;
                const T* weight = is_query ? q_weight : k_weight;
                T* grad = dqkv + n * shape.row() + head * HS;
                float* dw = is_query ? both : both + HS;
                F32x16 sum_gx = zeros();
                for_lanes(HS, [&](int64_t j, auto width) {
                    const F32x16 x = load(x_row + j, width) * s, d = load(grad + j, width);
                    sum_gx = fma(d * load(weight + j, width), x, sum_gx);
                    store(dw + j, fma(d, x, load(dw + j, width)), width);
                });
                const float mean_gx = sum_lanes(sum_gx) / float(HS);
                for_lanes(HS, [&](int64_t j, auto width) {
                    const F32x16 x = load(x_row + j, width) * s;
                    const F32x16 g = load(grad + j, width) * load(weight + j, width);
                    store(grad + j, (g - x * mean_gx) * s, width);
                });
            }
    });
    add_partials(cpu, dq_weight, partials, chunks, HS, 2 * HS);
    add_partials(cpu, dk_weight, partials + HS, chunks, HS, 2 * HS);
}

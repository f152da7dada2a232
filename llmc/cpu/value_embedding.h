/*
Value embeddings on the CPU: llmc/ops/value_embedding.h.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/gate.h"    // gate_of, GateOpening
#include "llmc/cpu/reduce.h"  // add_partials
#include "llmc/cpu/simd.h"
#include "llmc/ops/attention.h"  // AttentionShape

template <class T>
void value_embedding_forward(Cpu& cpu, T* qkv, const T* inp, const int32_t* tokens, const T* table,
                             const T* gate_weight, const AttentionShape& shape, int64_t C, int64_t G,
                             float gate_scale) {
    const OpScope op(cpu, __func__);
    const int64_t NKV = shape.NKV, HS = shape.HS, row = shape.row();
    T* values = qkv + (shape.NH + NKV) * HS;
    parallel_for(cpu, shape.B * shape.T, [=](int64_t n) {
        for (int64_t h = 0; h < NKV; h++) {
            const float factor = gate_scale * gate_of(inp + n * C, gate_weight + h * G, G).open;
            T* v = values + n * row + h * HS;
            const T* entry = table + (int64_t(tokens[n]) * NKV + h) * HS;
            for_lanes(HS, [=](int64_t i, auto width) {
                store(v + i, fma(load(entry + i, width), broadcast(factor), load(v + i, width)), width);
            });
        }
    });
}

template <class T>
void value_embedding_backward(Cpu& cpu, T* dinp, float* dtable, float* dgate_weight, const T* dqkv, const T* inp,
                              const int32_t* tokens, const T* table, const T* gate_weight, const AttentionShape& shape,
                              int64_t C, int64_t G, float gate_scale) {
    const OpScope op(cpu, __func__);
    const int64_t N = shape.B * shape.T, NKV = shape.NKV, HS = shape.HS, row = shape.row(), chunks = num_row_chunks(N);
    const T* dvalues = dqkv + (shape.NH + NKV) * HS;
    float* partials = cpu.shared_scratch(chunks * NKV * G + 2 * N * NKV);       // (chunks, NKV, G): dgate_weight
    float *factors = partials + chunks * NKV * G, *slopes = factors + N * NKV;  // (N, NKV) both
    parallel_for(cpu, chunks, [=](int64_t chunk) {
        std::memset(partials + chunk * NKV * G, 0, size_t(NKV * G) * sizeof(float));
        const int64_t end = std::min(N, (chunk + 1) * kRowsPerChunk);
        for (int64_t n = chunk * kRowsPerChunk; n < end; n++) {
            const T* x = inp + n * C;
            for (int64_t h = 0; h < NKV; h++) {
                const T* dv = dvalues + n * row + h * HS;
                const T* entry = table + (int64_t(tokens[n]) * NKV + h) * HS;
                const GateOpening gate = gate_of(x, gate_weight + h * G, G);
                F32x16 sum = zeros();
                for_lanes(HS,
                          [&](int64_t i, auto width) { sum = fma(load(dv + i, width), load(entry + i, width), sum); });
                const float du = sum_lanes(sum) * gate_scale * gate.slope;
                factors[n * NKV + h] = gate_scale * gate.open;
                slopes[n * NKV + h] = du;
                float* dweight = partials + (chunk * NKV + h) * G;
                for_lanes(G, [=](int64_t g, auto width) {
                    store(dweight + g, fma(load(x + g, width), broadcast(du), load(dweight + g, width)), width);
                });
            }
            T* dx = dinp + n * C;
            for_lanes(G, [=](int64_t g, auto width) {
                F32x16 sum = load(dx + g, width);
                for (int64_t h = 0; h < NKV; h++)
                    sum = fma(load(gate_weight + h * G + g, width), broadcast(slopes[n * NKV + h]), sum);
                store(dx + g, sum, width);
            });
        }
    });
    add_partials(cpu, dgate_weight, partials, chunks, NKV * G, NKV * G);
    // Threads divide the columns, so each sum runs over the tokens in order.
    constexpr int64_t kColumns = 64;
    const int64_t parts = (HS + kColumns - 1) / kColumns;
    parallel_for(cpu, NKV * parts, [=](int64_t part) {
        const int64_t h = part / parts, begin = part % parts * kColumns, end = std::min(HS, begin + kColumns);
        for (int64_t n = 0; n < N; n++) {
            const float factor = factors[n * NKV + h];
            const T* dv = dvalues + n * row + h * HS + begin;
            float* dentry = dtable + (int64_t(tokens[n]) * NKV + h) * HS + begin;
            for_lanes(end - begin, [=](int64_t i, auto width) {
                store(dentry + i, fma(load(dv + i, width), broadcast(factor), load(dentry + i, width)), width);
            });
        }
    });
}

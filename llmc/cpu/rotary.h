/*
Rotary positions and QK-norm on the CPU: llmc/ops/rotary.h.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include "llmc/base/check.h"  // ensure
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/simd.h"
#include "llmc/ops/attention.h"  // AttentionShape
#include "llmc/ops/rotary.h"     // RotaryOptions

template <class T>
void rotary_forward(Cpu& cpu, T* qkv, float* rstd, const float* table, AttentionShape shape, RotaryOptions options) {
    const OpScope op(cpu, __func__);
    ensure(shape.HS % 2 == 0 && bool(rstd) == options.qk_norm);
    const int64_t heads = shape.NH + shape.NKV, half = shape.HS / 2;
    parallel_for(cpu, shape.B * shape.T, [=](int64_t n) {
        const float* cos = table + n % shape.T * 2 * half;
        const float* sin = cos + half;
        for (int64_t head = 0; head < heads; head++) {
            T* x = qkv + n * shape.row() + head * shape.HS;
            float factor = options.scale;
            if (rstd) {
                F32x16 squares = zeros();
                for_lanes(shape.HS, [&](int64_t j, auto width) {
                    const F32x16 part = load(x + j, width);
                    squares = fma(part, part, squares);
                });
                const float s = 1 / std::sqrt(sum_lanes(squares) / float(shape.HS) + options.eps);
                rstd[n * heads + head] = s;
                factor *= s;
            }
            for_lanes(half, [=](int64_t j, auto width) {
                const F32x16 c = load(cos + j, width), s = load(sin + j, width);
                const F32x16 first = load(x + j, width), second = load(x + half + j, width);
                store(x + j, (first * c - second * s) * factor, width);
                store(x + half + j, fma(first, s, second * c) * factor, width);
            });
        }
    });
}

// With g = dout, y = out / scale and R^T the rotation's transpose:   dinp = scale rstd R^T (g - y mean(g y))
template <class T>
void rotary_backward(Cpu& cpu, T* dqkv, const T* qkv, const float* rstd, const float* table, AttentionShape shape,
                     RotaryOptions options) {
    const OpScope op(cpu, __func__);
    ensure(shape.HS % 2 == 0 && bool(rstd) == options.qk_norm);
    const int64_t heads = shape.NH + shape.NKV, half = shape.HS / 2;
    parallel_for(cpu, shape.B * shape.T, [=](int64_t n) {
        const float* cos = table + n % shape.T * 2 * half;
        const float* sin = cos + half;
        for (int64_t head = 0; head < heads; head++) {
            const int64_t at = n * shape.row() + head * shape.HS;
            T* g = dqkv + at;
            const T* out = qkv + at;
            float factor = options.scale, along = 0;  // along: subtracted from g per unit of out
            if (rstd) {
                F32x16 sum = zeros();
                for_lanes(shape.HS,
                          [&](int64_t j, auto width) { sum = fma(load(g + j, width), load(out + j, width), sum); });
                along = sum_lanes(sum) / (float(shape.HS) * options.scale * options.scale);
                factor *= rstd[n * heads + head];
            }
            for_lanes(half, [=](int64_t j, auto width) {
                const F32x16 c = load(cos + j, width), s = load(sin + j, width);
                F32x16 first = load(g + j, width), second = load(g + half + j, width);
                if (rstd) {
                    first = first - load(out + j, width) * along;
                    second = second - load(out + half + j, width) * along;
                }
                store(g + j, fma(first, c, second * s) * factor, width);
                store(g + half + j, (second * c - first * s) * factor, width);
            });
        }
    });
}

/*
Rotary positions (Su et al., 2021, arXiv:2104.09864) with QK-norm (Henry et al., 2020, arXiv:2010.04245), in place on
the queries and keys of one attention; the values stay as they are. For each head of each token, x of HS numbers:

  rotated_j        =  x_j cos - x_(j + HS/2) sin          cos, sin of the token's position and j < HS/2
  rotated_(j+HS/2) =  x_j sin + x_(j + HS/2) cos
  out = scale * rstd * rotated,   rstd = 1 / sqrt(mean(x^2) + eps)          (rstd = 1 without QK-norm)

  qkv, dqkv (B, T, NH + 2 NKV, HS) T     rstd (B, T, NH + NKV) float, null without QK-norm     table (T, 2, HS/2):
rotary_table() A rotation keeps the norm, so it does not matter which of the two comes first: nanochat's order and
modded-nanogpt's are the same op. Sampling from a cache starts at a later position: pass the table from that row on.

Both passes overwrite their buffer. Attention keeps the rotated queries and keys for its own backward, and they are all
that backward needs here: with y = out / scale = rstd * rotated, the derivative of the norm is taken at y, and the
rotation is undone by its transpose. The inputs need no memory of their own, rstd is one number a head.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include "llmc/base/check.h"     // ensure
#include "llmc/base/op_types.h"  // AttentionShape, RotaryOptions
#include "llmc/cpu/device.h"     // Cpu, parallel_for
#include "llmc/cpu/simd.h"

inline namespace ANVIL_CPU_LEVEL {

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
            float factor = options.scale, along = 0;  // along: what is taken from g for each unit of out
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

}  // namespace ANVIL_CPU_LEVEL

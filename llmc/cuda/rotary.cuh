/*
Rotary positions with QK-norm, in place on the queries and keys:   x -> scale * rstd * rotated(x)

  qkv, dqkv (B, T, NH + 2 NKV, HS) T     rstd (B, T, NH + NKV) f32, null without QK-norm     table (T, 2, HS/2) f32
                                         (llmc/ops/rotary.h has the formulas, and why backward takes the output)

Math      f32; cosines and sines come from the table, rounded from double
Work      one block per token; a group of kGroup lanes per head, each with P adjacent elements, a pack, of both halves.
          Groups stride over the heads, so a lane's cosines and sines stay in its registers
Bytes     forward 2, backward 3 (without QK-norm 2) times B*T*(NH + NKV)*HS*sizeof(T), and the table once per token
Accuracy  half a unit of T for what is stored, and the roundings of f32 (test/cuda/rotary_cuda_test.cu)
Requires  HS % 8 == 0, HS <= 256, pointers 16-byte aligned. In bf16 the second half of a head whose HS is no multiple
          of 16 is not 16-byte aligned: such heads are read and written element by element, four per lane
*/
#pragma once
#include <algorithm>
#include <type_traits>
#include "llmc/base/check.h"     // require, ensure
#include "llmc/cuda/device.cuh"  // Pack, load16, store16, load_floats, warp_sum, launch
#include "llmc/cuda/limits.h"    // check_rotary_head_size
#include "llmc/ops/attention.h"  // AttentionShape
#include "llmc/ops/op_cost.h"    // rotary_backward_cost, rotary_forward_cost
#include "llmc/ops/rotary.h"     // RotaryOptions

inline constexpr int kRotaryMaxThreads = 256;

// P adjacent elements of a row: a pack, or four elements that are read and written one by one.
template <class T>
struct FourElements {
    T values[4] = {};
    DEVICE T& operator[](int k) { return values[k]; }
};
template <class T, int P>
using Neighbors = std::conditional_t<P == Pack<T>::size, Pack<T>, FourElements<T>>;

template <class T>
DEVICE void load_neighbors(Pack<T>& x, const T* from) {
    x = load16(from);
}
template <class T>
DEVICE void load_neighbors(FourElements<T>& x, const T* from) {
    for (int k = 0; k < 4; k++) x[k] = from[k];
}
template <class T>
DEVICE void store_neighbors(T* to, const Pack<T>& x) {
    store16(to, x);
}
template <class T>
DEVICE void store_neighbors(T* to, const FourElements<T>& x) {
    for (int k = 0; k < 4; k++) to[k] = x.values[k];
}

template <class T, int P, int kGroup>
__global__ void __launch_bounds__(kRotaryMaxThreads)
    rotary_forward_kernel(T* qkv, float* rstd, const float* table, AttentionShape shape, float eps, float scale) {
    const int heads = int(shape.NH + shape.NKV), HS = int(shape.HS), half = HS / 2, at = threadIdx.x % kGroup * P;
    const bool in_head = at < half;  // HS/2 may need fewer lanes than a group has
    const int64_t n = blockIdx.x, token = n * (heads + shape.NKV) * HS;
    float cos[P], sin[P];
    const float* turns = table + n % shape.T * HS + (in_head ? at : 0);
    load_floats(cos, turns), load_floats(sin, turns + half);
    for (int begin = 0; begin < heads; begin += blockDim.x / kGroup) {
        const int head = begin + threadIdx.x / kGroup;
        const bool active = in_head && head < heads;  // inactive lanes stay: whole warps reach the sum
        T* x = qkv + token + head * HS + at;
        Neighbors<T, P> first, second;
        float squares = 0;
        if (active) {
            load_neighbors(first, x), load_neighbors(second, x + half);
            for (int k = 0; k < P; k++) {
                squares = fmaf(to_float(first[k]), to_float(first[k]), squares);
                squares = fmaf(to_float(second[k]), to_float(second[k]), squares);
            }
        }
        float factor = scale;
        if (rstd) {
            const float s = 1 / sqrtf(warp_sum<kGroup>(squares) / float(HS) + eps);
            if (active && at == 0) rstd[n * heads + head] = s;
            factor *= s;
        }
        if (!active) continue;
        for (int k = 0; k < P; k++) {
            const float a = to_float(first[k]), b = to_float(second[k]);
            first[k] = from_float<T>((a * cos[k] - b * sin[k]) * factor);
            second[k] = from_float<T>(fmaf(a, sin[k], b * cos[k]) * factor);
        }
        store_neighbors(x, first), store_neighbors(x + half, second);
    }
}

// With g = dout, y = out / scale and R^T the rotation's transpose:   dinp = scale rstd R^T (g - y mean(g y))
template <class T, int P, int kGroup>
__global__ void __launch_bounds__(kRotaryMaxThreads)
    rotary_backward_kernel(T* dqkv, const T* qkv, const float* rstd, const float* table, AttentionShape shape,
                           float scale) {
    const int heads = int(shape.NH + shape.NKV), HS = int(shape.HS), half = HS / 2, at = threadIdx.x % kGroup * P;
    const bool in_head = at < half;
    const int64_t n = blockIdx.x, token = n * (heads + shape.NKV) * HS;
    float cos[P], sin[P];
    const float* turns = table + n % shape.T * HS + (in_head ? at : 0);
    load_floats(cos, turns), load_floats(sin, turns + half);
    for (int begin = 0; begin < heads; begin += blockDim.x / kGroup) {
        const int head = begin + threadIdx.x / kGroup;
        const bool active = in_head && head < heads;  // inactive lanes stay: whole warps reach the sum
        const int64_t offset = token + head * HS + at;
        Neighbors<T, P> first, second, out_first, out_second;
        if (active) load_neighbors(first, dqkv + offset), load_neighbors(second, dqkv + offset + half);
        float factor = scale, along = 0;  // along: subtracted from g per unit of out
        if (rstd) {
            float sum = 0;
            if (active) {
                load_neighbors(out_first, qkv + offset), load_neighbors(out_second, qkv + offset + half);
                for (int k = 0; k < P; k++) {
                    sum = fmaf(to_float(first[k]), to_float(out_first[k]), sum);
                    sum = fmaf(to_float(second[k]), to_float(out_second[k]), sum);
                }
                factor *= rstd[n * heads + head];
            }
            along = warp_sum<kGroup>(sum) / (float(HS) * scale * scale);
        }
        if (!active) continue;
        for (int k = 0; k < P; k++) {
            float a = to_float(first[k]), b = to_float(second[k]);
            if (rstd) a -= to_float(out_first[k]) * along, b -= to_float(out_second[k]) * along;
            first[k] = from_float<T>(fmaf(a, cos[k], b * sin[k]) * factor);
            second[k] = from_float<T>((b * cos[k] - a * sin[k]) * factor);
        }
        store_neighbors(dqkv + offset, first), store_neighbors(dqkv + offset + half, second);
    }
}

// Calls start(P, group, threads) with as many adjacent elements as a lane can take at once, the smallest power of two
// of lanes that cover HS/2, and as many threads as all heads of a token need, up to a block of 256.
template <class T, class Start>
void with_rotary_groups(const AttentionShape& shape, const float* rstd, const RotaryOptions& options, Start start) {
    using std::integral_constant;
    check_rotary_head_size(shape.HS);
    ensure(bool(rstd) == options.qk_norm);
    const auto run = [&](auto P, auto group) {
        const int64_t all = ceil_div((shape.NH + shape.NKV) * group, kWarp) * kWarp;
        start(P, group, unsigned(std::min<int64_t>(all, kRotaryMaxThreads)));
    };
    constexpr integral_constant<int, Pack<T>::size> P;
    if (shape.HS % (2 * P) != 0) return run(integral_constant<int, 4>(), integral_constant<int, kWarp>());
    const auto try_group = [&](auto group) {
        if (shape.HS / 2 <= group * P && (group == 1 || shape.HS / 2 > group / 2 * P)) run(P, group);
    };
    try_group(integral_constant<int, 1>()), try_group(integral_constant<int, 2>());
    try_group(integral_constant<int, 4>()), try_group(integral_constant<int, 8>());
    try_group(integral_constant<int, 16>());
    if constexpr (kMaxHeadSize / 2 > 16 * P) try_group(integral_constant<int, 32>());
}

template <class T>
void rotary_forward(Cuda& cuda, T* qkv, float* rstd, const float* table, AttentionShape shape, RotaryOptions options) {
    const OpScope op(cuda, __func__, rotary_forward_cost<T>(shape.B * shape.T, shape.NH + shape.NKV, shape.HS));
    with_rotary_groups<T>(shape, rstd, options, [&](auto P, auto group, unsigned threads) {
        launch(cuda, "rotary_forward", rotary_forward_kernel<T, P, group>, unsigned(shape.B * shape.T), threads, 0, qkv,
               rstd, table, shape, options.eps, options.scale);
    });
}

template <class T>
void rotary_backward(Cuda& cuda, T* dqkv, const T* qkv, const float* rstd, const float* table, AttentionShape shape,
                     RotaryOptions options) {
    const OpScope op(cuda, __func__, rotary_backward_cost<T>(shape.B * shape.T, shape.NH + shape.NKV, shape.HS));
    with_rotary_groups<T>(shape, rstd, options, [&](auto P, auto group, unsigned threads) {
        launch(cuda, "rotary_backward", rotary_backward_kernel<T, P, group>, unsigned(shape.B * shape.T), threads, 0,
               dqkv, qkv, rstd, table, shape, options.scale);
    });
}

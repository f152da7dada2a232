/*
Attention of one new token per row against the KV cache (llmc/ops/attention_decode.h has the equations):

  attention_remember   keys[b], values[b] at positions[b], +1, ..., +T-1  =  k, v in qkv[b]
  attention_decode     out[b] = softmax(scale q[b] . keys[b]) values[b] over the slots that the row's token sees

  qkv (B, T, NH + 2 NKV, HS) T     out (B, NH, HS) T     positions, starts (B) int32 on the GPU, null for zeros
  keys (B, NKV, capacity / 64, HS, 64) T     values (B, NKV, capacity, HS) T     (KeyValueShape)

Math      f32 for scores, softmax and sums
Work      remember: one thread per element. decode: one block per query head of a row, whose warps take tiles of 64
          keys in turn. A tile of keys is transposed, so a lane reads 16 bytes of neighboring keys at a time and
          computes their scores over its share of the tile's rows, which lanes then add up; in the sums over a tile's
          values each lane has its own columns. The warps' results are added in their order: the same bits each time
Bytes     decode: 2 HS sizeof(T) per visible key and query head; the heads of a group share keys and values in L2
Accuracy  half a unit of T for what is stored, and the roundings of f32 (test/cuda/attention_decode_cuda_test.cu)
Requires  NH % NKV == 0; HS a multiple of 4 up to 256; tensors 16-byte aligned
*/
#pragma once
#include <algorithm>
#include "llmc/base/check.h"                  // ensure
#include "llmc/cuda/attention/attention.cuh"  // with_columns_per_lane, kLog2E
#include "llmc/cuda/device.cuh"               // Pack, load16, warp_sum, launch
#include "llmc/ops/attention_decode.h"        // kCacheTile, KeyValueShape

inline constexpr int kDecodeWarps = 8, kDecodeThreads = kDecodeWarps * kWarp, kDecodeMaxHS = 256;

struct DecodeShape {
    int NH, NKV, HS, window, capacity;

    explicit DecodeShape(const KeyValueShape& s)
        : NH(int(s.NH)), NKV(int(s.NKV)), HS(int(s.HS)), window(int(s.window)), capacity(int(s.capacity())) {}
    DEVICE int64_t qkv_row() const { return int64_t(NH + 2 * NKV) * HS; }
};

// Tokens [skip, T) of each row.
template <class T>
__global__ void __launch_bounds__(256)
    attention_remember_kernel(T* keys, T* values, const T* qkv, const int32_t* positions, int64_t tokens, int64_t skip,
                              int64_t n, DecodeShape s) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int HS = s.HS, c = int(i % HS), kv = int(i / HS % s.NKV);
    const int64_t token = i / HS / s.NKV, kept = tokens - skip, b = token / kept, t = skip + token % kept;
    const int64_t slot = ((positions ? positions[b] : 0) + t) % s.capacity, ring = (b * s.NKV + kv) * s.capacity;
    const T* k = qkv + (b * tokens + t) * s.qkv_row() + (s.NH + kv) * HS + c;
    keys[(ring + slot / kCacheTile * kCacheTile) * HS + c * kCacheTile + slot % kCacheTile] = k[0];
    values[(ring + slot) * HS + c] = k[s.NKV * HS];
}

// J columns of values per lane.
template <class T, int J>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    attention_decode_kernel(T* out, const T* qkv, const T* keys, const T* values, const int32_t* positions,
                            const int32_t* starts, float scale_log2, DecodeShape s) {
    constexpr int P = Pack<T>::size, kTile = int(kCacheTile), kRowLanes = kTile / P, kRows = kWarp / kRowLanes;
    SMEM_STATIC(float, q, [kDecodeMaxHS]);
    SMEM_STATIC(float, all_weights, [kDecodeWarps][kTile]);
    SMEM_STATIC(float, all_sums, [kDecodeWarps][kWarp * J]);
    SMEM_STATIC(float, all_max_scores, [kDecodeWarps]);
    SMEM_STATIC(float, all_sum_exps, [kDecodeWarps]);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, HS = s.HS, h = blockIdx.x, b = blockIdx.y;
    const int t = positions ? positions[b] : 0, first = max(t - s.window, starts ? starts[b] : 0);
    const int64_t ring = (int64_t(b) * s.NKV + h / (s.NH / s.NKV)) * s.capacity;
    if (int(threadIdx.x) < HS) q[threadIdx.x] = to_float(qkv[b * s.qkv_row() + h * HS + threadIdx.x]);
    __syncthreads();

    float* weights = all_weights[warp];
    float sums[J] = {}, max_score = -INFINITY, sum_exp = 0;
    const int row = lane / kRowLanes, key = lane % kRowLanes * P;  // where the lane begins in a transposed tile
    for (int s0 = (max(first, 0) / kTile + warp) * kTile; s0 <= t; s0 += kDecodeWarps * kTile) {
        const T* tile = keys + (ring + s0 % s.capacity) * HS;
        const T* v = values + (ring + s0 % s.capacity) * HS;
        float scores[P] = {};
        for (int i = row; i < HS; i += kRows) {
            const Pack<T> k = load16(tile + i * kTile + key);
            for (int p = 0; p < P; p++) scores[p] = fmaf(q[i], to_float(k[p]), scores[p]);
        }
        float tile_max = -INFINITY;
#pragma unroll
        for (int p = 0; p < P; p++) {
#pragma unroll
            for (int offset = kRowLanes; offset < kWarp; offset *= 2)
                scores[p] += __shfl_xor_sync(kAllLanes, scores[p], offset);
            const int at = s0 + key + p;
            if (at < first || at > t) scores[p] = -INFINITY;
            tile_max = fmaxf(tile_max, scores[p]);
        }
        const float new_max = fmaxf(max_score, warp_max(tile_max));  // of scores before scaling
        const float shift = new_max == -INFINITY ? 0 : __fmul_rn(new_max, scale_log2);
        const float rescale = exp2f(__fmul_rn(max_score, scale_log2) - shift);
        float sum = 0;
        for (int p = 0; p < P; p++) {
            const float weight = exp2f(fmaf(scores[p], scale_log2, -shift));
            sum += weight;
            if (row == 0) weights[key + p] = weight;
        }
        max_score = new_max;
        sum_exp = fmaf(sum_exp, rescale, warp_sum(row == 0 ? sum : 0));
        __syncwarp();
#pragma unroll
        for (int j = 0; j < J; j++) sums[j] *= rescale;
        const int begin = max(0, first - s0), end = min(kTile, t - s0 + 1);  // other slots may hold anything
        for (int k = begin; k < end; k++) {
            const float weight = weights[k];
#pragma unroll
            for (int j = 0; j < J; j++) {
                const int c = lane + kWarp * j;
                if (c < HS) sums[j] = fmaf(weight, to_float(v[k * HS + c]), sums[j]);
            }
        }
        __syncwarp();  // all lanes have read these weights
    }

#pragma unroll
    for (int j = 0; j < J; j++) all_sums[warp][lane + kWarp * j] = sums[j];
    if (lane == 0) all_max_scores[warp] = max_score, all_sum_exps[warp] = sum_exp;
    __syncthreads();
    const int c = threadIdx.x;
    if (c >= HS) return;
    float largest_of_all = -INFINITY, sum = 0, denominator_of_all = 0;
    for (int w = 0; w < kDecodeWarps; w++) largest_of_all = fmaxf(largest_of_all, all_max_scores[w]);
    for (int w = 0; w < kDecodeWarps; w++) {
        const float factor = exp2f((all_max_scores[w] - largest_of_all) * scale_log2);  // 0 for a warp without a tile
        sum = fmaf(factor, all_sums[w][c], sum);
        denominator_of_all = fmaf(factor, all_sum_exps[w], denominator_of_all);
    }
    out[(int64_t(b) * s.NH + h) * HS + c] = from_float<T>(sum / denominator_of_all);
}

template <class T>
void attention_remember(Cuda& cuda, T* keys, T* values, const T* qkv, const int32_t* positions, int64_t tokens,
                        const KeyValueShape& shape) {
    const OpScope op(cuda, __func__);
    const int64_t skip = std::max<int64_t>(0, tokens - shape.capacity());
    const int64_t n = shape.B * (tokens - skip) * shape.NKV * shape.HS;
    launch(cuda, "attention_remember", attention_remember_kernel<T>, unsigned(ceil_div(n, 256)), 256, 0, keys, values,
           qkv, positions, tokens, skip, n, DecodeShape(shape));
}

template <class T>
void attention_decode(Cuda& cuda, T* out, const T* qkv, const T* keys, const T* values, const int32_t* positions,
                      const int32_t* starts, const KeyValueShape& shape) {
    const OpScope op(cuda, __func__);
    ensure(shape.NH % shape.NKV == 0 && shape.HS % 4 == 0 && shape.HS <= kDecodeMaxHS && shape.window >= 0);
    const float scale_log2 = shape.score_scale() * kLog2E;
    with_columns_per_lane(shape.HS, [&](auto J) {
        launch(cuda, "attention_decode", attention_decode_kernel<T, J>, dim3(unsigned(shape.NH), unsigned(shape.B)),
               kDecodeThreads, 0, out, qkv, keys, values, positions, starts, scale_log2, DecodeShape(shape));
    });
}

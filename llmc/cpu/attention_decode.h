/*
Attention of one new token per row against a KV cache, on the CPU: llmc/ops/attention_decode.h.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include "llmc/base/check.h"     // ensure
#include "llmc/cpu/attention.h"  // kKeys, softmax_tile
#include "llmc/cpu/device.h"     // Cpu, parallel_for
#include "llmc/cpu/simd.h"
#include "llmc/ops/attention.h"         // kMaxHeadSize
#include "llmc/ops/attention_decode.h"  // kCacheTile, KeyValueShape

static_assert(kCacheTile == kKeys && kCacheTile % kLanes == 0);  // tiles determine the order of sums

template <class T>
void attention_remember(Cpu& cpu, T* keys, T* values, const T* qkv, const int32_t* positions, int64_t tokens,
                        const KeyValueShape& shape) {
    const OpScope op(cpu, __func__);
    const int64_t NH = shape.NH, NKV = shape.NKV, HS = shape.HS, capacity = shape.capacity();
    parallel_for(cpu, shape.B * NKV, [=](int64_t head) {
        const int64_t b = head / NKV, kv = head % NKV, first = positions ? positions[b] : 0;
        for (int64_t t = std::max<int64_t>(0, tokens - capacity); t < tokens; t++) {
            const int64_t slot = (first + t) % capacity;
            const T* k = qkv + (b * tokens + t) * shape.qkv_row() + (NH + kv) * HS;
            T* k_t = keys + (head * capacity + slot / kCacheTile * kCacheTile) * HS + slot % kCacheTile;
            for (int64_t i = 0; i < HS; i++) k_t[i * kCacheTile] = k[i];
            std::copy_n(k + NKV * HS, HS, values + (head * capacity + slot) * HS);
        }
    });
}

// A tile of values is asked for while scores are computed, the next tile of keys while values are summed: a tile is too
// short for hardware prefetchers.
template <class T>
void attention_decode(Cpu& cpu, T* out, const T* qkv, const T* keys, const T* values, const int32_t* positions,
                      const int32_t* starts, const KeyValueShape& shape) {
    const OpScope op(cpu, __func__);
    ensure(shape.NH % shape.NKV == 0 && shape.HS <= kMaxHeadSize && shape.window >= 0);
    const int64_t NH = shape.NH, NKV = shape.NKV, HS = shape.HS, capacity = shape.capacity();
    const float scale = shape.score_scale();
    parallel_for(cpu, shape.B * NH, [=](int64_t head) {
        const int64_t b = head / NH, h = head % NH, t = positions ? positions[b] : 0;
        const int64_t first = std::max<int64_t>({t - shape.window, starts ? starts[b] : 0, 0});
        const int64_t ring = (b * NKV + h / (NH / NKV)) * capacity;
        const T* q = qkv + b * shape.qkv_row() + h * HS;
        float p[kCacheTile], sum[kMaxHeadSize] = {};
        float row_max[kLanes] = {-std::numeric_limits<float>::infinity()}, row_sum[kLanes] = {}, rescale[kLanes];
        for (int64_t s0 = first / kCacheTile * kCacheTile; s0 <= t; s0 += kCacheTile) {
            const T* tile = keys + (ring + s0 % capacity) * HS;
            const T* v = values + (ring + s0 % capacity) * HS;
            const T* next_keys = s0 + kCacheTile <= t ? keys + (ring + (s0 + kCacheTile) % capacity) * HS : tile;
            const int64_t begin = std::max<int64_t>(0, first - s0), end = std::min(kCacheTile, t - s0 + 1);
            F32x16 scores[kCacheTile / kLanes] = {};
            for (int64_t i = 0; i < HS; i++) {
                if (i * kCacheTile < end * HS) prefetch_run(v + i * kCacheTile, kCacheTile);
                for (int64_t j = 0; j < kCacheTile / kLanes; j++)
                    scores[j] = fma(broadcast(to_float(q[i])), load(tile + i * kCacheTile + j * kLanes), scores[j]);
            }
            for (int64_t j = 0; j < kCacheTile / kLanes; j++) store(p + j * kLanes, scores[j]);
            const auto columns = [=](int64_t) { return columns_between(begin, end); };
            softmax_tile<float>(p, p, 1, scale, columns, row_max, row_sum, rescale);
            for_lanes_unrolled(HS, [&](int64_t i, auto width) {
                decltype(load(sum + i, width)) of_tile{};
                for (int64_t s = begin; s < end; s++) {
                    prefetch_run(next_keys + s * HS + i, width);
                    of_tile = fma(load(v + s * HS + i, width), p[s], of_tile);
                }
                store(sum + i, of_tile + load(sum + i, width) * rescale[0], width);
            });
        }
        for_lanes(HS,
                  [&](int64_t i, auto width) { store(out + head * HS + i, load(sum + i, width) / row_sum[0], width); });
    });
}

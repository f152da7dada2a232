/*
Causal self-attention without a T x T matrix (online softmax: Milakov and Gimelshein, 2018, arXiv:1805.02867; tiles: Dao
et al., 2022, arXiv:2205.14135), with a sliding window (Beltagy et al., 2020, arXiv:2004.05150) and with keys and values
shared by groups of heads (Ainslie et al., 2023, arXiv:2305.13245):

  out[t] = sum over t - window <= s <= t of softmax_s(scale q[t] . k[s]) v[s]    for each of B sequences and NH heads

  qkv (B, T, NH + 2 NKV, HS): queries, keys, values; query head h has key head h / (NH / NKV)    out (B, T, NH, HS)
  lse (B, NH, T): natural log of the softmax's denominator, scores scaled; all that backward needs to make it again
Backward overwrites dqkv, shaped as qkv. HS <= 256.

A thread takes a whole head, in backward all query heads of a key head, in order. Keys and values are packed once; then
tiles of kQueries x kKeys scores are made, used and forgotten, those that are masked whole never. The tile sizes are
part of the definition of the result, see gemm.h.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include "llmc/base/check.h"     // ensure
#include "llmc/base/op_types.h"  // AttentionShape
#include "llmc/cpu/device.h"     // Cpu, parallel_for
#include "llmc/cpu/gemm.h"       // pack_panels, multiply_panels
#include "llmc/cpu/simd.h"

inline constexpr int64_t kQueries = 32, kKeys = 64;

// One head inside qkv-shaped memory: element (t, i) of q, k or v.
struct AttentionHead {
    Strided q, k, v;

    AttentionHead(const float* qkv, const AttentionShape& s, int64_t b, int64_t h) {
        const float* first = qkv + b * s.T * s.row();
        const int64_t kv = h / (s.NH / s.NKV);
        q = {first + h * s.HS, s.row(), 1};
        k = {first + (s.NH + kv) * s.HS, s.row(), 1};
        v = {first + (s.NH + s.NKV + kv) * s.HS, s.row(), 1};
    }
    static Strided transposed(Strided m) { return {m.data, m.col, m.row}; }
};

// The columns [begin, end) of a tile whose first key is s0 that query t sees; none if begin >= end.
struct SeenKeys {
    int64_t begin, end;

    SeenKeys(const AttentionShape& s, int64_t t, int64_t s0, int64_t cols)
        : begin(std::max<int64_t>(0, s.first_key(t) - s0)), end(std::min(cols, t - s0 + 1)) {}
};

inline float* row_of(Strided m, int64_t t) { return const_cast<float*>(m.data) + t * m.row; }

inline void attention_forward(Cpu& cpu, float* out, float* lse, const float* qkv, const AttentionShape& shape) {
    ensure(shape.NH % shape.NKV == 0 && shape.HS <= kBlockK);
    const int64_t T = shape.T, NH = shape.NH, HS = shape.HS, C = NH * HS, v_block = packed_size(kKeys, HS);
    const float scale = shape.score_scale();
    parallel_for(cpu, shape.B * NH, [=, &cpu](int64_t head_index) {
        const int64_t b = head_index / NH, h = head_index % NH;
        const AttentionHead head(qkv, shape, b, h);
        float* k_t = cpu.own(packed_size(HS, T) + (T + kKeys - 1) / kKeys * v_block + kQueries * (kKeys + HS));
        float* v = k_t + packed_size(HS, T);
        float* p = v + (T + kKeys - 1) / kKeys * v_block;  // (kQueries, kKeys): scores, then weights
        float* sum = p + kQueries * kKeys;                 // (kQueries, HS): sum of weights times v, so far
        pack_panels(k_t, AttentionHead::transposed(head.k), HS, T);

        for (int64_t t0 = 0; t0 < T; t0 += kQueries) {
            const int64_t rows = std::min(kQueries, T - t0),
                          limit = t0 + rows;  // no row sees a key at `limit` or beyond
            float largest[kQueries], denominator[kQueries];
            std::fill_n(largest, rows, -std::numeric_limits<float>::infinity());
            std::fill_n(denominator, rows, 0.f);
            std::fill_n(sum, rows * HS, 0.f);
            for (int64_t s0 = shape.first_key(t0) / kKeys * kKeys; s0 < limit; s0 += kKeys) {
                const int64_t cols = std::min(kKeys, limit - s0), block_cols = std::min(kKeys, T - s0);
                float* v_panels = v + s0 / kKeys * v_block;
                // Packed in one go when first needed, by query s0, whole, since a panel's stride is its depth.
                if (t0 <= s0) pack_panels(v_panels, head.v.at(s0, 0), block_cols, HS);
                multiply_panels(p, kKeys, rows, cols, HS, head.q.at(t0, 0), k_t + s0 * HS, nullptr, Write::set);
                for (int64_t r = 0; r < rows; r++) {
                    float* p_row = p + r * kKeys;
                    const SeenKeys seen(shape, t0 + r, s0, cols);
                    if (seen.begin >= seen.end) {  // a tile that only other rows of the block see
                        std::fill_n(p_row, block_cols, 0.f);
                        continue;
                    }
                    float* p_seen = p_row + seen.begin;
                    constexpr float kLowest = -std::numeric_limits<float>::infinity();
                    F32x16 lanes_max = broadcast(kLowest), lanes_sum = zeros();
                    for_lanes(seen.end - seen.begin, [&](int64_t s, auto width) {
                        lanes_max = max(lanes_max, load(p_seen + s, width, kLowest));
                    });
                    const float old = largest[r], block_max = max_lanes(lanes_max) * scale;
                    const float now = old > block_max ? old : block_max;
                    for_lanes(seen.end - seen.begin, [&](int64_t s, auto width) {
                        const F32x16 weight =
                            exp(fma(load(p_seen + s, width, kLowest), broadcast(scale), broadcast(-now)));
                        lanes_sum += weight;
                        store(p_seen + s, weight, width);
                    });
                    std::fill(p_row, p_seen, 0.f);
                    std::fill(p_row + seen.end, p_row + block_cols, 0.f);
                    float shrink[kLanes];
                    store(shrink, exp(broadcast(old - now)));
                    largest[r] = now;
                    denominator[r] = std::fma(denominator[r], shrink[0], sum_lanes(lanes_sum));
                    for_lanes(HS, [&](int64_t i, auto width) {
                        store(sum + r * HS + i, load(sum + r * HS + i, width) * shrink[0], width);
                    });
                }
                multiply_panels(sum, HS, rows, HS, block_cols, {p, kKeys, 1}, v_panels, nullptr, Write::add);
            }
            for (int64_t r = 0; r < rows; r++) {
                float* out_row = out + (b * T + t0 + r) * C + h * HS;
                for_lanes(HS, [&](int64_t i, auto width) {
                    store(out_row + i, load(sum + r * HS + i, width) / denominator[r], width);
                });
                lse[head_index * T + t0 + r] = largest[r] + float(std::log(double(denominator[r])));
            }
        }
    });
}

// With P the softmax, dP = dout v^T and D[t] = dout[t] . out[t]  (Dao et al., section B.2):
//   dv = P^T dout,   dS = P (dP - D) scale,   dq = dS k,   dk = dS^T q,   dv and dk summed over the group's query heads
inline void attention_backward(Cpu& cpu, float* dqkv, const float* dout, const float* out, const float* lse,
                               const float* qkv, const AttentionShape& shape) {
    ensure(shape.NH % shape.NKV == 0 && shape.HS <= kBlockK);
    const int64_t T = shape.T, NH = shape.NH, NKV = shape.NKV, HS = shape.HS, C = NH * HS, group = NH / NKV;
    const int64_t key_blocks = (T + kKeys - 1) / kKeys, k_block = packed_size(kKeys, HS);
    const float scale = shape.score_scale();
    parallel_for(cpu, shape.B * NKV, [=, &cpu](int64_t kv_index) {
        const int64_t b = kv_index / NKV, first_head = kv_index % NKV * group;
        const AttentionHead first(qkv, shape, b, first_head), first_grad(dqkv, shape, b, first_head);
        const int64_t turned = packed_size(HS, T), queries = packed_size(kQueries, HS);
        float* k_t = cpu.own(2 * turned + key_blocks * k_block + 2 * queries + 2 * kQueries * kKeys + 2 * T * HS +
                             kQueries * HS);
        float* v_t = k_t + turned;
        float* k = v_t + turned;
        float* q = k + key_blocks * k_block;
        float* d_out = q + queries;
        float* p = d_out + queries;
        float* ds = p + kQueries * kKeys;
        float* dk = ds + kQueries * kKeys;
        float* dv = dk + T * HS;
        float* dq = dv + T * HS;
        pack_panels(k_t, AttentionHead::transposed(first.k), HS, T);
        pack_panels(v_t, AttentionHead::transposed(first.v), HS, T);
        for (int64_t s0 = 0; s0 < T; s0 += kKeys)
            pack_panels(k + s0 / kKeys * k_block, first.k.at(s0, 0), std::min(kKeys, T - s0), HS);
        std::fill_n(dk, 2 * T * HS, 0.f);

        for (int64_t h = first_head; h < first_head + group; h++) {
            const AttentionHead head(qkv, shape, b, h), grad(dqkv, shape, b, h);
            const Strided head_dout{dout + b * T * C + h * HS, C, 1}, head_out{out + b * T * C + h * HS, C, 1};
            for (int64_t t0 = 0; t0 < T; t0 += kQueries) {
                const int64_t rows = std::min(kQueries, T - t0), limit = t0 + rows;
                pack_panels(q, head.q.at(t0, 0), rows, HS);
                pack_panels(d_out, head_dout.at(t0, 0), rows, HS);
                std::fill_n(dq, rows * HS, 0.f);
                float D[kQueries];
                for (int64_t r = 0; r < rows; r++) {
                    F32x16 lanes = zeros();
                    for_lanes(HS, [&](int64_t i, auto width) {
                        lanes = fma(load(row_of(head_dout, t0 + r) + i, width),
                                    load(row_of(head_out, t0 + r) + i, width), lanes);
                    });
                    D[r] = sum_lanes(lanes);
                }
                for (int64_t s0 = shape.first_key(t0) / kKeys * kKeys; s0 < limit; s0 += kKeys) {
                    const int64_t cols = std::min(kKeys, limit - s0), block_cols = std::min(kKeys, T - s0);
                    multiply_panels(p, kKeys, rows, cols, HS, head.q.at(t0, 0), k_t + s0 * HS, nullptr, Write::set);
                    multiply_panels(ds, kKeys, rows, cols, HS, head_dout.at(t0, 0), v_t + s0 * HS, nullptr, Write::set);
                    for (int64_t r = 0; r < rows; r++) {
                        float* p_row = p + r * kKeys;
                        float* ds_row = ds + r * kKeys;
                        const SeenKeys seen(shape, t0 + r, s0, cols);
                        const int64_t begin = std::min(seen.begin, seen.end), end = seen.end;
                        const F32x16 minus_lse = broadcast(-lse[(b * NH + h) * T + t0 + r]);
                        for_lanes(end - begin, [&](int64_t i, auto width) {
                            float *p_i = p_row + begin + i, *ds_i = ds_row + begin + i;
                            const F32x16 weight = exp(fma(load(p_i, width), broadcast(scale), minus_lse));
                            store(p_i, weight, width);
                            store(ds_i, weight * (load(ds_i, width) - D[r]) * scale, width);
                        });
                        for (float* row : {p_row, ds_row}) {
                            std::fill_n(row, begin, 0.f);
                            std::fill(row + end, row + block_cols, 0.f);
                        }
                    }
                    multiply_panels(dv + s0 * HS, HS, cols, HS, rows, {p, 1, kKeys}, d_out, nullptr, Write::add);
                    multiply_panels(dk + s0 * HS, HS, cols, HS, rows, {ds, 1, kKeys}, q, nullptr, Write::add);
                    multiply_panels(dq, HS, rows, HS, block_cols, {ds, kKeys, 1}, k + s0 / kKeys * k_block, nullptr,
                                    Write::add);
                }
                for (int64_t r = 0; r < rows; r++) std::copy_n(dq + r * HS, HS, row_of(grad.q, t0 + r));
            }
        }
        for (int64_t t = 0; t < T; t++) {
            std::copy_n(dk + t * HS, HS, row_of(first_grad.k, t));
            std::copy_n(dv + t * HS, HS, row_of(first_grad.v, t));
        }
    });
}

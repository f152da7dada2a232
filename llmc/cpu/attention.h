/*
Attention on the CPU: llmc/ops/attention.h.

A thread takes a whole head, in backward all query heads of a key head, in order. Keys and values are packed once; then
tiles of kQueries x kKeys scores are made, used and forgotten, those that are masked whole never: since first[t] never
falls along a row, those before the first key of the tile's first query. Of the tiles that remain, strips of rows leave
out what none of them sees. The tile sizes, and the lane of a key in its row's sums, which is its column modulo sixteen,
are part of the definition of the result, see gemm.h.
*/
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include "llmc/base/bf16.h"   // bf16
#include "llmc/base/check.h"  // ensure, require
#include "llmc/cpu/device.h"  // Cpu, parallel_tasks
#include "llmc/cpu/gemm.h"    // multiply_panels
#include "llmc/cpu/simd.h"
#include "llmc/ops/attention.h"  // kMaxHeadSize, AttentionShape
#include "llmc/ops/matmul.h"     // Write
#include "llmc/ops/op_cost.h"    // attention_backward_cost, attention_forward_cost

inline constexpr int64_t kQueries = 32, kKeys = 64;

template <class E>
void check_attention(const AttentionShape& s) {
    ensure(s.NH % s.NKV == 0 && s.HS <= kMaxHeadSize);
    require(s.HS % kPair<E> == 0, "attention: heads of %ld channels: an even number in bf16; or --dtype fp32", s.HS);
}

// One head inside qkv-shaped memory: element (t, i) of q, k or v.
template <class T>
struct AttentionHead {
    Strided<T> q, k, v;

    AttentionHead(const T* qkv, const AttentionShape& s, int64_t b, int64_t h) {
        const T* first = qkv + b * s.T * s.row();
        const int64_t kv = h / (s.NH / s.NKV);
        q = {first + h * s.HS, s.row(), 1};
        k = {first + (s.NH + kv) * s.HS, s.row(), 1};
        v = {first + (s.NH + s.NKV + kv) * s.HS, s.row(), 1};
    }
};

// Columns of a tile of keys, one bit each.
static_assert(kKeys == 64);
inline uint64_t columns_between(int64_t begin, int64_t end) {
    return begin < end ? ~uint64_t(0) >> (kKeys - end) & ~uint64_t(0) << begin : 0;
}
// The number of lanes up to the last one, in whole registers.
inline int64_t lanes_of(uint64_t columns) { return (64 - std::countl_zero(columns) + kLanes - 1) / kLanes * kLanes; }

// What a tile of queries sees: [first[r], t0 + r] is seen by query t0 + r.
struct SeenKeys {
    int64_t t0, rows, first[kQueries] = {};
    SeenKeys(const AttentionShape& s, int64_t b, int64_t t0) : t0(t0), rows(std::min(kQueries, s.T - t0)) {
        for (int64_t r = 0; r < rows; r++) first[r] = s.first_key(b, t0 + r);
    }
    int64_t limit() const { return t0 + rows; }  // no row sees a key here or beyond
    int64_t first_tile() const { return first[0] / kKeys * kKeys; }
    // The columns of a tile of keys that row r may see are those before end(r), and of them those whose bits are set.
    int64_t end(int64_t r, int64_t s0) const { return std::clamp<int64_t>(t0 + r - s0 + 1, 0, kKeys); }
    uint64_t columns(int64_t r, int64_t s0) const {
        return r < rows ? columns_between(std::max<int64_t>(0, first[r] - s0), end(r, s0)) : 0;
    }
};

template <class T>
T* row_of(Strided<T> m, int64_t t) {
    return const_cast<T*>(m.data) + t * m.row;
}

template <class T>
void convert_row(T* to, const float* from, int64_t n) {
    for_lanes(n, [=](int64_t i, auto width) { store(to + i, load(from + i, width), width); });
}

// Some of K: [begin, end)
struct Depth {
    int64_t begin, end;
};

// Rows that are multiplied at a time.
template <class E>
int64_t rows_of_strip() {
    return tile_product_of<E>() ? kStripRows : kTileRows;
}

// c (M, N) += a (M, K) times packed panels, where a strip of rows [i, i + n) multiplies [begin, end) = range(i, n) of K
// alone: the rest of `a` is zero there. Of bf16, begin is even.
template <class E, class Range>
void multiply_strips(float* c, int64_t M, int64_t N, int64_t K, Strided<E> a, const float* panels, Range&& range) {
    const int64_t panel = packed_size<E>(K, 1), strip = rows_of_strip<E>();
    for (int64_t i = 0; i < M; i += strip) {
        const int64_t n = std::min(strip, M - i);
        const auto [begin, end] = range(i, n);
        if (begin >= end) continue;
        const float* rows = panels + begin / kPair<E> * kTileCols;
        for (int64_t j = 0; j < N; j += kTileCols, rows += panel)
            multiply_panels(c + i * N + j, N, n, std::min<int64_t>(kTileCols, N - j), end - begin, a.at(i, begin), rows,
                            Write::add);
    }
}

// scores (rows, kKeys) = a (rows, HS) times turned keys or values s0, s0 + 1, ..., as far as each strip of rows sees
// them and on to the end of the panel: whole tiles are written without copies
template <class E>
void score_tile(float* scores, const SeenKeys& seen, int64_t s0, int64_t HS, Strided<E> a, const float* turned) {
    const int64_t strip = rows_of_strip<E>();
    for (int64_t i = 0; i < seen.rows; i += strip) {
        const int64_t n = std::min(strip, seen.rows - i), panels = num_panels(seen.end(i + n - 1, s0));
        if (panels > 0)
            multiply_panels(scores + i * kKeys, kKeys, n, panels * kTileCols, HS, a.at(i, 0), turned, Write::set);
    }
}

// Rows of scores (rows, kKeys) become weights, exp(scale score - the row's largest so far), zero where columns(r) does
// not see them; with their sums the largest ones and the denominators are brought up to date. The weights of earlier
// tiles shrink by the factors `shrink`. These three arrays are read and written in whole lanes.
template <class E, class ColumnsOf>
void softmax_tile(E* weights, const float* scores, int64_t rows, float scale, ColumnsOf&& columns, float* largest,
                  float* denominator, float* shrink) {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    for (int64_t r0 = 0; r0 < rows; r0 += kLanes) {
        const int64_t n = std::min<int64_t>(kLanes, rows - r0);
        F32x16 of_row[kLanes];
        for (int64_t i = 0; i < kLanes; i++) {
            of_row[i] = broadcast(kLowest);
            if (i >= n) continue;
            const uint64_t seen = columns(r0 + i);
            for (int64_t s = 0; s < lanes_of(seen); s += kLanes)
                of_row[i] = max(of_row[i], select_lanes(load(scores + (r0 + i) * kKeys + s), seen >> s, kLowest));
        }
        const F32x16 old = load(largest + r0), now = max(old, max_rows(of_row) * scale);
        store(largest + r0, now);
        for (int64_t i = 0; i < n; i++) {
            of_row[i] = zeros();
            const uint64_t seen = columns(r0 + i);
            const F32x16 minus_now = broadcast(-largest[r0 + i]);
            E* row = weights + (r0 + i) * kKeys;
            int64_t s = 0;
            for (; s < lanes_of(seen); s += kLanes) {
                F32x16 weight = exp(fma(load(scores + (r0 + i) * kKeys + s), scale, minus_now));
                weight = select_lanes(weight, seen >> s, 0);
                of_row[i] += weight;
                store(row + s, weight);
            }
            for (; s < kKeys; s += kLanes) store(row + s, zeros());
        }
        // A row that has seen nothing yet has nothing to shrink.
        F32x16 factor = exp(old - now);
        for (int i = 0; i < kRegisters; i++)
            factor.part[i] = now.part[i] == kLowest ? FloatRegister{} + 1 : factor.part[i];
        store(shrink + r0, factor);
        store(denominator + r0, fma(load(denominator + r0), factor, sum_rows(of_row)));
    }
}

template <class E>
void attention_forward(Cpu& cpu, E* out, float* lse, const E* qkv, const AttentionShape& shape) {
    const OpScope op(cpu, __func__, attention_forward_cost<E>(shape, Cpu::kExpFlops, seen_scores(shape)));
    check_attention<E>(shape);
    const int64_t T = shape.T, NH = shape.NH, HS = shape.HS, C = NH * HS, v_block = packed_size<E>(kKeys, HS);
    const float scale = shape.score_scale();
    parallel_tasks(cpu, shape.B * NH, [=, &cpu](int64_t head_index) {
        const int64_t b = head_index / NH, h = head_index % NH;
        const AttentionHead<E> head(qkv, shape, b, h);
        const int64_t turned = packed_size<E>(HS, T), v_size = (T + kKeys - 1) / kKeys * v_block;
        float* k_t = cpu.own(turned + v_size + kQueries * (2 * kKeys + HS));
        float* v = k_t + turned;
        float* scores = v + v_size;              // (kQueries, kKeys)
        float* sum = scores + kQueries * kKeys;  // (kQueries, HS): of weights times v, so far
        E* weights = reinterpret_cast<E*>(sum + kQueries * HS);
        pack_panels(k_t, head.k.transposed(), HS, T);

        for (int64_t t0 = 0; t0 < T; t0 += kQueries) {
            const SeenKeys seen(shape, b, t0);
            float largest[kQueries], denominator[kQueries], shrink[kQueries];
            std::fill_n(largest, kQueries, -std::numeric_limits<float>::infinity());
            std::fill_n(denominator, kQueries, 0.f);
            std::fill_n(sum, seen.rows * HS, 0.f);
            for (int64_t s0 = seen.first_tile(); s0 < seen.limit(); s0 += kKeys) {
                const int64_t keys = std::min(kKeys, T - s0);
                float* v_panels = v + s0 / kKeys * v_block;
                // Packed in one go when first needed, by query s0, whole, since a panel's stride is its depth.
                if (t0 <= s0) pack_panels(v_panels, head.v.at(s0, 0), keys, HS);
                score_tile(scores, seen, s0, HS, head.q.at(t0, 0), k_t + s0 * (HS / kPair<E>));
                const auto columns = [&](int64_t r) { return seen.columns(r, s0); };
                softmax_tile(weights, scores, seen.rows, scale, columns, largest, denominator, shrink);
                if (s0 > seen.first_tile())
                    for (int64_t r = 0; r < seen.rows; r++)
                        for_lanes(HS, [&](int64_t i, auto width) {
                            store(sum + r * HS + i, load(sum + r * HS + i, width) * shrink[r], width);
                        });
                multiply_strips(sum, seen.rows, HS, keys, Strided<E>{weights, kKeys, 1}, v_panels,
                                [&](int64_t r, int64_t n) { return Depth{0, seen.end(r + n - 1, s0)}; });
            }
            for (int64_t r = 0; r < seen.rows; r++) {
                E* out_row = out + (b * T + t0 + r) * C + h * HS;
                for_lanes(HS, [&](int64_t i, auto width) {
                    store(out_row + i, load(sum + r * HS + i, width) / denominator[r], width);
                });
                lse[head_index * T + t0 + r] = largest[r] + float(std::log(double(denominator[r])));
            }
        }
    });
}

// Two rows of a tile (kQueries, kKeys) whose transpose is a factor: in bf16 pair by pair.
ANVIL_INLINE void store_two_rows(float* to, F32x16 first, F32x16 second) {
    store(to, first);
    store(to + kKeys, second);
}
ANVIL_INLINE void store_two_rows(bf16* to, F32x16 first, F32x16 second) { store_pairs(to, first, second); }
template <class E>
Strided<E> turned_tile(const E* tile) {
    return {tile, kPair<E>, kKeys};
}

// With P the softmax, dP = dout v^T and D[t] = dout[t] . out[t]  (Dao et al., section B.2):
//   dv = P^T dout,   dS = P (dP - D) scale,   dq = dS k,   dk = dS^T q,   dv and dk summed over the group's query heads
template <class E>
void attention_backward(Cpu& cpu, E* dqkv, const E* dout, const E* out, const float* lse, const E* qkv,
                        const AttentionShape& shape) {
    const OpScope op(cpu, __func__, attention_backward_cost<E>(shape, Cpu::kExpFlops, seen_scores(shape)));
    check_attention<E>(shape);
    const int64_t T = shape.T, NH = shape.NH, NKV = shape.NKV, HS = shape.HS, C = NH * HS, group = NH / NKV;
    const int64_t key_blocks = (T + kKeys - 1) / kKeys, k_block = packed_size<E>(kKeys, HS);
    const float scale = shape.score_scale();
    parallel_tasks(cpu, shape.B * NKV, [=, &cpu](int64_t kv_index) {
        constexpr int64_t kTile = kQueries * kKeys;
        const int64_t b = kv_index / NKV, first_head = kv_index % NKV * group;
        const AttentionHead<E> first(qkv, shape, b, first_head), first_grad(dqkv, shape, b, first_head);
        const int64_t turned = packed_size<E>(HS, T), queries = packed_size<E>(kQueries, HS);
        float* k_t = cpu.own(2 * turned + key_blocks * k_block + 2 * queries + 5 * kTile + 2 * T * HS + kQueries * HS);
        float* v_t = k_t + turned;
        float* k = v_t + turned;
        float* q = k + key_blocks * k_block;
        float* d_out = q + queries;
        float* scores = d_out + queries;
        float* dp = scores + kTile;
        float* dk = dp + kTile;
        float* dv = dk + T * HS;
        float* dq = dv + T * HS;
        E* p_turned = reinterpret_cast<E*>(dq + kQueries * HS);
        E* ds_turned = p_turned + kTile;
        E* ds = sizeof(E) == sizeof(float) ? ds_turned : ds_turned + kTile;
        pack_panels(k_t, first.k.transposed(), HS, T);
        pack_panels(v_t, first.v.transposed(), HS, T);
        for (int64_t s0 = 0; s0 < T; s0 += kKeys)
            pack_panels(k + s0 / kKeys * k_block, first.k.at(s0, 0), std::min(kKeys, T - s0), HS);
        std::fill_n(dk, 2 * T * HS, 0.f);

        for (int64_t h = first_head; h < first_head + group; h++) {
            const AttentionHead<E> head(qkv, shape, b, h), grad(dqkv, shape, b, h);
            const Strided<E> head_dout{dout + b * T * C + h * HS, C, 1}, head_out{out + b * T * C + h * HS, C, 1};
            const float* head_lse = lse + (b * NH + h) * T;
            for (int64_t t0 = 0; t0 < T; t0 += kQueries) {
                const SeenKeys seen(shape, b, t0);
                pack_panels(q, head.q.at(t0, 0), seen.rows, HS);
                pack_panels(d_out, head_dout.at(t0, 0), seen.rows, HS);
                std::fill_n(dq, seen.rows * HS, 0.f);
                float D[kQueries] = {}, minus_lse[kQueries] = {};
                for (int64_t r0 = 0; r0 < seen.rows; r0 += kLanes) {
                    F32x16 of_row[kLanes] = {};
                    for (int64_t r = r0; r < std::min(seen.rows, r0 + kLanes); r++) {
                        for_lanes(HS, [&](int64_t i, auto width) {
                            of_row[r - r0] = fma(load(row_of(head_dout, t0 + r) + i, width),
                                                 load(row_of(head_out, t0 + r) + i, width), of_row[r - r0]);
                        });
                        minus_lse[r] = -head_lse[t0 + r];
                    }
                    store(D + r0, sum_rows(of_row));
                }
                for (int64_t s0 = seen.first_tile(); s0 < seen.limit(); s0 += kKeys) {
                    const int64_t keys = std::min(kKeys, T - s0);
                    score_tile(scores, seen, s0, HS, head.q.at(t0, 0), k_t + s0 * (HS / kPair<E>));
                    score_tile(dp, seen, s0, HS, head_dout.at(t0, 0), v_t + s0 * (HS / kPair<E>));
                    for (int64_t r0 = 0; r0 < seen.rows; r0 += 2) {
                        const uint64_t columns[2] = {seen.columns(r0, s0), seen.columns(r0 + 1, s0)};
                        const int64_t lanes = lanes_of(columns[0] | columns[1]);
                        int64_t s = 0;
                        for (; s < lanes; s += kLanes) {
                            F32x16 weights[2], d_scores[2];
                            for (int64_t i = 0; i < 2; i++) {
                                const int64_t r = r0 + i, at = r * kKeys + s;
                                const auto seen_only = [&](F32x16 x) { return select_lanes(x, columns[i] >> s, 0); };
                                weights[i] = seen_only(exp(fma(load(scores + at), scale, minus_lse[r])));
                                d_scores[i] = seen_only(weights[i] * (load(dp + at) - D[r]) * scale);
                                if (ds != ds_turned) store(ds + at, d_scores[i]);
                            }
                            store_two_rows(p_turned + r0 * kKeys + s * kPair<E>, weights[0], weights[1]);
                            store_two_rows(ds_turned + r0 * kKeys + s * kPair<E>, d_scores[0], d_scores[1]);
                        }
                        for (; s < kKeys; s += kLanes) {
                            store_two_rows(p_turned + r0 * kKeys + s * kPair<E>, zeros(), zeros());
                            store_two_rows(ds_turned + r0 * kKeys + s * kPair<E>, zeros(), zeros());
                            if (ds != ds_turned)
                                for (int64_t r = r0; r < r0 + 2; r++) store(ds + r * kKeys + s, zeros());
                        }
                    }
                    // Of the queries those from key s0 + i on see it.
                    const auto queries_of = [&](int64_t i, int64_t) {
                        return Depth{std::max<int64_t>(0, s0 + i - t0) / 2 * 2, seen.rows};
                    };
                    const auto keys_of = [&](int64_t r, int64_t n) { return Depth{0, seen.end(r + n - 1, s0)}; };
                    const int64_t cols = std::min(kKeys, seen.limit() - s0);
                    multiply_strips(dv + s0 * HS, cols, HS, seen.rows, turned_tile(p_turned), d_out, queries_of);
                    multiply_strips(dk + s0 * HS, cols, HS, seen.rows, turned_tile(ds_turned), q, queries_of);
                    multiply_strips(dq, seen.rows, HS, keys, Strided<E>{ds, kKeys, 1}, k + s0 / kKeys * k_block,
                                    keys_of);
                }
                for (int64_t r = 0; r < seen.rows; r++) convert_row(row_of(grad.q, t0 + r), dq + r * HS, HS);
            }
        }
        for (int64_t t = 0; t < T; t++) {
            convert_row(row_of(first_grad.k, t), dk + t * HS, HS);
            convert_row(row_of(first_grad.v, t), dv + t * HS, HS);
        }
    });
}

/*
Attention on the CPU: llmc/ops/attention.h.

A task is a whole head, in backward a key head with all its query heads in order. Keys and values are packed once per
task. Scores are computed in tiles of kQueries x kKeys, used and discarded. A tile of queries skips tiles of keys that
the mask hides entirely: those before its first query's first key (first[t] never decreases along a row) and those after
its last query. In the other tiles, each group of rows in the micro-kernel skips what lies beyond the causal diagonal.
Tensors are of type E, operands of products of type P: bf16 may be multiplied as floats (bf16_pairs.h).

The tile sizes are part of the definition of the result (doc/numerics.md). So is the lane in which a key is summed: its
column modulo sixteen.
*/
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include "llmc/base/bf16.h"              // bf16
#include "llmc/base/check.h"             // ensure, require
#include "llmc/cpu/device.h"             // Cpu, parallel_tasks
#include "llmc/cpu/gemm_micro_kernel.h"  // multiply_panels
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

// Views of q, k and v of head `index` of B * NH, in a tensor shaped like qkv: element (t, i) of each.
template <class T>
struct AttentionHead {
    Strided<T> q, k, v;

    AttentionHead(const T* qkv, const AttentionShape& s, int64_t index) {
        const int64_t b = index / s.NH, h = index % s.NH, kv = h / (s.NH / s.NKV);
        const T* first = qkv + b * s.T * s.row();
        q = {first + h * s.HS, s.row(), 1};
        k = {first + (s.NH + kv) * s.HS, s.row(), 1};
        v = {first + (s.NH + s.NKV + kv) * s.HS, s.row(), 1};
    }
};

// The same for a tensor shaped like out
template <class T>
Strided<T> rows_of_head(const T* out, const AttentionShape& s, int64_t index) {
    const int64_t C = s.NH * s.HS;
    return {out + index / s.NH * s.T * C + index % s.NH * s.HS, C, 1};
}

// A set of columns of a tile of keys, one bit per column: here those in [begin, end).
static_assert(kKeys == 64);
inline uint64_t columns_between(int64_t begin, int64_t end) {
    return begin < end ? ~uint64_t(0) >> (kKeys - end) & ~uint64_t(0) << begin : 0;
}
// The number of lanes up to the last column of the set, rounded up to whole vectors.
inline int64_t lanes_of(uint64_t columns) { return (64 - std::countl_zero(columns) + kLanes - 1) / kLanes * kLanes; }

// The mask of a tile of queries: query t0 + r sees the keys [first[r], t0 + r].
struct TileMask {
    int64_t t0, rows, first[kQueries] = {};
    TileMask(const AttentionShape& s, int64_t b, int64_t t0) : t0(t0), rows(std::min(kQueries, s.T - t0)) {
        for (int64_t r = 0; r < rows; r++) first[r] = s.first_key(b, t0 + r);
    }
    int64_t limit() const { return t0 + rows; }  // no row sees this key or later ones
    int64_t first_tile() const { return first[0] / kKeys * kKeys; }
    // The columns that row r sees in the tile of keys that begins at s0. All are before end(r, s0).
    int64_t end(int64_t r, int64_t s0) const { return std::clamp<int64_t>(t0 + r - s0 + 1, 0, kKeys); }
    uint64_t columns(int64_t r, int64_t s0) const {
        return r < rows ? columns_between(std::max<int64_t>(0, first[r] - s0), end(r, s0)) : 0;
    }
};

template <class T>
T* row_of(Strided<T> m, int64_t t) {
    return const_cast<T*>(m.data) + t * m.row;
}

// Rows of heads that are needed soon, some KB apart, which hardware prefetchers do not expect. Each tile of a product
// in registers asks for one cache line of each row.
class RowsAhead {
    struct Rows {
        const char* data;
        int64_t step;
    };
    static constexpr int64_t kMostBlocks = 8, kLine = 64, kLinesAtOnce = 4;
    const bool asks_;
    Rows blocks_[kMostBlocks];
    int64_t num_blocks_ = 0, rows_ = 0, row_bytes_ = 0, byte_ = 0;

public:
    explicit RowsAhead(TileKernel tiles) : asks_(!tiles) {}
    // Forgets the blocks that nobody asked for. Those added from now on are (rows, row_bytes).
    void start(int64_t rows, int64_t row_bytes) { num_blocks_ = byte_ = 0, rows_ = rows, row_bytes_ = row_bytes; }
    // The last block is asked for first.
    template <class T>
    void add(const Strided<T>& m) {
        if (asks_) blocks_[num_blocks_++] = {reinterpret_cast<const char*>(m.data), m.row * int64_t(sizeof(T))};
    }
    Ahead next() {
        if (num_blocks_ == 0) return {};
        const auto [data, step] = blocks_[num_blocks_ - 1];
        const char* begin = data + byte_;
        byte_ += kLine;
        if (byte_ >= row_bytes_) byte_ = 0, num_blocks_--;
        return {begin, begin + rows_ * step, kLinesAtOnce, step};
    }
};

template <class T>
void convert_row(T* to, const float* from, int64_t n) {
    for_lanes(n, [=](int64_t i, auto width) { store(to + i, load(from + i, width), width); });
}

// A range of K: [begin, end)
struct KRange {
    int64_t begin, end;
};

// MR: the number of rows that the micro-kernel multiplies at a time.
template <class P>
int64_t micro_kernel_rows() {
    return tile_kernel_of<P>() ? kTileMR : kMR;
}

// Stores an operand whose neighbors in k are neighbors in memory.
template <class E, class P, int n>
ANVIL_INLINE void store_operand(P* to, F32<n> x) {
    if constexpr (kWidens<P, E>)
        for (int i = 0; i < n * kRegisters; i++) x.part[i] = swap_neighbors(to_f32(to_bf16(x.part[i])));
    store(to, x);
}

// Rows of a matrix of E as the operand A: in place, or copied to `scratch`.
template <class E, class P>
Strided<P> rows_as_operand(Strided<E> from, int64_t rows, int64_t K, float* scratch) {
    if constexpr (!kWidens<P, E>)
        if (!rows_collide(from)) return from;
    copy_rows<P>(scratch, K, from, rows, K);
    return {reinterpret_cast<const P*>(scratch), K * kPair<P>, 1};
}

// c (M, N) += a (M, K) times packed micro-panels of B. range(i, n) is the part of K outside of which rows [i, i + n) of
// `a` are zero; only that part is multiplied. For bf16 it must begin at an even k.
template <class E, class P, class Range>
void multiply_in_ranges(float* c, int64_t M, int64_t N, int64_t K, const Strided<P>& a, const float* panels,
                        Range&& range, RowsAhead& ahead) {
    const int64_t panel = packed_size<P, E>(K, 1), MR = micro_kernel_rows<P>();
    for (int64_t i = 0; i < M; i += MR) {
        const int64_t n = std::min(MR, M - i);
        const auto [begin, end] = range(i, n);
        if (begin >= end) continue;
        const float* b_panel = panels + begin / kPair<P> * kNR;
        const int64_t terms = kWidens<P, E> ? packed_steps<P, E>(end - begin) : end - begin;
        for (int64_t j = 0; j < N; j += kNR, b_panel += panel)
            multiply_panels(c + i * N + j, N, n, std::min<int64_t>(kNR, N - j), terms, a.at(i, begin), b_panel,
                            Write::add, ahead.next());
    }
}

// scores (rows, kKeys) = a (rows, HS) times packed_t: the keys or values from s0 on, transposed and packed. Each group
// of rows gets the columns that it sees, rounded up to whole micro-panels, since whole tiles need no copies.
template <class P>
void score_tile(float* scores, const TileMask& mask, int64_t s0, int64_t HS, const Strided<P>& a, const float* packed_t,
                RowsAhead& ahead) {
    const int64_t MR = micro_kernel_rows<P>();
    for (int64_t i = 0; i < mask.rows; i += MR) {
        const int64_t n = std::min(MR, mask.rows - i), cols = num_panels(mask.end(i + n - 1, s0)) * kNR;
        const int64_t at_once = tile_kernel_of<P>() ? cols : kNR;
        for (int64_t j = 0; j < cols; j += at_once)
            multiply_panels(scores + i * kKeys + j, kKeys, n, at_once, HS, a.at(i, 0), packed_t + j * (HS / kPair<P>),
                            Write::set, ahead.next());
    }
}

// Online softmax of one tile: weights (rows, kKeys) = exp(scale scores - row_max), zero outside of columns(r). Updates
// row_max and row_sum, the running maximum and sum, and sets `rescale`, the factor for all that was summed with the
// weights of earlier tiles. These three arrays are accessed in whole vectors.
template <class E, class P, class ColumnsOf>
void softmax_tile(P* weights, const float* scores, int64_t rows, float scale, ColumnsOf&& columns, float* row_max,
                  float* row_sum, float* rescale) {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    for (int64_t r0 = 0; r0 < rows; r0 += kLanes) {
        const int64_t n = std::min<int64_t>(kLanes, rows - r0);
        F32x16 by_row[kLanes];
        for (int64_t i = 0; i < kLanes; i++) {
            by_row[i] = broadcast(kLowest);
            if (i >= n) continue;
            const uint64_t seen = columns(r0 + i);
            for (int64_t s = 0; s < lanes_of(seen); s += kLanes)
                by_row[i] = max(by_row[i], select_lanes(load(scores + (r0 + i) * kKeys + s), seen >> s, kLowest));
        }
        const F32x16 old_max = load(row_max + r0), new_max = max(old_max, max_rows(by_row) * scale);
        store(row_max + r0, new_max);
        for (int64_t i = 0; i < n; i++) {
            by_row[i] = zeros();
            const uint64_t seen = columns(r0 + i);
            const F32x16 minus_max = broadcast(-row_max[r0 + i]);
            P* row = weights + (r0 + i) * kKeys;
            int64_t s = 0;
            for (; s < lanes_of(seen); s += kLanes) {
                F32x16 weight = exp(fma(load(scores + (r0 + i) * kKeys + s), scale, minus_max));
                weight = select_lanes(weight, seen >> s, 0);
                by_row[i] += weight;
                store_operand<E>(row + s, weight);
            }
            for (; s < kKeys; s += kLanes) store(row + s, zeros());
        }
        // The factor is 1 for a row that has seen no key yet: -inf - -inf is NaN.
        F32x16 factor = exp(old_max - new_max);
        for (int i = 0; i < kRegisters; i++)
            factor.part[i] = new_max.part[i] == kLowest ? FloatRegister{} + 1 : factor.part[i];
        store(rescale + r0, factor);
        store(row_sum + r0, fma(load(row_sum + r0), factor, sum_rows(by_row)));
    }
}

// A thread's working memory. Packed operands have the layout that pack_b() gives to the shape in the comment.
template <class E, class P>
struct AttentionForwardScratch {
    float* k_t;     // packed (HS, T)
    float* v;       // packed (kKeys, HS) for each tile of keys
    float* scores;  // (kQueries, kKeys)
    float* sum;     // (kQueries, HS): weights times v so far
    float* q;       // (kQueries, HS), if it is copied
    P* weights;     // (kQueries, kKeys)

    AttentionForwardScratch(Cpu& cpu, int64_t T, int64_t HS) {
        const int64_t k_t_size = packed_size<P, E>(HS, T);
        const int64_t v_size = (T + kKeys - 1) / kKeys * packed_size<P, E>(kKeys, HS);
        k_t = cpu.thread_scratch(k_t_size + v_size + 2 * kQueries * (kKeys + HS));
        v = k_t + k_t_size;
        scores = v + v_size;
        sum = scores + kQueries * kKeys;
        q = sum + kQueries * HS;
        weights = reinterpret_cast<P*>(q + kQueries * HS);
    }
};

template <class P, class E>
void attention_forward_as(Cpu& cpu, E* out, float* lse, const E* qkv, const AttentionShape& shape) {
    const int64_t T = shape.T, NH = shape.NH, HS = shape.HS, v_block = packed_size<P, E>(kKeys, HS);
    const float scale = shape.score_scale();
    parallel_tasks(cpu, shape.B * NH, [=, &cpu](int64_t head_index) {
        const int64_t b = head_index / NH, next_index = std::min(head_index + 1, shape.B * NH - 1);
        const AttentionHead<E> head(qkv, shape, head_index), next_head(qkv, shape, next_index);
        const Strided<E> head_out = rows_of_head(out, shape, head_index);
        const AttentionForwardScratch<E, P> m(cpu, T, HS);
        RowsAhead ahead(tile_kernel_of<P>());
        pack_b<P>(m.k_t, head.k.transposed(), HS, T);

        for (int64_t t0 = 0; t0 < T; t0 += kQueries) {
            const TileMask mask(shape, b, t0);
            const bool last = t0 + kQueries >= T;
            ahead.start(mask.rows, HS * int64_t(sizeof(E)));
            ahead.add(next_head.v.at(t0, 0));
            ahead.add(next_head.k.at(t0, 0));
            ahead.add(head_out.at(t0, 0));
            ahead.add(last ? next_head.q : head.q.at(t0 + kQueries, 0));
            const Strided<P> q = rows_as_operand<E, P>(head.q.at(t0, 0), mask.rows, HS, m.q);
            float row_max[kQueries], row_sum[kQueries], rescale[kQueries];
            std::fill_n(row_max, kQueries, -std::numeric_limits<float>::infinity());
            std::fill_n(row_sum, kQueries, 0.f);
            std::fill_n(m.sum, mask.rows * HS, 0.f);
            for (int64_t s0 = mask.first_tile(); s0 < mask.limit(); s0 += kKeys) {
                const int64_t keys = std::min(kKeys, T - s0);
                float* v_panels = m.v + s0 / kKeys * v_block;
                // Packed whole when query s0 first needs it: the distance between micro-panels depends on K.
                if (t0 <= s0) pack_b<P>(v_panels, head.v.at(s0, 0), keys, HS);
                score_tile(m.scores, mask, s0, HS, q, m.k_t + s0 * (HS / kPair<P>), ahead);
                const auto columns = [&](int64_t r) { return mask.columns(r, s0); };
                softmax_tile<E>(m.weights, m.scores, mask.rows, scale, columns, row_max, row_sum, rescale);
                if (s0 > mask.first_tile())
                    for (int64_t r = 0; r < mask.rows; r++)
                        for_lanes(HS, [&](int64_t i, auto width) {
                            store(m.sum + r * HS + i, load(m.sum + r * HS + i, width) * rescale[r], width);
                        });
                multiply_in_ranges<E>(
                    m.sum, mask.rows, HS, keys, Strided<P>{m.weights, kKeys, 1}, v_panels,
                    [&](int64_t r, int64_t n) { return KRange{0, mask.end(r + n - 1, s0)}; }, ahead);
            }
            for (int64_t r = 0; r < mask.rows; r++) {
                E* out_row = row_of(head_out, t0 + r);
                for_lanes(HS, [&](int64_t i, auto width) {
                    store(out_row + i, load(m.sum + r * HS + i, width) / row_sum[r], width);
                });
                lse[head_index * T + t0 + r] = row_max[r] + float(std::log(double(row_sum[r])));
            }
        }
    });
}

template <class E>
void attention_forward(Cpu& cpu, E* out, float* lse, const E* qkv, const AttentionShape& shape) {
    const OpScope op(cpu, __func__, attention_forward_cost<E>(shape, Cpu::kExpFlops, seen_scores(shape)));
    check_attention<E>(shape);
    with_packed_type<E>([&](auto zero) { attention_forward_as<decltype(zero)>(cpu, out, lse, qkv, shape); });
}

// Stores two rows of a tile (kQueries, kKeys) whose transpose will be multiplied, and whose rows are its terms.
template <class E, class P>
ANVIL_INLINE void store_two_rows(P* to, F32x16 first, F32x16 second) {
    if constexpr (kPair<P> == 2) {
        store_pairs(to, first, second);
    } else if constexpr (kWidens<P, E>) {
        for (int i = 0; i < kRegisters; i++) {
            first.part[i] = to_f32(to_bf16(first.part[i]));
            second.part[i] = to_f32(to_bf16(second.part[i]));
        }
        store(to, second);
        store(to + kKeys, first);
    } else {
        store(to, first);
        store(to + kKeys, second);
    }
}
template <class P>
Strided<P> transposed_tile(const P* tile) {
    return {tile, kPair<P>, kKeys};
}

template <class E, class P>
struct AttentionBackwardScratch {
    // In fp32 rows of dS serve as terms and as rows of A.
    static constexpr bool kSharesDs = sizeof(E) == sizeof(float);

    float *k_t, *v_t;            // packed (HS, T)
    float* k;                    // packed (kKeys, HS) for each tile of keys
    float *q, *d_out;            // packed (kQueries, HS)
    float *q_rows, *d_out_rows;  // (kQueries, HS), if they are copied
    float *scores, *dp;          // (kQueries, kKeys)
    float *dk, *dv, *dq;         // (T, HS), (T, HS), (kQueries, HS)
    P *p_t, *ds_t;               // (kQueries, kKeys), read by transposed_tile()
    P* ds;                       // (kQueries, kKeys); in fp32 the same memory as ds_t

    AttentionBackwardScratch(Cpu& cpu, int64_t T, int64_t HS) {
        constexpr int64_t kTile = kQueries * kKeys;
        const int64_t k_t_size = packed_size<P, E>(HS, T);
        const int64_t k_size = (T + kKeys - 1) / kKeys * packed_size<P, E>(kKeys, HS);
        const int64_t q_size = packed_size<P, E>(kQueries, HS);
        k_t = cpu.thread_scratch(2 * k_t_size + k_size + 2 * q_size + 5 * kTile + 2 * T * HS + 3 * kQueries * HS);
        v_t = k_t + k_t_size;
        k = v_t + k_t_size;
        q = k + k_size;
        d_out = q + q_size;
        scores = d_out + q_size;
        dp = scores + kTile;
        dk = dp + kTile;
        dv = dk + T * HS;
        dq = dv + T * HS;
        q_rows = dq + kQueries * HS;
        d_out_rows = q_rows + kQueries * HS;
        p_t = reinterpret_cast<P*>(d_out_rows + kQueries * HS);
        ds_t = p_t + kTile;
        ds = kSharesDs ? ds_t : ds_t + kTile;
    }
};

// With P the softmax, dP = dout v^T and delta[t] = dout[t] . out[t]  (D in Dao et al., section B.2):
//   dv = P^T dout,   dS = P (dP - delta) scale,   dq = dS k,   dk = dS^T q,   dv and dk summed over the group's query
//   heads
template <class P, class E>
void attention_backward_as(Cpu& cpu, E* dqkv, const E* dout, const E* out, const float* lse, const E* qkv,
                           const AttentionShape& shape) {
    const int64_t T = shape.T, NH = shape.NH, NKV = shape.NKV, HS = shape.HS, group = NH / NKV;
    const int64_t k_block = packed_size<P, E>(kKeys, HS);
    const float scale = shape.score_scale();
    parallel_tasks(cpu, shape.B * NKV, [=, &cpu](int64_t kv_index) {
        const int64_t b = kv_index / NKV, first_index = kv_index * group, heads = shape.B * NH;
        const AttentionHead<E> first(qkv, shape, first_index), first_grad(dqkv, shape, first_index);
        const AttentionHead<E> next_keys(qkv, shape, std::min(first_index + group, heads - group));
        const AttentionBackwardScratch<E, P> m(cpu, T, HS);
        constexpr bool kSharesDs = m.kSharesDs;
        pack_b<P>(m.k_t, first.k.transposed(), HS, T);
        pack_b<P>(m.v_t, first.v.transposed(), HS, T);
        for (int64_t s0 = 0; s0 < T; s0 += kKeys)
            pack_b<P>(m.k + s0 / kKeys * k_block, first.k.at(s0, 0), std::min(kKeys, T - s0), HS);
        std::fill_n(m.dk, 2 * T * HS, 0.f);

        RowsAhead ahead(tile_kernel_of<P>());
        for (int64_t head_index = first_index; head_index < first_index + group; head_index++) {
            const AttentionHead<E> head(qkv, shape, head_index), grad(dqkv, shape, head_index);
            const Strided<E> head_dout = rows_of_head(dout, shape, head_index);
            const Strided<E> head_out = rows_of_head(out, shape, head_index);
            const float* head_lse = lse + head_index * T;
            for (int64_t t0 = 0; t0 < T; t0 += kQueries) {
                const TileMask mask(shape, b, t0);
                const bool last = t0 + kQueries >= T;
                const int64_t next_index = std::min(head_index + last, heads - 1), next_t0 = last ? 0 : t0 + kQueries;
                ahead.start(mask.rows, HS * int64_t(sizeof(E)));
                if (head_index == first_index + group - 1) {
                    for (const Strided<E>& rows : {next_keys.v, next_keys.k, first_grad.v, first_grad.k})
                        ahead.add(rows.at(t0, 0));
                }
                ahead.add(grad.q.at(t0, 0));
                ahead.add(rows_of_head(out, shape, next_index).at(next_t0, 0));
                ahead.add(rows_of_head(dout, shape, next_index).at(next_t0, 0));
                ahead.add(AttentionHead<E>(qkv, shape, next_index).q.at(next_t0, 0));
                pack_b<P>(m.q, head.q.at(t0, 0), mask.rows, HS);
                pack_b<P>(m.d_out, head_dout.at(t0, 0), mask.rows, HS);
                const Strided<P> q = rows_as_operand<E, P>(head.q.at(t0, 0), mask.rows, HS, m.q_rows);
                const Strided<P> d_out = rows_as_operand<E, P>(head_dout.at(t0, 0), mask.rows, HS, m.d_out_rows);
                std::fill_n(m.dq, mask.rows * HS, 0.f);
                float delta[kQueries] = {}, minus_lse[kQueries] = {};
                for (int64_t r0 = 0; r0 < mask.rows; r0 += kLanes) {
                    F32x16 by_row[kLanes] = {};
                    for (int64_t r = r0; r < std::min(mask.rows, r0 + kLanes); r++) {
                        for_lanes(HS, [&](int64_t i, auto width) {
                            by_row[r - r0] = fma(load(row_of(head_dout, t0 + r) + i, width),
                                                 load(row_of(head_out, t0 + r) + i, width), by_row[r - r0]);
                        });
                        minus_lse[r] = -head_lse[t0 + r];
                    }
                    store(delta + r0, sum_rows(by_row));
                }
                for (int64_t s0 = mask.first_tile(); s0 < mask.limit(); s0 += kKeys) {
                    const int64_t keys = std::min(kKeys, T - s0);
                    score_tile(m.scores, mask, s0, HS, q, m.k_t + s0 * (HS / kPair<P>), ahead);
                    score_tile(m.dp, mask, s0, HS, d_out, m.v_t + s0 * (HS / kPair<P>), ahead);
                    for (int64_t r0 = 0; r0 < mask.rows; r0 += 2) {
                        const uint64_t columns[2] = {mask.columns(r0, s0), mask.columns(r0 + 1, s0)};
                        const int64_t lanes = lanes_of(columns[0] | columns[1]);
                        int64_t s = 0;
                        for (; s < lanes; s += kLanes) {
                            F32x16 weights[2], d_scores[2];
                            for (int64_t i = 0; i < 2; i++) {
                                const int64_t r = r0 + i, at = r * kKeys + s;
                                const auto seen_only = [&](F32x16 x) { return select_lanes(x, columns[i] >> s, 0); };
                                weights[i] = seen_only(exp(fma(load(m.scores + at), scale, minus_lse[r])));
                                d_scores[i] = seen_only(weights[i] * (load(m.dp + at) - delta[r]) * scale);
                                if (!kSharesDs) store_operand<E>(m.ds + at, d_scores[i]);
                            }
                            store_two_rows<E>(m.p_t + r0 * kKeys + s * kPair<P>, weights[0], weights[1]);
                            store_two_rows<E>(m.ds_t + r0 * kKeys + s * kPair<P>, d_scores[0], d_scores[1]);
                        }
                        for (; s < kKeys; s += kLanes) {
                            store_two_rows<E>(m.p_t + r0 * kKeys + s * kPair<P>, zeros(), zeros());
                            store_two_rows<E>(m.ds_t + r0 * kKeys + s * kPair<P>, zeros(), zeros());
                            if (!kSharesDs)
                                for (int64_t r = r0; r < r0 + 2; r++) store(m.ds + r * kKeys + s, zeros());
                        }
                    }
                    // Key s0 + i is seen by queries from t = s0 + i on. For bf16 a range begins at an even k.
                    const auto queries_of = [&](int64_t i, int64_t) {
                        return KRange{std::max<int64_t>(0, s0 + i - t0) / 2 * 2, mask.rows};
                    };
                    const auto keys_of = [&](int64_t r, int64_t n) { return KRange{0, mask.end(r + n - 1, s0)}; };
                    const int64_t cols = std::min(kKeys, mask.limit() - s0);
                    multiply_in_ranges<E>(m.dv + s0 * HS, cols, HS, mask.rows, transposed_tile(m.p_t), m.d_out,
                                          queries_of, ahead);
                    multiply_in_ranges<E>(m.dk + s0 * HS, cols, HS, mask.rows, transposed_tile(m.ds_t), m.q, queries_of,
                                          ahead);
                    multiply_in_ranges<E>(m.dq, mask.rows, HS, keys, Strided<P>{m.ds, kKeys, 1},
                                          m.k + s0 / kKeys * k_block, keys_of, ahead);
                }
                for (int64_t r = 0; r < mask.rows; r++) convert_row(row_of(grad.q, t0 + r), m.dq + r * HS, HS);
            }
        }
        for (int64_t t = 0; t < T; t++) {
            convert_row(row_of(first_grad.k, t), m.dk + t * HS, HS);
            convert_row(row_of(first_grad.v, t), m.dv + t * HS, HS);
        }
    });
}

template <class E>
void attention_backward(Cpu& cpu, E* dqkv, const E* dout, const E* out, const float* lse, const E* qkv,
                        const AttentionShape& shape) {
    const OpScope op(cpu, __func__, attention_backward_cost<E>(shape, Cpu::kExpFlops, seen_scores(shape)));
    check_attention<E>(shape);
    with_packed_type<E>(
        [&](auto zero) { attention_backward_as<decltype(zero)>(cpu, dqkv, dout, out, lse, qkv, shape); });
}

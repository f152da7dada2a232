/*
What the flash attention kernels are made of: tiles of a head in shared memory, and products of them on tensor cores.

A warp works on `M` times 16 rows of one side (queries, or keys in the backward of keys) and walks over the other side.
Its accumulators have the layout of mma_m16n8k16: lane l, with g = l / 4 and c = 2 (l % 4), holds of each 16 x 8 block
the elements (g, c), (g, c + 1), (g + 8, c), (g + 8, c + 1). Rounded to bf16 in pairs, two neighbouring blocks are the
left operand of a next product: scores become weights and are multiplied without leaving their registers.
*/
#pragma once
#include <type_traits>
#include "llmc/cuda/device.cuh"
#include "llmc/ops/attention.h"  // AttentionShape

inline constexpr int kFlashWarps = 4, kFlashThreads = kFlashWarps * kWarp;
inline constexpr int kFlashTile = 64;  // rows of the side that is walked over, a step of cp.async
inline constexpr float kLog2E = 1.44269504f;

DEVICE int lane_id() { return threadIdx.x % kWarp; }
DEVICE int warp_id() { return threadIdx.x / kWarp; }

// AttentionShape as kernels use it.
struct FlashShape {
    int T, NH, group, window;  // query heads a key head; the window is at most T, also for "all keys"
    int row, out_row;          // from one token of qkv to the next, and of out
    float scale, scale_log2;   // of the scores, for e^x and for 2^x
    const int32_t* starts;     // (B, T), or null
    int HS;

    explicit FlashShape(const AttentionShape& s)
        : T(int(s.T)),
          NH(int(s.NH)),
          group(int(s.NH / s.NKV)),
          window(int(s.window < 0 || s.window > s.T ? s.T : s.window)),
          row(int(s.row())),
          out_row(int(s.NH * s.HS)),
          scale(s.score_scale()),
          scale_log2(s.score_scale() * kLog2E),
          starts(s.starts),
          HS(int(s.HS)) {}

    DEVICE int num_kv() const { return NH / group; }
    // Query t sees the keys [t - reach, t]. Queries from T on count to the last one's document.
    DEVICE int reach(int b, int t) const {
        return starts ? min(window, t - starts[int64_t(b) * T + min(t, T - 1)]) : window;
    }
    // The tile of keys that the queries from t on begin with.
    DEVICE int first_tile(int b, int t, int tile) const { return max(0, t - reach(b, t)) / tile; }
    // The last tile of queries that sees any of the keys [s, s + ns). Documents are in order, so a warp finds it by
    // asking the first queries of 32 tiles at a time.
    DEVICE int last_tile(int b, int s, int ns, int tile) const {
        const int most = min(T - 1, s + ns - 1 + window) / tile;
        if (!starts) return most;
        int last = s / tile;  // where query s is, which sees key s
        for (int first = last + 1; first <= most; first += kWarp) {
            const int mine = first + int(threadIdx.x) % kWarp;
            const bool sees_any = mine <= most && starts[int64_t(b) * T + mine * tile] < s + ns;
            const uint32_t seeing = __ballot_sync(kAllLanes, sees_any);
            last += __popc(seeing);
            if (seeing != kAllLanes) break;
        }
        return last;
    }
};

// What a kernel is compiled for: heads of exactly HS channels, in rows that are one document or that have documents; or
// heads of fewer, in any rows. Those lie in tiles of HS columns, of which the last are zeros.
enum class FlashKind { one_document, documents, narrow };

template <int HS, FlashKind kind>
DEVICE int columns_of(const FlashShape& s) {
    return kind == FlashKind::narrow ? s.HS : HS;
}

// How many columns of scores, in blocks of 8, a kernel of this kind makes at a time, if others make N: to know how
// narrow a head is takes registers.
constexpr int columns_at_a_time(int N, FlashKind kind) { return kind == FlashKind::narrow ? N / 2 : N; }

// run(std::integral_constant) with the kind that the shape needs
template <int HS, class Run>
void with_flash_kind(const AttentionShape& shape, Run run) {
    if (shape.HS < HS)
        run(std::integral_constant<FlashKind, FlashKind::narrow>());
    else if (shape.starts)
        run(std::integral_constant<FlashKind, FlashKind::documents>());
    else
        run(std::integral_constant<FlashKind, FlashKind::one_document>());
}

// t - reach <= s <= t
DEVICE bool in_reach(int t, int s, int reach) { return unsigned(t - s) <= unsigned(reach); }

// The mask of a tile. Where queries reach back differently, their reach lies in shared memory, for registers are short.
template <FlashKind kind>
struct FlashMask {
    const FlashShape& shape;  // a copy of the window in it would be one register more
    const int* reaches;       // of query `first` and those that follow
    int first;

    DEVICE int reach(int t) const {
        if constexpr (kind == FlashKind::one_document)
            return shape.window;
        else
            return reaches[t - first];
    }
    DEVICE bool sees(int t, int s) const { return in_reach(t, s, reach(t)); }
    // Does any of the queries [t, t + nt) see any of the keys [s, s + ns)? Does each see all? The same for whole warps.
    DEVICE bool any_sees(int t, int nt, int s, int ns) const { return s < t + nt && t - reach(t) < s + ns; }
    DEVICE bool all_see(int t, int nt, int s, int ns) const {
        return s + ns - 1 <= t && t + nt - 1 - reach(t + nt - 1) <= s;
    }
};

// The mask of a block's own queries [t, t + n), into `memory`. Needs a barrier.
template <FlashKind kind, int n>
DEVICE FlashMask<kind> mask_of_queries(int* memory, const FlashShape& s, int b, int t) {
    if constexpr (kind != FlashKind::one_document)
        for (int i = threadIdx.x; i < n; i += kFlashThreads) memory[i] = s.reach(b, t + i);
    return {s, memory, t};
}

// Where head h of token t of sequence b lies in qkv-shaped memory, and in out-shaped memory.
template <class T>
struct FlashHead {
    T *q, *k, *v;

    DEVICE FlashHead(T* qkv, const FlashShape& s, int b, int t, int h, int HS) {
        T* token = qkv + (int64_t(b) * s.T + t) * s.row;
        q = token + h * HS;
        k = token + (s.NH + h / s.group) * HS;
        v = k + s.num_kv() * HS;
    }
};
template <class T>
DEVICE T* head_of_out(T* out, const FlashShape& s, int b, int t, int h, int HS) {
    return out + ((int64_t(b) * s.T + t) * s.NH + h) * HS;
}

// Rows of HS numbers in shared memory, from element `first` on, a multiple of 16 rows. Chunk c of 16 bytes of row r
// lies at c ^ (r % 8), so that eight rows at the same chunk, which an ldmatrix reads and an accumulator is stored to,
// are in 32 different banks. From a place at chunk c, that at c ^ d is found by the exclusive or with 8 d.
template <int HS>
struct FlashTile {
    bf16* shared;
    int first;

    DEVICE int place(int row, int chunk) const { return first + row * HS + ((chunk ^ (row % 8)) << 3); }
    DEVICE bf16* at(int row, int chunk) const { return shared + place(row, chunk); }
    DEVICE FlashTile below(int rows) const { return {shared, first + rows * HS}; }

    // `rows` rows of a tensor, `stride` apart, zeros from row `end` and from column `columns` on. Needs a commit and a
    // wait.
    template <int rows>
    DEVICE void fetch(const bf16* from, int stride, int end, int columns) const {
        constexpr int kChunks = HS / 8, kStep = kFlashThreads / kChunks;
        static_assert(rows % kStep == 0 && kStep % 8 == 0);
        const int row = int(threadIdx.x) / kChunks, chunk = int(threadIdx.x) % kChunks;
        bf16* to = at(row, chunk);
        from += int64_t(row) * stride + chunk * 8;
#pragma unroll
        for (int i = 0; i < rows; i += kStep, from += kStep * stride)
            cp_async16(to + i * HS, from, row + i < end && chunk * 8 < columns);
    }

    // The warp's accumulators to the first 16 M rows of a tensor, below `end`, and their first `columns`, through rows
    // [row, row + 16 M) of this tile, which must be the warp's own.
    template <int M>
    DEVICE void store(bf16* to, int stride, int end, int columns, int row, const float (&c)[M][HS / 8][4]) const {
        __syncwarp();
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < HS / 8; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    bf16* pair = at(row + 16 * m + 8 * half + lane_id() / 4, n) + lane_id() % 4 * 2;
                    *reinterpret_cast<uint32_t*>(pair) = bf16x2(c[m][n][2 * half], c[m][n][2 * half + 1]);
                }
        __syncwarp();
        constexpr int kChunks = HS / 8, kStep = kWarp / kChunks;
        const int r0 = lane_id() / kChunks, chunk = lane_id() % kChunks;
        if (chunk * 8 >= columns) return;
        to += int64_t(r0) * stride + chunk * 8;
        for (int r = r0; r < 16 * M && r < end; r += kStep, to += int64_t(kStep) * stride)
            store16(to, load16(at(row + r, chunk)));
    }
};

// The warp's own rows of a tile as left operand, 16 columns at a time: read each time, or kept in registers from load()
// on.
template <int HS, int M>
struct FlashReadRows {
    FlashTile<HS> tile;
    int row;

    DEVICE void load() {}
    DEVICE void get(uint32_t (&a)[M][4], int k) const {
        const int place = tile.place(row + lane_id() % 16, lane_id() / 16) ^ (16 * k);
#pragma unroll
        for (int m = 0; m < M; m++) ldmatrix_x4(a[m], tile.shared + place + 16 * m * HS);
    }
};
template <int HS, int M>
struct FlashKeptRows {
    FlashReadRows<HS, M> rows;
    uint32_t kept[HS / 16][M][4];

    DEVICE FlashKeptRows(const FlashTile<HS>& tile, int row) : rows{tile, row} {}
    DEVICE void load() {
#pragma unroll
        for (int k = 0; k < HS / 16; k++) rows.get(kept[k], k);
    }
    DEVICE void get(uint32_t (&a)[M][4], int k) const {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) a[m][i] = kept[k][m][i];
    }
};

// c (16 M, 8 N)  +=  a (16 M, HS) times rows [row, row + 8 N) of b, transposed
template <int HS, int M, int N, class Left>
DEVICE void multiply_by_rows(float (&c)[M][N][4], const Left& left, const FlashTile<HS>& b, int row) {
    const int place = b.place(row + lane_id() % 8 + lane_id() / 16 * 8, lane_id() / 8 % 2);
#pragma unroll
    for (int k = 0; k < HS / 16; k++) {
        uint32_t a[M][4];
        left.get(a, k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t r[4];
            ldmatrix_x4(r, b.shared + (place ^ (16 * k)) + 8 * n * HS);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_m16n8k16(c[m][n], a[m], {r[0], r[1]});
                mma_m16n8k16(c[m][n + 1], a[m], {r[2], r[3]});
            }
        }
    }
}

// c (16 M, HS)  +=  a (16 M, 8 N) times rows [row, row + 8 N) of b. a: accumulators rounded to bf16.
template <int HS, int M, int N>
DEVICE void multiply(float (&c)[M][HS / 8][4], const uint32_t (&a)[M][N][2], const FlashTile<HS>& b, int row) {
    const int place = b.place(row + lane_id() % 16, lane_id() / 16);
#pragma unroll
    for (int k = 0; k < N / 2; k++)
#pragma unroll
        for (int n = 0; n < HS / 8; n += 2) {
            uint32_t r[4];
            ldmatrix_x4_transposed(r, b.shared + (place ^ (8 * n)) + 16 * k * HS);
#pragma unroll
            for (int m = 0; m < M; m++) {
                const uint32_t left[4] = {a[m][2 * k][0], a[m][2 * k][1], a[m][2 * k + 1][0], a[m][2 * k + 1][1]};
                mma_m16n8k16(c[m][n], left, {r[0], r[1]});
                mma_m16n8k16(c[m][n + 1], left, {r[2], r[3]});
            }
        }
}

// body(row, col, m, n, i) for what this lane holds of a (16 M, 8 N) accumulator: element [m][n][i] of it
template <int M, int N, class Body>
DEVICE void for_elements(Body body) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                body(16 * m + 8 * (i / 2) + lane_id() / 4, 8 * n + lane_id() % 4 * 2 + i % 2, m, n, i);
}

// Over the four lanes that hold a row.
DEVICE float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
    return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
DEVICE float row_sum(float x) {
    x += __shfl_xor_sync(kAllLanes, x, 1);
    return x + __shfl_xor_sync(kAllLanes, x, 2);
}

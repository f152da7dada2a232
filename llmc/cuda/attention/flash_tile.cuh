/*
Building blocks of the flash attention kernels: tiles of a head in shared memory, and their multiplication on tensor
cores.

A warp works on `M` times 16 rows of one side (queries, or keys in the backward of keys) and walks over the other side.
Its accumulators have the layout of mma_m16n8k16: lane l, with g = l / 4 and c = 2 (l % 4), holds of each 16 x 8 block
the elements (g, c), (g, c + 1), (g + 8, c), (g + 8, c + 1). Rounded to bf16 in pairs, two adjacent blocks are the A
operand of the next multiplication: scores become weights and are multiplied without leaving registers.
*/
#pragma once
#include <type_traits>
#include "llmc/cuda/device.cuh"
#include "llmc/ops/attention.h"  // AttentionShape

inline constexpr int kFlashWarps = 4, kFlashThreads = kFlashWarps * kWarp;
inline constexpr int kFlashTile = 64;  // rows of the other side per cp.async stage
inline constexpr float kLog2E = 1.44269504f;

DEVICE int lane_id() { return threadIdx.x % kWarp; }
DEVICE int warp_id() { return threadIdx.x / kWarp; }

// AttentionShape as kernels use it.
struct FlashShape {
    int T, NH, group, window;  // group: query heads per key head; window: at most T, which hides nothing
    int row, out_row;          // from one token of qkv to the next, and of out
    float scale, scale_log2;   // of scores, for e^x and for 2^x
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
    // Query t sees the keys [t - window_left, t]. Queries from T on belong to the document of the last one.
    DEVICE int window_left(int b, int t) const {
        return starts ? min(window, t - starts[int64_t(b) * T + min(t, T - 1)]) : window;
    }
    // The first tile of keys that any of the queries from t on sees.
    DEVICE int first_tile(int b, int t, int tile) const { return max(0, t - window_left(b, t)) / tile; }
    // The last tile of queries that sees any of the keys [s, s + ns). Documents are in order, so a warp finds it by
    // testing the first queries of 32 tiles at a time.
    DEVICE int last_tile(int b, int s, int ns, int tile) const {
        const int most = min(T - 1, s + ns - 1 + window) / tile;
        if (!starts) return most;
        int last = s / tile;  // the tile of query s, which sees key s
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

// What a kernel is specialized for: heads of exactly HS channels, without or with document masking; or narrower heads,
// in tiles of HS columns padded with zeros.
enum class FlashKind { one_document, documents, narrow };

template <int HS, FlashKind kind>
DEVICE int columns_of(const FlashShape& s) {
    return kind == FlashKind::narrow ? s.HS : HS;
}

// How many columns of scores, in blocks of 8, a kernel of this kind computes at a time where others compute N: the
// width of a narrow head takes registers.
constexpr int columns_at_a_time(int N, FlashKind kind) { return kind == FlashKind::narrow ? N / 2 : N; }

// Calls run(std::integral_constant) with the kind for this shape.
template <int HS, class Run>
void with_flash_kind(const AttentionShape& shape, Run run) {
    if (shape.HS < HS)
        run(std::integral_constant<FlashKind, FlashKind::narrow>());
    else if (shape.starts)
        run(std::integral_constant<FlashKind, FlashKind::documents>());
    else
        run(std::integral_constant<FlashKind, FlashKind::one_document>());
}

// t - window_left <= s <= t
DEVICE bool in_window(int t, int s, int window_left) { return unsigned(t - s) <= unsigned(window_left); }

// The mask of a tile. With documents window_left differs per query; it is kept in shared memory to save registers.
template <FlashKind kind>
struct FlashMask {
    const FlashShape& shape;  // a copy of the window would cost a register
    const int* window_lefts;  // of query `first` and those that follow
    int first;

    DEVICE int window_left(int t) const {
        if constexpr (kind == FlashKind::one_document)
            return shape.window;
        else
            return window_lefts[t - first];
    }
    DEVICE bool sees(int t, int s) const { return in_window(t, s, window_left(t)); }
    // Whether any of the queries [t, t + nt) sees any of the keys [s, s + ns), and whether each sees all. Uniform per
    // warp.
    DEVICE bool any_sees(int t, int nt, int s, int ns) const { return s < t + nt && t - window_left(t) < s + ns; }
    DEVICE bool all_see(int t, int nt, int s, int ns) const {
        return s + ns - 1 <= t && t + nt - 1 - window_left(t + nt - 1) <= s;
    }
};

// The mask of a block's queries [t, t + n), stored in `memory`. The caller synchronizes.
template <FlashKind kind, int n>
DEVICE FlashMask<kind> mask_of_queries(int* memory, const FlashShape& s, int b, int t) {
    if constexpr (kind != FlashKind::one_document)
        for (int i = threadIdx.x; i < n; i += kFlashThreads) memory[i] = s.window_left(b, t + i);
    return {s, memory, t};
}

// Pointers to head h of token t of sequence b in memory shaped like qkv, and like out.
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

// Rows of HS elements in shared memory, from element `first` on, a multiple of 16 rows. The 16-byte chunk c of row r
// lies at c ^ (r % 8), so that the same chunk of eight rows, as ldmatrix reads it and accumulators are stored, is in 32
// different banks. The exclusive or with 8 d moves a place from chunk c to chunk c ^ d.
template <int HS>
struct FlashTile {
    bf16* shared;
    int first;

    DEVICE int place(int row, int chunk) const { return first + row * HS + ((chunk ^ (row % 8)) << 3); }
    DEVICE bf16* at(int row, int chunk) const { return shared + place(row, chunk); }
    DEVICE FlashTile below(int rows) const { return {shared, first + rows * HS}; }

    // Starts loading `rows` rows of a tensor, `stride` apart, with zeros from row `end` and column `columns` on. Needs
    // a commit and a wait.
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

    // Stores the warp's accumulators to the first 16 M rows of a tensor, those below `end`, and their first `columns`.
    // Goes through rows [row, row + 16 M) of this tile, which must be the warp's own.
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

// The warp's own rows of a tile as the A operand, 16 columns at a time: read from shared memory each time, or kept in
// registers after load().
template <int HS, int M>
struct FlashSharedRows {
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
struct FlashRegisterRows {
    FlashSharedRows<HS, M> rows;
    uint32_t kept[HS / 16][M][4];

    DEVICE FlashRegisterRows(const FlashTile<HS>& tile, int row) : rows{tile, row} {}
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

// Calls body(row, col, m, n, i) for each element [m][n][i] that this lane holds of a (16 M, 8 N) accumulator.
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

// Reduces over the four lanes that hold a row.
DEVICE float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
    return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
DEVICE float row_sum(float x) {
    x += __shfl_xor_sync(kAllLanes, x, 1);
    return x + __shfl_xor_sync(kAllLanes, x, 2);
}

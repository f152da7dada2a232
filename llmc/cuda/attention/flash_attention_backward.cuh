/*
Flash attention backward in bf16 on tensor cores; the equations and figures are in attention.cuh. Blocks share no sums
and there are no atomics, so the result has the same bits each time. The price is that scores and dP are computed twice:

  keys      a block has keys of one key head, and walks over the queries that see them, head by head of its group:
            S^T = k q^T,   dP^T = v dout^T,   dv += P^T dout,   dk += dS^T q          four GEMMs
  queries   a block has queries, and walks over the keys that they see:
            S = q k^T,   dP = dout v^T,   dq += dS k                                  three

In both, a warp's accumulators of S and dP become A operands without leaving the registers. P = 2^(S - log2 of the
denominator) and dS = P (dP - D) are exactly zero where the mask hides a score, whatever the memory holds there.
*/
#pragma once
#include "llmc/cuda/attention/attention_stats.cuh"
#include "llmc/cuda/attention/flash_tile.cuh"
#include "llmc/ops/op_cost.h"  // attention_gemms_cost

// M blocks of 16 rows per warp, and N blocks of 8 columns of the other side at a time: what fits into 255 registers.
template <int HS>
struct FlashBackward {
    static constexpr int M = HS == 64 ? 2 : 1, N = HS == 64 ? 4 : 8, kRows = kFlashWarps * 16 * M;
    static constexpr size_t kTilesBytes = (2 * kRows + 4 * kFlashTile) * HS * sizeof(bf16);
    static constexpr size_t kQueriesSharedBytes = kTilesBytes + kRows * sizeof(int);
    static constexpr size_t kKeysSharedBytes = kTilesBytes + 2 * kStatsBlock * sizeof(float);
};

// Computes weights and dS, rounded to bf16, from scores and dP. stats(row, col) gives {log2 of the denominator, D}.
template <bool masked, int M, int N, class Seen, class Stats>
DEVICE void weights_and_gradients(uint32_t (&weights)[M][N][2], uint32_t (&ds)[M][N][2], const float (&scores)[M][N][4],
                                  const float (&dp)[M][N][4], float scale_log2, Seen seen, Stats stats) {
    float p[2], g[2];
    for_elements<M, N>([&](int row, int col, int m, int n, int i) {
        const float2 of_row = stats(row, col, m, n, i);
        p[i % 2] = fast_exp2(fmaf(scores[m][n][i], scale_log2, -of_row.x));
        g[i % 2] = p[i % 2] * (dp[m][n][i] - of_row.y);
        if (masked && !seen(row, col)) p[i % 2] = g[i % 2] = 0;
        if (i % 2 == 0) return;
        weights[m][n][i / 2] = bf16x2(p[0], p[1]);
        ds[m][n][i / 2] = bf16x2(g[0], g[1]);
    });
}

template <int M, int N>
DEVICE void scale_all(float (&c)[M][N][4], float factor) {
    for_elements<M, N>([&](int, int, int m, int n, int i) { c[m][n][i] *= factor; });
}

template <int HS, FlashKind kind>
__global__ void __launch_bounds__(kFlashThreads, 2)
    flash_backward_keys_kernel(bf16* dqkv, const bf16* dout, const float* stats, const bf16* qkv, FlashShape s) {
    using Config = FlashBackward<HS>;
    constexpr int M = Config::M, N = columns_at_a_time(Config::N, kind), kKeys = Config::kRows;
    SMEM_DYNAMIC(bf16, shared);  // keys, values (kKeys, HS); twice queries, dout (kFlashTile, HS); twice stats
    const FlashTile<HS> keys{shared, 0}, values = keys.below(kKeys);
    const auto queries = [&](int stage) { return values.below(kKeys + stage * 2 * kFlashTile); };
    float* const shared_stats = reinterpret_cast<float*>(values.below(kKeys + 4 * kFlashTile).at(0, 0));

    const int columns = columns_of<HS, kind>(s), b = blockIdx.z, kv = blockIdx.y;
    const int s0 = int(blockIdx.x) * kKeys, row = warp_id() * 16 * M, own = s0 + row;
    const int num_tiles = ceil_div(s.T, kFlashTile), first = s0 / kFlashTile;
    const int last = s.last_tile(b, s0, kKeys, kFlashTile);
    const auto fetch = [&](int h, int tile, int stage) {
        const FlashTile<HS> to = queries(stage);
        const int t = tile * kFlashTile;
        to.template fetch<kFlashTile>(FlashHead<const bf16>(qkv, s, b, t, h, columns).q, s.row, s.T - t, columns);
        to.below(kFlashTile)
            .template fetch<kFlashTile>(head_of_out(dout, s, b, t, h, columns), s.out_row, s.T - t, columns);
        const float* from = stats + ((int64_t(b) * s.NH + h) * num_tiles + tile) * kStatsBlock;
        if (threadIdx.x < (kind == FlashKind::one_document ? 2 : 3) * kFlashTile / 4)
            cp_async16(shared_stats + stage * kStatsBlock + threadIdx.x * 4, from + threadIdx.x * 4, true);
    };
    const FlashHead<const bf16> from(qkv, s, b, s0, kv * s.group, columns);
    keys.template fetch<kKeys>(from.k, s.row, s.T - s0, columns);
    values.template fetch<kKeys>(from.v, s.row, s.T - s0, columns);
    fetch(kv * s.group, first, 0);
    cp_async_commit();

    float dk[M][HS / 8][4] = {}, dv[M][HS / 8][4] = {};
    int stage = 0;
    for (int h = kv * s.group, tile = first; h < (kv + 1) * s.group; stage ^= 1) {
        const int begin = tile * kFlashTile;
        if (tile++ == last) tile = first, h++;  // the next
        cp_async_wait<0>();
        __syncthreads();  // this step's queries have arrived, and no warp reads the other buffer any more
        if (h < (kv + 1) * s.group) fetch(h, tile, stage ^ 1);
        cp_async_commit();
        const FlashTile<HS> q = queries(stage), d_out = q.below(kFlashTile);
        const float* const tile_stats = shared_stats + stage * kStatsBlock;
        const FlashMask<kind> mask{s, reinterpret_cast<const int*>(tile_stats + 2 * kFlashTile), begin};
#pragma unroll 1
        for (int col = 0; col < kFlashTile; col += 8 * N) {
            const int t = begin + col;
            if (!mask.any_sees(t, 8 * N, own, 16 * M)) continue;
            float scores[M][N][4] = {}, dp[M][N][4] = {};
            multiply_by_rows(scores, FlashSharedRows<HS, M>{keys, row}, q, col);
            multiply_by_rows(dp, FlashSharedRows<HS, M>{values, row}, d_out, col);
            uint32_t weights[M][N][2], ds[M][N][2];
            const float* log2_sums = tile_stats + col;
            const auto stats_of = [&](int, int c, int, int, int) {
                return make_float2(log2_sums[c], log2_sums[kFlashTile + c]);
            };
            const auto seen = [&](int r, int c) { return mask.sees(t + c, own + r); };
            if (mask.all_see(t, 8 * N, own, 16 * M))
                weights_and_gradients<false>(weights, ds, scores, dp, s.scale_log2, seen, stats_of);
            else
                weights_and_gradients<true>(weights, ds, scores, dp, s.scale_log2, seen, stats_of);
            multiply(dv, weights, d_out, col);
            multiply(dk, ds, q, col);
        }
    }
    scale_all(dk, s.scale);
    const FlashHead<bf16> grad(dqkv, s, b, own, kv * s.group, columns);
    keys.store(grad.k, s.row, s.T - own, columns, row, dk);
    values.store(grad.v, s.row, s.T - own, columns, row, dv);
}

template <int HS, FlashKind kind>
__global__ void __launch_bounds__(kFlashThreads, 2)
    flash_backward_queries_kernel(bf16* dqkv, const bf16* dout, const float* stats, const bf16* qkv, FlashShape s) {
    using Config = FlashBackward<HS>;
    constexpr int M = Config::M, N = columns_at_a_time(Config::N, kind), kQueries = Config::kRows;
    SMEM_DYNAMIC(bf16, shared);  // queries, dout (kQueries, HS); twice keys, values (kFlashTile, HS); reaches
    const FlashTile<HS> queries{shared, 0}, d_out = queries.below(kQueries);
    const auto keys = [&](int tile) { return d_out.below(kQueries + tile % 2 * 2 * kFlashTile); };

    const int columns = columns_of<HS, kind>(s), b = blockIdx.z, h = blockIdx.y;
    const int t0 = int(gridDim.x - 1 - blockIdx.x) * kQueries;  // the longest first
    const int row = warp_id() * 16 * M, t = t0 + row;
    int* const reaches = reinterpret_cast<int*>(d_out.below(kQueries + 4 * kFlashTile).at(0, 0));
    const auto mask = mask_of_queries<kind, kQueries>(reaches, s, b, t0);
    const int first = s.first_tile(b, t0, kFlashTile), last = (min(t0 + kQueries, s.T) - 1) / kFlashTile;
    const auto fetch = [&](int tile) {
        const int s0 = tile * kFlashTile;
        const FlashHead<const bf16> from(qkv, s, b, s0, h, columns);
        keys(tile).template fetch<kFlashTile>(from.k, s.row, s.T - s0, columns);
        keys(tile).below(kFlashTile).template fetch<kFlashTile>(from.v, s.row, s.T - s0, columns);
    };
    queries.template fetch<kQueries>(FlashHead<const bf16>(qkv, s, b, t0, h, columns).q, s.row, s.T - t0, columns);
    d_out.template fetch<kQueries>(head_of_out(dout, s, b, t0, h, columns), s.out_row, s.T - t0, columns);
    fetch(first);
    cp_async_commit();

    float2 row_stats[M][2];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int own = t + 16 * m + 8 * half + lane_id() / 4, tile = own / kFlashTile;
            const int num_tiles = ceil_div(s.T, kFlashTile);
            row_stats[m][half] = {INFINITY, 0};
            if (own >= s.T) continue;
            const float* from = stats + ((int64_t(b) * s.NH + h) * num_tiles + tile) * kStatsBlock + own % kFlashTile;
            row_stats[m][half] = {from[0], from[kFlashTile]};
        }
    FlashRegisterRows<HS, M> own_q(queries, row), own_dout(d_out, row);
    float dq[M][HS / 8][4] = {};
    for (int tile = first; tile <= last; tile++) {
        cp_async_wait<0>();
        __syncthreads();  // this tile has arrived, and no warp reads the other buffer any more
        if (tile < last) fetch(tile + 1);
        cp_async_commit();
        if (tile == first) own_q.load(), own_dout.load();
        const FlashTile<HS> k = keys(tile), v = k.below(kFlashTile);
#pragma unroll 1
        for (int col = 0; col < kFlashTile; col += 8 * N) {
            const int s0 = tile * kFlashTile + col;
            if (!mask.any_sees(t, 16 * M, s0, 8 * N)) continue;
            float scores[M][N][4] = {}, dp[M][N][4] = {};
            multiply_by_rows(scores, own_q, k, col);
            multiply_by_rows(dp, own_dout, v, col);
            uint32_t weights[M][N][2], ds[M][N][2];
            const auto stats_of = [&](int, int, int m, int, int i) { return row_stats[m][i / 2]; };
            const auto seen = [&](int r, int c) { return mask.sees(t + r, s0 + c); };
            if (mask.all_see(t, 16 * M, s0, 8 * N))
                weights_and_gradients<false>(weights, ds, scores, dp, s.scale_log2, seen, stats_of);
            else
                weights_and_gradients<true>(weights, ds, scores, dp, s.scale_log2, seen, stats_of);
            multiply(dq, ds, k, col);
        }
    }
    scale_all(dq, s.scale);
    queries.store(FlashHead<bf16>(dqkv, s, b, t, h, columns).q, s.row, s.T - t, columns, row, dq);
}

template <int HS>
void flash_attention_backward(Cuda& cuda, bf16* dqkv, const bf16* dout, const bf16* out, const float* lse,
                              const bf16* qkv, const AttentionShape& shape) {
    using Config = FlashBackward<HS>;
    float* stats = cuda.workspace_of<float>(attention_stats_size(shape));
    with_flash_kind<HS>(shape, [&](auto kind) {
        attention_stats<HS / 8>(cuda, stats, dout, out, lse, shape, kind != FlashKind::one_document);
        dim3 grid(unsigned(ceil_div(shape.T, Config::kRows)), unsigned(shape.NKV), unsigned(shape.B));
        launch(cuda, {"attention_backward: keys", attention_gemms_cost(shape, 4)}, flash_backward_keys_kernel<HS, kind>,
               grid, kFlashThreads, Config::kKeysSharedBytes, dqkv, dout, stats, qkv, FlashShape(shape));
        grid.y = unsigned(shape.NH);
        launch(cuda, {"attention_backward: queries", attention_gemms_cost(shape, 3)},
               flash_backward_queries_kernel<HS, kind>, grid, kFlashThreads, Config::kQueriesSharedBytes, dqkv, dout,
               stats, qkv, FlashShape(shape));
    });
}

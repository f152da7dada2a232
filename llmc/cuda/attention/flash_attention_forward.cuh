/*
Flash attention forward in bf16 on tensor cores (Dao, 2023, arXiv:2307.08691): the equation, the shapes and the figures
are in attention.cuh.

A block has 128 queries of a head, 32 per warp, and walks over their keys 64 at a time. The next 64 are loaded while
these are processed, with one barrier per step. Blocks with the most keys start first. Scores are scaled and converted
to base 2 by one multiply-add, and only tiles on the border of the mask are compared with it; a warp skips tiles that
none of its queries sees.
*/
#pragma once
#include "llmc/cuda/attention/flash_tile.cuh"
#include "llmc/ops/op_cost.h"  // attention_gemms_cost

template <int HS>
struct FlashForward {
    static constexpr int M = 2, N = HS == 64 ? 8 : 4, kQueries = kFlashWarps * 16 * M;
    static constexpr bool kQueriesInRegisters = HS == 64;  // at 128 the sums alone take 128 registers
    static constexpr size_t kSharedBytes = (kQueries + 4 * kFlashTile) * HS * sizeof(bf16) + kQueries * sizeof(int);
};

template <int HS, FlashKind kind>
__global__ void __launch_bounds__(kFlashThreads, 2)
    flash_forward_kernel(bf16* out, float* lse, const bf16* qkv, FlashShape s) {
    using Config = FlashForward<HS>;
    constexpr int M = Config::M, N = columns_at_a_time(Config::N, kind), kQueries = Config::kQueries;
    SMEM_DYNAMIC(bf16, shared);  // queries (kQueries, HS), twice keys and values (kFlashTile, HS), reaches (kQueries)
    const FlashTile<HS> queries{shared, 0};
    const auto keys = [&](int tile) { return queries.below(kQueries + tile % 2 * 2 * kFlashTile); };

    const int columns = columns_of<HS, kind>(s), b = blockIdx.z, h = blockIdx.y;
    const int t0 = int(gridDim.x - 1 - blockIdx.x) * kQueries;  // the longest first
    const int row = warp_id() * 16 * M, t = t0 + row;           // the warp's first query
    int* const reaches = reinterpret_cast<int*>(queries.below(kQueries + 4 * kFlashTile).at(0, 0));
    const auto mask = mask_of_queries<kind, kQueries>(reaches, s, b, t0);
    const int first = s.first_tile(b, t0, kFlashTile), last = (min(t0 + kQueries, s.T) - 1) / kFlashTile;
    const auto fetch = [&](int tile) {
        const int s0 = tile * kFlashTile;
        const FlashHead<const bf16> from(qkv, s, b, s0, h, columns);
        keys(tile).template fetch<kFlashTile>(from.k, s.row, s.T - s0, columns);
        keys(tile).below(kFlashTile).template fetch<kFlashTile>(from.v, s.row, s.T - s0, columns);
    };
    queries.template fetch<kQueries>(FlashHead<const bf16>(qkv, s, b, t0, h, columns).q, s.row, s.T - t0, columns);
    fetch(first);
    cp_async_commit();

    std::conditional_t<Config::kQueriesInRegisters, FlashRegisterRows<HS, M>, FlashSharedRows<HS, M>> left{queries,
                                                                                                           row};
    float sum[M][HS / 8][4] = {};
    float max_score[M][2], sum_exp[M][2];  // of scores before scaling; of the lane's columns
#pragma unroll
    for (int m = 0; m < M; m++) max_score[m][0] = max_score[m][1] = -INFINITY, sum_exp[m][0] = sum_exp[m][1] = 0;

    // The scaled maximum, subtracted from a row's scaled scores before 2^x; 0 while the row has seen no key. It is
    // rounded the same way each time, so a row whose maximum does not change is rescaled by exactly 1.
    const auto scaled = [&](float score) { return __fmul_rn(score, s.scale_log2); };
    const auto scaled_max = [&](float most) { return most == -INFINITY ? 0 : scaled(most); };

    for (int tile = first; tile <= last; tile++) {
        cp_async_wait<0>();
        __syncthreads();  // this tile has arrived, and no warp reads the other buffer any more
        if ((tile + 1) * kFlashTile < min(t0 + kQueries, s.T)) fetch(tile + 1);  // `last` would cost a register
        cp_async_commit();
        if (tile == first) left.load();
#pragma unroll 1
        for (int col = 0; col < kFlashTile; col += 8 * N) {
            const int s0 = tile * kFlashTile + col;
            if (!mask.any_sees(t, 16 * M, s0, 8 * N)) continue;
            float p[M][N][4] = {};
            multiply_by_rows(p, left, keys(tile), col);
            if (!mask.all_see(t, 16 * M, s0, 8 * N))
                for_elements<M, N>([&](int r, int c, int m, int n, int i) {
                    if (!mask.sees(t + r, s0 + c)) p[m][n][i] = -INFINITY;
                });
            float rescale[M][2];
            bool max_changed = false;
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float new_max = max_score[m][half];
#pragma unroll
                    for (int n = 0; n < N; n++)
                        new_max = fmaxf(new_max, fmaxf(p[m][n][2 * half], p[m][n][2 * half + 1]));
                    new_max = row_max(new_max);
                    max_changed |= new_max != max_score[m][half];
                    rescale[m][half] = fast_exp2(scaled(max_score[m][half]) - scaled_max(new_max));
                    max_score[m][half] = new_max;
                }
            if (__any_sync(kAllLanes, max_changed))  // else all factors are 1
                for_elements<M, HS / 8>([&](int, int, int m, int n, int i) { sum[m][n][i] *= rescale[m][i / 2]; });
            uint32_t weights[M][N][2];
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float shift = scaled_max(max_score[m][half]);
                    sum_exp[m][half] *= rescale[m][half];
#pragma unroll
                    for (int n = 0; n < N; n++) {
                        const float x = fast_exp2(fmaf(p[m][n][2 * half], s.scale_log2, -shift));
                        const float y = fast_exp2(fmaf(p[m][n][2 * half + 1], s.scale_log2, -shift));
                        sum_exp[m][half] += x + y;
                        weights[m][n][half] = bf16x2(x, y);
                    }
                }
            multiply(sum, weights, keys(tile).below(kFlashTile), col);
        }
    }

#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float total = row_sum(sum_exp[m][half]);
            const int own = t + 16 * m + 8 * half + lane_id() / 4;
            if (own < s.T && lane_id() % 4 == 0)
                lse[(int64_t(b) * s.NH + h) * s.T + own] = max_score[m][half] * s.scale + logf(total);
#pragma unroll
            for (int n = 0; n < HS / 8; n++) sum[m][n][2 * half] *= 1 / total, sum[m][n][2 * half + 1] *= 1 / total;
        }
    queries.store(head_of_out(out, s, b, t, h, columns), s.out_row, s.T - t, columns, row, sum);
}

template <int HS>
void flash_attention_forward(Cuda& cuda, bf16* out, float* lse, const bf16* qkv, const AttentionShape& shape) {
    const dim3 grid(unsigned(ceil_div(shape.T, FlashForward<HS>::kQueries)), unsigned(shape.NH), unsigned(shape.B));
    with_flash_kind<HS>(shape, [&](auto kind) {
        launch(cuda, {"attention_forward", attention_gemms_cost(shape, 2)}, flash_forward_kernel<HS, kind>, grid,
               kFlashThreads, FlashForward<HS>::kSharedBytes, out, lse, qkv, FlashShape(shape));
    });
}

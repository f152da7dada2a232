/*
Flash attention backward in bf16 on Hopper: the two kernels of flash_attention_backward.cuh, with the tiles, barriers
and GEMMs of flash_hopper_tile.cuh. Blocks share no sums, so the result has the same bits each time.

  keys      a block has 128 keys of one key head and walks over the queries that see them, head by head of its group,
            with their dout, denominators and D:
            S^T = k q^T,   dP^T = v dout^T,   dv += P^T dout,   dk += dS^T q
  queries   a block has 128 queries and their dout, and walks over the keys and values that they see:
            S = q k^T,   dP = dout v^T,   dq += dS k

One thread loads tiles, in two stages. Each of two warpgroups has 64 of the block's rows. S and dP are computed
together: S becomes weights while dP is still being computed. P and dS, rounded, are A operands in registers, so only
results are stored to shared memory. The two warpgroups meet only at the barriers of a stage, so the arithmetic of one
overlaps with the GEMMs of the other.
*/
#pragma once
#include "llmc/cuda/attention_stats.cuh"
#include "llmc/cuda/flash_hopper_tile.cuh"
#include "llmc/ops/op_cost.h"  // attention_gemms_cost

// The block's own two tiles, and two stages of `rows` rows of two tensors of the other side.
template <int HS, int rows>
struct HopperPairs {
    static constexpr int kStages = 2;
    using Own = HopperTile<HS>;
    using Other = HopperTile<HS, rows>;
    unsigned char own[2][Own::kBytes];
    unsigned char other[kStages][2][Other::kBytes];
    Mbarrier own_full;
    HopperStage stages[kStages];

    // Both waits are by parity: load i, from 0 on, is the (i / 2)-th use of stage i % 2.
    DEVICE HopperStage& wait_for_place(int i) {
        mbarrier_wait(&stages[i % kStages].empty, i / kStages % 2 ^ 1);
        return stages[i % kStages];
    }
    DEVICE HopperStage& wait_for_tiles(int i) {
        mbarrier_wait(&stages[i % kStages].full, i / kStages % 2);
        return stages[i % kStages];
    }
};
// Called by one thread.
template <int HS, int rows>
DEVICE void init_barriers(HopperPairs<HS, rows>& pairs) {
    mbarrier_init(&pairs.own_full, 1);
#pragma unroll
    for (HopperStage& stage : pairs.stages) stage.init();
    mbarrier_fence_init();
}

// Queries per stage in the kernel for keys: as many as leave registers for dk and dv.
template <int HS>
inline constexpr int kHopperQueries = HS == 64 ? 128 : 64;

// Blocks of attention_stats.cuh in the form that TMA loads: rows of 32 floats.
inline constexpr int kStatsRowFloats = kTmaColumns / 2, kStatsRows = kStatsBlock / kStatsRowFloats;
inline TensorMap map_of_stats(const float* stats, const AttentionShape& s, int queries) {
    const int64_t rows = ceil_div(s.T, kFlashTile) * kStatsRows;
    return tensor_map(reinterpret_cast<const bf16*>(stats),
                      {{kTmaColumns, rows, s.NH, s.B},
                       {kTmaColumns, rows * kTmaColumns, s.NH * rows * kTmaColumns},
                       {kTmaColumns, queries / kFlashTile * kStatsRows, 1, 1}});
}

template <int HS>
struct HopperKeysShared {
    static constexpr int kStatsBytes = kHopperQueries<HS> / kFlashTile * kStatsBlock * int(sizeof(float));
    HopperPairs<HS, kHopperQueries<HS>> tiles;  // own: keys, values; other: queries, dout
    alignas(1024) unsigned char stats[HopperPairs<HS, kHopperQueries<HS>>::kStages][(kStatsBytes + 1023) / 1024 * 1024];
};

// One warpgroup's part of the kernel for keys: 64 keys. Rows of S and dP are keys, columns queries.
template <int HS>
struct HopperKeys {
    static constexpr int kQueries = kHopperQueries<HS>;
    using Pairs = HopperPairs<HS, kQueries>;
    HopperKeysShared<HS>& shared;
    const FlashShape& s;
    int row, first_key;  // its first row in the tile; that row's key
    float dk[HS / 2] = {}, dv[HS / 2] = {}, scores[kQueries / 2], dp[kQueries / 2];
    uint32_t weights[kQueries / 16][4], ds[kQueries / 16][4];

    DEVICE HopperKeys(HopperKeysShared<HS>& shared, const FlashShape& s, int s0)
        : shared(shared), s(s), row((warpgroup_id() - 1) * 64), first_key(s0 + row) {}

    // Statistic `which` of a stage's queries `column`, which is even, and column + 1.
    enum Which { kLog2, kD, kWindowLeft };
    DEVICE float2 stats_of(Which which, int stage, int column) const {
        const int at = column / kFlashTile * kStatsBlock + which * kFlashTile + column % kFlashTile;
        const HopperTile<kTmaColumns> rows{shared.stats[stage]};
        return *reinterpret_cast<const float2*>(rows.at(at / kStatsRowFloats, at % kStatsRowFloats / 4) + at % 4 * 4);
    }
    struct WindowLeft {
        int of_first, of_next;
    };
    DEVICE WindowLeft window_left(int stage, int column) const {
        if (!s.starts) return {s.window, s.window};
        const float2 bits = stats_of(kWindowLeft, stage, column);
        return {__float_as_int(bits.x), __float_as_int(bits.y)};
    }
    // The column of an accumulator's elements j and j + 2; that of j + 1 and j + 3 is the next.
    DEVICE static int column(int j) { return j / 4 * 8 + lane_id() % 4 * 2; }

    // Whether the mask hides any of the keys from any of the queries from t on.
    DEVICE bool hides_any(int stage, int t) const {
        return first_key + 63 > t || t + kQueries - 1 - window_left(stage, kQueries - 2).of_next > first_key;
    }
    DEVICE void hide(float (&x)[kQueries / 2], int stage, int t) const {
#pragma unroll
        for (int j = 0; j < kQueries / 2; j += 4) {
            const WindowLeft left = window_left(stage, column(j));
#pragma unroll
            for (int i = j; i < j + 4; i += 2) {
                const int key = own_row(first_key, i / 2 % 2), query = t + column(j);
                if (!in_window(query, key, left.of_first)) x[i] = 0;
                if (!in_window(query + 1, key, left.of_next)) x[i + 1] = 0;
            }
        }
    }
    // Turns S into P, in place.
    DEVICE void weigh(int stage) {
#pragma unroll
        for (int j = 0; j < kQueries / 2; j += 4) {
            const float2 log2 = stats_of(kLog2, stage, column(j));
#pragma unroll
            for (int i = j; i < j + 4; i += 2) {
                scores[i] = fast_exp2(fmaf(scores[i], s.scale_log2, -log2.x));
                scores[i + 1] = fast_exp2(fmaf(scores[i + 1], s.scale_log2, -log2.y));
            }
        }
    }
    // Turns dP into dS, in place.
    DEVICE void differentiate(int stage) {
#pragma unroll
        for (int j = 0; j < kQueries / 2; j += 4) {
            const float2 D = stats_of(kD, stage, column(j));
#pragma unroll
            for (int i = j; i < j + 4; i += 2) {
                dp[i] = scores[i] * (dp[i] - D.x);
                dp[i + 1] = scores[i + 1] * (dp[i + 1] - D.y);
            }
        }
    }

    // Adds what load i contributes: the queries from t on.
    DEVICE void add(int i, int t) {
        const int place = i % Pairs::kStages;
        const typename Pairs::Own keys{shared.tiles.own[0]}, values{shared.tiles.own[1]};
        const typename Pairs::Other queries{shared.tiles.other[place][0]}, dout{shared.tiles.other[place][1]};
        HopperStage& stage = shared.tiles.wait_for_tiles(i);
        wgmma_fence();
        multiply_by_rows<HS, kQueries>(scores, keys, row, queries);
        wgmma_commit();
        multiply_by_rows<HS, kQueries>(dp, values, row, dout);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_pin(scores);
        const bool hides = hides_any(place, t);
        weigh(place);
        if (hides) hide(scores, place, t);
        round_pairs<kQueries>(weights, scores);
        wgmma_wait<0>();
        wgmma_pin(dp);
        differentiate(place);
        if (hides) hide(dp, place, t);
        round_pairs<kQueries>(ds, dp);
        wgmma_pin(weights);
        wgmma_pin(ds);
        wgmma_pin(dv);
        wgmma_pin(dk);
        wgmma_fence();
        multiply<HS, kQueries>(dv, weights, dout);
        multiply<HS, kQueries>(dk, ds, queries);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(dv);
        wgmma_pin(dk);
        fence_async();  // stats were read by ordinary loads
        __syncwarp();
        release(&stage.empty);
    }
    DEVICE void walk(int first, int last) {
        mbarrier_wait(&shared.tiles.own_full, 0);
        int i = 0;
#pragma unroll 1
        for (int h = 0; h < s.group; h++)
#pragma unroll 1
            for (int tile = first; tile <= last; tile++) add(i++, tile * kQueries);
    }
    DEVICE void store(bf16* dqkv, int b, int kv) const {
        const FlashHead<bf16> grad(dqkv, s, b, first_key, kv * s.group, s.HS);
        store_rows<HS>(grad.k, s.row, s.T - first_key, s.HS, {shared.tiles.own[0]}, row, dk, {s.scale, s.scale});
        store_rows<HS>(grad.v, s.row, s.T - first_key, s.HS, {shared.tiles.own[1]}, row, dv, {1, 1});
    }
};

struct HopperKeysMaps {
    TensorMap own, queries, dout, stats;  // own: qkv in tiles of keys; queries: qkv in tiles of queries
};

template <int HS>
DEVICE void bring_queries(HopperKeysShared<HS>& shared, const HopperKeysMaps& maps, const FlashShape& s, int b, int kv,
                          int s0, int first, int last) {
    using Pairs = HopperPairs<HS, kHopperQueries<HS>>;
    auto& tiles = shared.tiles;
    mbarrier_arrive_expect(&tiles.own_full, 2 * Pairs::Own::kBytes);
    typename Pairs::Own{tiles.own[0]}.load(maps.own, &tiles.own_full, s.NH + kv, s0, b);
    typename Pairs::Own{tiles.own[1]}.load(maps.own, &tiles.own_full, s.NH + s.num_kv() + kv, s0, b);
    int i = 0;
    for (int h = kv * s.group; h < (kv + 1) * s.group; h++)
        for (int tile = first; tile <= last; tile++, i++) {
            const int place = i % Pairs::kStages, t = tile * kHopperQueries<HS>;
            HopperStage& stage = tiles.wait_for_place(i);
            mbarrier_arrive_expect(&stage.full, 2 * Pairs::Other::kBytes + HopperKeysShared<HS>::kStatsBytes);
            typename Pairs::Other{tiles.other[place][0]}.load(maps.queries, &stage.full, h, t, b);
            typename Pairs::Other{tiles.other[place][1]}.load(maps.dout, &stage.full, h, t, b);
            tma_load(shared.stats[place], maps.stats, &stage.full, 0, t / kFlashTile * kStatsRows, h, b);
        }
}

template <int HS>
__global__ void __launch_bounds__(kHopperThreads, 1)
    flash_backward_keys_hopper_kernel(bf16* dqkv, const __grid_constant__ HopperKeysMaps maps, FlashShape s) {
    wait_for_previous_kernels();
    SMEM_DYNAMIC(HopperKeysShared<HS>, shared);
    constexpr int kQueries = kHopperQueries<HS>;
    const int b = blockIdx.z, kv = blockIdx.y, s0 = int(blockIdx.x) * kHopperRows;
    const int first = s0 / kQueries, last = uniform(s.last_tile(b, s0, kHopperRows, kQueries));
    if (threadIdx.x == 0) init_barriers(shared->tiles);
    __syncthreads();
    if (warpgroup_id() == 0) {
        give_registers<24>();
        if (threadIdx.x == 0) bring_queries<HS>(*shared, maps, s, b, kv, s0, first, last);
    } else {
        take_registers<240>();
        HopperKeys<HS> keys(*shared, s, s0);
        keys.walk(first, last);
        keys.store(dqkv, b, kv);
    }
}

// One warpgroup's part of the kernel for queries: 64 queries. Rows of S and dP are queries, columns keys.
template <int HS>
struct HopperQueryGradients {
    static constexpr int kKeys = kHopperRows;
    using Pairs = HopperPairs<HS, kKeys>;
    Pairs& shared;
    const FlashShape& s;
    int row, first_t, window_left[2];  // its first row in the tile; that row's query
    int sure_first;                    // the first key that all of its queries see
    float log2[2], D[2], dq[HS / 2] = {}, scores[kKeys / 2], dp[kKeys / 2];
    uint32_t ds[kKeys / 16][4];

    DEVICE HopperQueryGradients(Pairs& shared, const FlashShape& s, const float* stats, int b, int h, int t0)
        : shared(shared), s(s), row((warpgroup_id() - 1) * 64), first_t(t0 + row) {
        stats += (int64_t(b) * s.NH + h) * ceil_div(s.T, kFlashTile) * kStatsBlock;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = query(half);
            window_left[half] = s.window_left(b, t);
            const float* const own = stats + t / kFlashTile * kStatsBlock + t % kFlashTile;
            log2[half] = t < s.T ? own[0] : INFINITY;
            D[half] = t < s.T ? own[kFlashTile] : 0;
        }
        sure_first = first_t + 63 - s.window_left(b, first_t + 63);
    }
    DEVICE int query(int half) const { return own_row(first_t, half); }
    DEVICE void hide(float (&x)[kKeys / 2], int s0) const {
#pragma unroll
        for (int j = 0; j < kKeys / 2; j++) {
            const int key = s0 + j / 4 * 8 + lane_id() % 4 * 2 + j % 2, half = j / 2 % 2;
            if (!in_window(query(half), key, window_left[half])) x[j] = 0;
        }
    }

    // Adds what load i contributes: the keys from s0 on.
    DEVICE void add(int i, int s0) {
        const int place = i % Pairs::kStages;
        const typename Pairs::Own queries{shared.own[0]}, dout{shared.own[1]};
        const typename Pairs::Other keys{shared.other[place][0]}, values{shared.other[place][1]};
        HopperStage& stage = shared.wait_for_tiles(i);
        wgmma_fence();
        multiply_by_rows<HS, kKeys>(scores, queries, row, keys);
        wgmma_commit();
        multiply_by_rows<HS, kKeys>(dp, dout, row, values);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_pin(scores);
        const bool hides = s0 + kKeys - 1 > first_t || s0 < sure_first;
#pragma unroll
        for (int j = 0; j < kKeys / 2; j++) scores[j] = fast_exp2(fmaf(scores[j], s.scale_log2, -log2[j / 2 % 2]));
        wgmma_wait<0>();
        wgmma_pin(dp);
#pragma unroll
        for (int j = 0; j < kKeys / 2; j++) dp[j] = scores[j] * (dp[j] - D[j / 2 % 2]);
        if (hides) hide(dp, s0);
        round_pairs<kKeys>(ds, dp);
        wgmma_pin(ds);
        wgmma_pin(dq);
        wgmma_fence();
        multiply<HS, kKeys>(dq, ds, keys);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(dq);
        release(&stage.empty);
    }
    DEVICE void walk(int first, int last) {
        mbarrier_wait(&shared.own_full, 0);
#pragma unroll 1
        for (int tile = first; tile <= last; tile++) add(tile - first, tile * kKeys);
    }
    DEVICE void store(bf16* dqkv, int b, int h) const {
        store_rows<HS>(FlashHead<bf16>(dqkv, s, b, first_t, h, s.HS).q, s.row, s.T - first_t, s.HS, {shared.own[0]},
                       row, dq, {s.scale, s.scale});
    }
};

template <int HS>
DEVICE void bring_keys(HopperPairs<HS, kHopperRows>& shared, const TensorMap& qkv, const TensorMap& dout,
                       const FlashShape& s, int b, int h, int t0, int first, int last) {
    using Tile = HopperTile<HS>;
    const int key_head = s.NH + h / s.group;
    mbarrier_arrive_expect(&shared.own_full, 2 * Tile::kBytes);
    Tile{shared.own[0]}.load(qkv, &shared.own_full, h, t0, b);
    Tile{shared.own[1]}.load(dout, &shared.own_full, h, t0, b);
    for (int i = 0; i <= last - first; i++) {
        HopperStage& stage = shared.wait_for_place(i);
        unsigned char(&to)[2][Tile::kBytes] = shared.other[i % shared.kStages];
        mbarrier_arrive_expect(&stage.full, 2 * Tile::kBytes);
        Tile{to[0]}.load(qkv, &stage.full, key_head, (first + i) * kHopperRows, b);
        Tile{to[1]}.load(qkv, &stage.full, key_head + s.num_kv(), (first + i) * kHopperRows, b);
    }
}

template <int HS>
__global__ void __launch_bounds__(kHopperThreads, 1)
    flash_backward_queries_hopper_kernel(bf16* dqkv, const float* stats, const __grid_constant__ TensorMap qkv,
                                         const __grid_constant__ TensorMap dout, FlashShape s) {
    wait_for_previous_kernels();
    using Pairs = HopperPairs<HS, kHopperRows>;
    SMEM_DYNAMIC(Pairs, shared);
    const int b = blockIdx.z, h = blockIdx.y;
    const int t0 = int(gridDim.x - 1 - blockIdx.x) * kHopperRows;  // the longest first
    const int first = s.first_tile(b, t0, kHopperRows), last = (min(t0 + kHopperRows, s.T) - 1) / kHopperRows;
    if (threadIdx.x == 0) init_barriers(*shared);
    __syncthreads();
    if (warpgroup_id() == 0) {
        give_registers<24>();
        if (threadIdx.x == 0) bring_keys<HS>(*shared, qkv, dout, s, b, h, t0, first, last);
    } else {
        take_registers<240>();
        HopperQueryGradients<HS> queries(*shared, s, stats, b, h, t0);
        queries.walk(first, last);
        queries.store(dqkv, b, h);
    }
}

template <int HS>
void flash_attention_backward_hopper(Cuda& cuda, bf16* dqkv, const bf16* dout, const bf16* out, const float* lse,
                                     const bf16* qkv, const AttentionShape& shape) {
    float* stats = cuda.workspace_of<float>(attention_stats_size(shape));
    attention_stats<HS / 8>(cuda, stats, dout, out, lse, shape, shape.starts != nullptr);
    constexpr int kQueries = kHopperQueries<HS>;
    const auto map_of_dout = [&](int rows) { return map_of_heads(dout, shape, shape.NH, shape.NH * shape.HS, rows); };
    const TensorMap of_qkv = map_of_qkv(qkv, shape, kHopperRows);
    const HopperKeysMaps maps{of_qkv, map_of_qkv(qkv, shape, kQueries), map_of_dout(kQueries),
                              map_of_stats(stats, shape, kQueries)};
    dim3 grid(unsigned(ceil_div(shape.T, kHopperRows)), unsigned(shape.NKV), unsigned(shape.B));
    launch(cuda, {"attention_backward: keys", attention_gemms_cost(shape, 4)}, flash_backward_keys_hopper_kernel<HS>,
           grid, kHopperThreads, sizeof(HopperKeysShared<HS>), dqkv, maps, FlashShape(shape));
    grid.y = unsigned(shape.NH);
    launch(cuda, {"attention_backward: queries", attention_gemms_cost(shape, 3)},
           flash_backward_queries_hopper_kernel<HS>, grid, kHopperThreads, sizeof(HopperPairs<HS, kHopperRows>), dqkv,
           stats, of_qkv, map_of_dout(kHopperRows), FlashShape(shape));
}

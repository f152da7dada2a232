/*
Flash attention backward in bf16 on Hopper, in one pass: five GEMMs per tile of scores, where the kernels of
flash_attention_backward.cuh take seven. A piece of work is 128 keys of one key head. A block walks over the queries
that see them, head by head of the keys' group, with their dout, denominators and D:

  S^T = k q^T,   dP^T = v dout^T,   dv += P^T dout,   dk += dS^T q,   dq += dS k

The schedule is FlashAttention-3's (Shah et al., 2024): one thread loads tiles, in two stages; two warpgroups have 64 of
the keys each, S and dP are computed together, and P and dS, rounded, are A operands in registers for dv and dk. dS also
goes through shared memory, because rows of dq need those of all keys; there the two warpgroups meet, once per tile.

Blocks are persistent: each takes the next piece as long as there are any, and loads its keys while it still computes
the one before. Pieces are ordered by key head, within a head from the last keys to the first.

dq gets a part from every piece that its queries see. The parts are added in f32 in the order of the pieces, so the
result has the same bits each time, on any number of blocks: a block reads the sum, adds to it and writes it back, and
the block with the next part waits for that. Sums are stored as threads hold them, so a warp waits for one warp alone.
As in FlashAttention-3 one lane polls and publishes. __syncwarp orders the others: causality passes through barriers, so
a warp's stores come before its release, and its loads after its acquire. A wait is for an earlier piece, which its
block finishes, hence no deadlock, and which came to the same queries a tile earlier, hence short. The last part is
rounded and stored to dqkv. Sums live in a few slots, which heads take in turns and which stay in the L2 cache; a head
waits until the previous one in its slot is finished.
*/
#pragma once
#include <algorithm>
#include <climits>  // INT_MAX
#include "llmc/cuda/attention/attention_stats.cuh"
#include "llmc/cuda/attention/flash_hopper_tile.cuh"
#include "llmc/ops/op_cost.h"  // attention_gemms_cost

// Queries per stage: as many as leave registers for dk and dv.
template <int HS>
inline constexpr int kHopperQueries = HS == 64 ? 128 : 64;

// Where the sums of dq are, and the counters by which blocks wait for each other. Threads of both warpgroups have sums.
struct HopperSums {
    static constexpr int kThreads = kHopperReaders * kWarpgroup, kOfThread = 32, kWarps = kThreads / kWarp;
    static constexpr int kHeader = 32;  // ints: the next piece; the rest keeps counters aligned
    int* counters = nullptr;            // all 0 at the beginning: the header, then (slots, group, tiles, kWarps)
    float* sums = nullptr;              // (slots, group, tiles, kOfThread / 4, kThreads, 4)
    int slots, group, tiles;            // tiles: of queries
    int pieces, pieces_of_head;

    int64_t num_counters() const { return kHeader + int64_t(slots) * group * tiles * kWarps; }
    int64_t num_sums() const { return int64_t(slots) * group * tiles * kThreads * kOfThread; }

    // A head is under way as long as its longest piece, nearly twice as long as an average one. So there are unfinished
    // sums of nearly twice as many heads as have pieces at a time.
    HopperSums(const AttentionShape& s, int queries, int blocks)
        : group(int(s.NH / s.NKV)),
          tiles(int(ceil_div(s.T, queries))),
          pieces_of_head(int(ceil_div(s.T, kHopperRows))) {
        pieces = int(s.B * s.NKV * pieces_of_head);
        slots = int(std::min<int64_t>(s.B * s.NKV, 2 * ceil_div(std::min(blocks, pieces), pieces_of_head) + 1));
    }
    DEVICE int* next_piece() const { return counters; }
    // Counters and sums of a tile of queries are at `place`, those of a head's first tile at first_place().
    DEVICE int first_place(int head) const { return head % slots * group * tiles; }
    DEVICE int* counter(int place, int warp) const { return counters + kHeader + int64_t(place) * kWarps + warp; }
    // The thread's 4 sums number `i`.
    DEVICE float* sum(int place, int i, int thread) const {
        return sums + ((int64_t(place) * (kOfThread / 4) + i) * kThreads + thread) * 4;
    }
    // A counter has this value when the slot is free for this head, and one more for each part that was added.
    DEVICE int free_for(int head) const { return head / slots * (pieces_of_head + 1); }
};

// Shared memory of a block: two pieces of its own side, keys and values, and two stages of queries and dout.
template <int HS>
struct HopperBackwardShared {
    static constexpr int kStages = 2, kQueries = kHopperQueries<HS>;
    static constexpr int kStats = kQueries / kFlashTile * kStatsBlock;  // floats
    using Own = HopperTile<HS>;
    using Other = HopperTile<HS, kQueries>;
    using Ds = HopperTile<kQueries>;  // a row per key
    unsigned char own[kStages][2][Own::kBytes];
    unsigned char other[kStages][2][Other::kBytes];
    unsigned char ds[kStages][Ds::kBytes];
    float stats[kStages][kQueries / kFlashTile][3][kFlashTile];  // blocks of attention_stats.cuh
    HopperStage own_stages[kStages], stages[kStages];
    // Of the stage's own side; pieces: -1 if there are no more. Its mbarrier orders them; they are written by publish()
    // for the race checker, which does not know mbarriers.
    int pieces[kStages], last_tiles[kStages];

    // Both waits are by parity: use i, from 0 on, is the (i / 2)-th of stage i % 2.
    DEVICE static HopperStage& wait_for_place(HopperStage (&all)[kStages], int i) {
        mbarrier_wait(&all[i % kStages].empty, i / kStages % 2 ^ 1);
        return all[i % kStages];
    }
    DEVICE static HopperStage& wait_for_tiles(HopperStage (&all)[kStages], int i) {
        mbarrier_wait(&all[i % kStages].full, i / kStages % 2);
        return all[i % kStages];
    }
};

static_assert(sizeof(HopperBackwardShared<64>) <= 227 << 10 && sizeof(HopperBackwardShared<128>) <= 227 << 10);

template <int HS>
DEVICE void init_barriers(HopperBackwardShared<HS>& shared) {
#pragma unroll
    for (int i = 0; i < shared.kStages; i++) shared.own_stages[i].init(), shared.stages[i].init();
    mbarrier_fence_init();
}

// A piece of work: the keys [s0, s0 + 128) of key head `kv` of sequence b. `head` counts those of all sequences.
struct HopperPiece {
    int head, b, kv, s0;

    DEVICE HopperPiece(const FlashShape& s, const HopperSums& sums, int piece)
        : head(piece / sums.pieces_of_head),
          b(head / s.num_kv()),
          kv(head % s.num_kv()),
          s0((sums.pieces_of_head - 1 - piece % sums.pieces_of_head) * kHopperRows) {}
};

// One warpgroup's part. Of S and dP, transposed, it has the rows of 64 keys, and all queries as columns. Of dq it has
// 64 x 64: with heads of 64 half of the queries, with heads of 128 half of the columns.
template <int HS>
struct HopperGradients {
    static constexpr int kQueries = kHopperQueries<HS>;
    using Shared = HopperBackwardShared<HS>;
    Shared& shared;
    const FlashShape& s;
    const HopperSums& sums;
    int row, thread;                 // its first row in the tile of keys; the thread's number among both warpgroups
    int first_key = 0;               // the key of that row
    int to_release = -1, value = 0;  // the place of a counter that still must be set, and to what; -1: none
    int tiles = 0;                   // so far
    float dk[HS / 2], dv[HS / 2], scores[kQueries / 2], dp[kQueries / 2], dq[HopperSums::kOfThread];
    uint32_t weights[kQueries / 16][4], ds[kQueries / 16][4];

    DEVICE HopperGradients(Shared& shared, const FlashShape& s, const HopperSums& sums)
        : shared(shared), s(s), sums(sums), row((warpgroup_id() - 1) * 64), thread(int(threadIdx.x) - kWarpgroup) {}

    // Statistic `which` of a stage's queries `column`, which is even, and column + 1.
    enum Which { kLog2, kD, kWindowLeft };
    DEVICE float2 stats_of(Which which, int stage, int column) const {
        return *reinterpret_cast<const float2*>(&shared.stats[stage][column / kFlashTile][which][column % kFlashTile]);
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
    // Stores dS to the warpgroup's rows.
    DEVICE void hand_over(const typename Shared::Ds& to) const {
#pragma unroll
        for (int j = 0; j < kQueries / 2; j += 2)
            *reinterpret_cast<uint32_t*>(to.at(own_row(row, j / 2 % 2), j / 4) + lane_id() % 4 * 4) =
                ds[j / 8][j / 2 % 4];
    }
    // Starts dq += dS k of all 128 keys.
    DEVICE void multiply_all_keys(const typename Shared::Ds& all_ds, const typename Shared::Own& keys, bool add) {
        const int half = row / 64;
        const uint64_t left = wgmma_tile(all_ds.data + (HS == 64 ? half * all_ds.kPartBytes : 0));
        const uint64_t right = wgmma_tile(keys.data + (HS == 64 ? 0 : half * keys.kPartBytes));
#pragma unroll
        for (int k = 0; k < kHopperRows / 16; k++)
            wgmma<64, true, true>(dq, left + 128 * k, right + 128 * k, add || k > 0);
    }

    // Lets the block with the next part go on. Late, after the stores have had time: then it costs no waiting.
    DEVICE void release_sums() {
        __syncwarp();
        if (to_release >= 0 && lane_id() == 0) publish(sums.counter(to_release, thread / kWarp), value);
        to_release = -1;
    }
    DEVICE void store_dq(bf16* dqkv, int b, int h, int t) const {
        const int first_column = HS == 64 ? 0 : row;
        const FlashHead<bf16> grad(dqkv, s, b, 0, h, s.HS);
#pragma unroll
        for (int j = 0; j < HopperSums::kOfThread; j += 2) {
            const int query = own_row(HS == 64 ? t + row : t, j / 2 % 2), at = first_column + column(j);
            if (query < s.T && at < s.HS)
                *reinterpret_cast<uint32_t*>(grad.q + int64_t(query) * s.row + at) =
                    bf16x2(dq[j] * s.scale, dq[j + 1] * s.scale);
        }
    }

    // Adds what the queries [t, t + kQueries) of head h contribute to dk and dv, and the piece's part of their dq. The
    // sums of dq are at place `at`.
    DEVICE void add(bf16* dqkv, const HopperPiece& piece, const typename Shared::Own& keys,
                    const typename Shared::Own& values, int h, int t, int at) {
        const int place = tiles % Shared::kStages;
        const typename Shared::Other queries{shared.other[place][0]}, dout{shared.other[place][1]};
        const typename Shared::Ds all_ds{shared.ds[place]};
        HopperStage& stage = Shared::wait_for_tiles(shared.stages, tiles++);
        wgmma_fence();
        multiply_by_rows<HS, kQueries>(scores, keys, row, queries);
        wgmma_commit();
        multiply_by_rows<HS, kQueries>(dp, values, row, dout);
        wgmma_commit();

        release_sums();
        const int part = (t - piece.s0) / kHopperRows, free = sums.free_for(piece.head);
        const bool is_last = max(0, t - window_left(place, 0).of_first) / kHopperRows * kHopperRows == piece.s0;
        wgmma_wait<1>();
        wgmma_pin(scores);
        const bool hides = hides_any(place, t);
        weigh(place);
        if (hides) hide(scores, place, t);
        wgmma_wait<0>();
        wgmma_pin(dp);
        differentiate(place);
        if (hides) hide(dp, place, t);
        round_pairs<kQueries>(weights, scores);
        round_pairs<kQueries>(ds, dp);
        wgmma_pin(weights);
        wgmma_pin(ds);
        wgmma_pin(dv);
        wgmma_pin(dk);
        wgmma_fence();
        multiply<HS, kQueries>(dv, weights, dout);
        wgmma_commit();
        hand_over(all_ds);  // before dS is an operand in flight, whose registers may not even be read
        fence_async();
        multiply<HS, kQueries>(dk, ds, queries);
        wgmma_commit();
        if (lane_id() == 0) wait_until(sums.counter(at, thread / kWarp), free + part);  // late: GEMMs are under way
        __syncwarp();
#pragma unroll
        for (int i = 0; i < HopperSums::kOfThread / 4; i++) {
            const Pack<float> sum = part > 0 ? load16_uncached(sums.sum(at, i, thread)) : Pack<float>{};
#pragma unroll
            for (int k = 0; k < 4; k++) dq[4 * i + k] = sum.values[k];
        }
        barrier_sync(kBothHandedOver, HopperSums::kThreads);
        wgmma_pin(dq);
        wgmma_fence();
        multiply_all_keys(all_ds, keys, part > 0);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_pin(dv);
        wgmma_pin(dk);
        fence_async();  // stats were read by ordinary loads
        __syncwarp();
        release(&stage.empty);
        wgmma_wait<0>();
        wgmma_pin(dq);
        if (is_last)
            store_dq(dqkv, piece.b, h, t);
        else
#pragma unroll
            for (int i = 0; i < HopperSums::kOfThread / 4; i++)
                store16(sums.sum(at, i, thread), Pack<float>{dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]});
        to_release = at;
        value = is_last ? free + sums.pieces_of_head + 1 : free + part + 1;
    }
    DEVICE void compute(bf16* dqkv) {
        for (int i = 0;; i++) {
            const int place = i % Shared::kStages;
            HopperStage& stage = Shared::wait_for_tiles(shared.own_stages, i);
            const int number = uniform(published(&shared.pieces[place]));
            if (number < 0) return;
            const HopperPiece piece(s, sums, number);
            const int first = piece.s0 / kQueries, last = uniform(published(&shared.last_tiles[place]));
            const typename Shared::Own keys{shared.own[place][0]}, values{shared.own[place][1]};
            first_key = piece.s0 + row;
#pragma unroll
            for (int j = 0; j < HS / 2; j++) dk[j] = dv[j] = 0;
#pragma unroll 1
            for (int i = 0; i < s.group; i++)
#pragma unroll 1
                for (int tile = first; tile <= last; tile++)
                    add(dqkv, piece, keys, values, piece.kv * s.group + i, tile * kQueries,
                        sums.first_place(piece.head) + i * sums.tiles + tile);
            release_sums();
            barrier_sync(kBothFinished, HopperSums::kThreads);  // neither reads the keys any more
            const FlashHead<bf16> grad(dqkv, s, piece.b, first_key, piece.kv * s.group, s.HS);
            store_rows<HS>(grad.k, s.row, s.T - first_key, s.HS, keys, row, dk, {s.scale, s.scale});
            store_rows<HS>(grad.v, s.row, s.T - first_key, s.HS, values, row, dv, {1, 1});
            fence_async();
            __syncwarp();
            release(&stage.empty);
        }
    }
};

struct HopperBackwardInputs {
    TensorMap keys, queries, dout;  // keys, queries: qkv in tiles of either side
    const float* stats;             // (B, NH, tiles of kQueries / 64, 3, 64)
};

// Run by one thread: loads the tiles of the block's `i`-th piece. `tiles`: of queries, in a sequence; `loads`: so far.
template <int HS>
DEVICE void load_piece(HopperBackwardShared<HS>& shared, HopperStage& own, const HopperBackwardInputs& inputs,
                       const FlashShape& s, const HopperPiece& piece, int tiles, int i, int first, int last,
                       int& loads) {
    using Shared = HopperBackwardShared<HS>;
    using Own = typename Shared::Own;
    using Other = typename Shared::Other;
    unsigned char(&to)[2][Own::kBytes] = shared.own[i % Shared::kStages];
    const int key_head = s.NH + piece.kv;
    mbarrier_arrive_expect(&own.full, 2 * Own::kBytes);
    Own{to[0]}.load(inputs.keys, &own.full, key_head, piece.s0, piece.b);
    Own{to[1]}.load(inputs.keys, &own.full, key_head + s.num_kv(), piece.s0, piece.b);
    for (int h = piece.kv * s.group; h < (piece.kv + 1) * s.group; h++)
        for (int tile = first; tile <= last; tile++, loads++) {
            const int place = loads % Shared::kStages, t = tile * Shared::kQueries;
            HopperStage& stage = Shared::wait_for_place(shared.stages, loads);
            mbarrier_arrive_expect(&stage.full, 2 * Other::kBytes + Shared::kStats * 4);
            Other{shared.other[place][0]}.load(inputs.queries, &stage.full, h, t, piece.b);
            Other{shared.other[place][1]}.load(inputs.dout, &stage.full, h, t, piece.b);
            const int64_t block = (int64_t(piece.b) * s.NH + h) * tiles + tile;
            bulk_load(shared.stats[place], inputs.stats + block * Shared::kStats, Shared::kStats * 4, &stage.full);
        }
}
// Run by one warp: takes pieces and loads them.
template <int HS>
DEVICE void load_pieces(HopperBackwardShared<HS>& shared, const HopperBackwardInputs& inputs, const FlashShape& s,
                        const HopperSums& sums, int most_pieces) {
    using Shared = HopperBackwardShared<HS>;
    int loads = 0;
    bool ends = false;
    for (int i = 0; !ends; i++) {
        int number = sums.pieces;
        if (lane_id() == 0 && i < most_pieces) number = atomicAdd(sums.next_piece(), 1);
        number = uniform(number);
        ends = number >= sums.pieces;
        const HopperPiece piece(s, sums, ends ? 0 : number);
        const int first = piece.s0 / Shared::kQueries;
        const int last = s.last_tile(piece.b, piece.s0, kHopperRows, Shared::kQueries);
        if (lane_id() == 0) {
            HopperStage& own = Shared::wait_for_place(shared.own_stages, i);
            publish(&shared.pieces[i % Shared::kStages], ends ? -1 : number);
            publish(&shared.last_tiles[i % Shared::kStages], last);
            ends ? mbarrier_arrive(&own.full)
                 : load_piece<HS>(shared, own, inputs, s, piece, sums.tiles, i, first, last, loads);
        }
        __syncwarp();
    }
}

// most_pieces: that a block takes.
template <int HS>
__global__ void __launch_bounds__(kHopperThreads, 1)
    flash_backward_hopper_kernel(bf16* dqkv, const __grid_constant__ HopperBackwardInputs inputs, FlashShape s,
                                 HopperSums sums, int most_pieces) {
    SMEM_DYNAMIC(HopperBackwardShared<HS>, shared);
    if (threadIdx.x == 0) init_barriers(*shared);
    __syncthreads();
    if (warpgroup_id() == 0) {
        give_registers<24>();
        if (warp_id() == 0) load_pieces<HS>(*shared, inputs, s, sums, most_pieces);
    } else {
        take_registers<240>();
        HopperGradients<HS>(*shared, s, sums).compute(dqkv);
    }
}

inline int64_t align_floats(int64_t n) { return ceil_div(n, 32) * 32; }  // to 128 bytes
inline int64_t hopper_backward_floats(const Cuda& cuda, const AttentionShape& shape) {
    const int queries = shape.HS <= 64 ? kHopperQueries<64> : kHopperQueries<128>;
    const HopperSums sums(shape, queries, cuda.num_sms);
    return align_floats(attention_stats_size(shape, queries)) + align_floats(sums.num_counters()) + sums.num_sums();
}

// most_pieces: per block. On a GPU, where blocks run at the same time, there is no reason for a limit.
template <int HS>
void flash_attention_backward_hopper(Cuda& cuda, bf16* dqkv, const bf16* dout, const bf16* out, const float* lse,
                                     const bf16* qkv, const AttentionShape& shape, int most_pieces = INT_MAX) {
    constexpr int kQueries = kHopperQueries<HS>;
    HopperSums sums(shape, kQueries, cuda.num_sms);
    float* const stats = cuda.workspace_of<float>(hopper_backward_floats(cuda, shape));
    sums.counters = reinterpret_cast<int*>(stats + align_floats(attention_stats_size(shape, kQueries)));
    sums.sums = reinterpret_cast<float*>(sums.counters) + align_floats(sums.num_counters());
    attention_stats<HS / 8>(cuda, stats, dout, out, lse, shape, shape.starts != nullptr, kQueries,
                            {sums.counters, sums.num_counters()});
    const HopperBackwardInputs inputs{map_of_qkv(qkv, shape, kHopperRows), map_of_qkv(qkv, shape, kQueries),
                                      map_of_heads(dout, shape, shape.NH, shape.NH * shape.HS, kQueries), stats};
    const int blocks = std::max(std::min(sums.pieces, cuda.num_sms), int(ceil_div(int64_t(sums.pieces), most_pieces)));
    launch(cuda, {"attention_backward", attention_gemms_cost(shape, 5)}, flash_backward_hopper_kernel<HS>,
           unsigned(blocks), kHopperThreads, sizeof(HopperBackwardShared<HS>), dqkv, inputs, FlashShape(shape), sums,
           most_pieces);
}

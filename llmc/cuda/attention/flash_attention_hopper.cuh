/*
Flash attention forward in bf16 on Hopper, after FlashAttention-3 (Shah et al., 2024, arXiv:2407.08608): the equation,
the shapes and the figures are in attention.cuh.

A block has 128 queries of a head and walks over their keys 128 at a time, from the last, where masks are, to the first.
One thread of the first warpgroup issues TMA loads of queries, keys and values, with two tiles of keys and of values in
flight; columns past the head's and rows past the end are zeros. Two warpgroups have 64 queries each:
  - the scores of a tile are computed while the weights of the tile before it are multiplied by its values, and become
    weights while that GEMM is still running;
  - they take turns (barriers kFirstTurn and the next), so that one multiplies while the other computes weights.
*/
#pragma once
#include "llmc/cuda/attention/flash_hopper_tile.cuh"
#include "llmc/ops/op_cost.h"  // attention_gemms_cost

template <int HS>
struct HopperShared {
    static constexpr int kStages = 2;
    unsigned char queries[HopperTile<HS>::kBytes];
    unsigned char keys[kStages][HopperTile<HS>::kBytes];
    unsigned char values[kStages][HopperTile<HS>::kBytes];
    Mbarrier queries_full;
    HopperStage key_stages[kStages], value_stages[kStages];
};

// On one thread: loads the tiles first..last of keys and of values, last to first. Values come one step later, when
// they are needed.
template <int HS>
DEVICE void bring_tiles(HopperShared<HS>& shared, const TensorMap& qkv, const FlashShape& s, int b, int h, int t0,
                        int first, int last) {
    const int key_head = s.NH + h / s.group, value_head = key_head + s.num_kv();
    for (int i = 0; i <= last - first + 1; i++) {
        if (i <= last - first) {
            HopperStage& stage = shared.key_stages[i % 2];
            mbarrier_wait(&stage.empty, i / 2 % 2 ^ 1);
            mbarrier_arrive_expect(&stage.full, HopperTile<HS>::kBytes);
            HopperTile<HS>{shared.keys[i % 2]}.load(qkv, &stage.full, key_head, (last - i) * kHopperRows, b);
        }
        if (i == 0) {
            mbarrier_arrive_expect(&shared.queries_full, HopperTile<HS>::kBytes);
            HopperTile<HS>{shared.queries}.load(qkv, &shared.queries_full, h, t0, b);
        } else {
            const int j = i - 1;
            HopperStage& stage = shared.value_stages[j % 2];
            mbarrier_wait(&stage.empty, j / 2 % 2 ^ 1);
            mbarrier_arrive_expect(&stage.full, HopperTile<HS>::kBytes);
            HopperTile<HS>{shared.values[j % 2]}.load(qkv, &stage.full, value_head, (last - j) * kHopperRows, b);
        }
    }
}

// One warpgroup's part: 64 queries.
template <int HS>
struct HopperQueries {
    static constexpr int kKeys = kHopperRows;
    HopperShared<HS>& shared;
    const FlashShape& s;
    int reader, row, first_t, window_left[2];  // warpgroup; its first row in the tile; that row's query
    int sure_first;                            // the first key that all of its queries see
    float sum[HS / 2] = {}, scores[kKeys / 2];
    uint32_t weights[kKeys / 16][4];
    float max_score[2] = {-INFINITY, -INFINITY}, sum_exp[2] = {};

    DEVICE HopperQueries(HopperShared<HS>& shared, const FlashShape& s, int b, int t0)
        : shared(shared), s(s), reader(int(threadIdx.x) / kWarpgroup - 1), row(reader * 64), first_t(t0 + row) {
#pragma unroll
        for (int half = 0; half < 2; half++) window_left[half] = s.window_left(b, query(half));
        sure_first = first_t + 63 - s.window_left(b, first_t + 63);
    }
    DEVICE int query(int half) const { return own_row(first_t, half); }

    // Starts scores = q k^T of tile i.
    DEVICE void multiply_keys(int i) {
        multiply_by_rows<HS, kKeys>(scores, {shared.queries}, row, {shared.keys[i % 2]});
        wgmma_commit();
    }
    // Starts sum += weights v of tile i.
    DEVICE void multiply_values(int i) {
        multiply<HS, kKeys>(sum, weights, {shared.values[i % 2]});
        wgmma_commit();
    }

    DEVICE float scaled(float score) const { return __fmul_rn(score, s.scale_log2); }
    // The scaled maximum, subtracted from a row's scaled scores before 2^x; 0 while the row has seen no key. It is
    // rounded the same way each time, so a row whose maximum does not change is rescaled by exactly 1.
    DEVICE float scaled_max(float most) const { return most == -INFINITY ? 0 : scaled(most); }

    // Turns the scores of the keys from s0 on into weights, in float; `rescale` gets the factors of earlier sums.
    DEVICE void weigh(int s0, float (&rescale)[2]) {
        if (s0 + kKeys - 1 > first_t || s0 < sure_first)
#pragma unroll
            for (int j = 0; j < kKeys / 2; j++) {
                const int key = s0 + j / 4 * 8 + lane_id() % 4 * 2 + j % 2, half = j / 2 % 2;
                if (!in_window(query(half), key, window_left[half])) scores[j] = -INFINITY;
            }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = max_score[half];
#pragma unroll
            for (int j = 2 * half; j < kKeys / 2; j += 4) most = fmaxf(most, fmaxf(scores[j], scores[j + 1]));
            most = row_max(most);
            const float shift = scaled_max(most);
            rescale[half] = fast_exp2(scaled(max_score[half]) - shift);
            max_score[half] = most;
            sum_exp[half] *= rescale[half];
#pragma unroll
            for (int j = 2 * half; j < kKeys / 2; j += 4)
#pragma unroll
                for (int k = j; k < j + 2; k++) {
                    scores[k] = fast_exp2(fmaf(scores[k], s.scale_log2, -shift));
                    sum_exp[half] += scores[k];
                }
        }
    }
    // Rounds the weights to an A operand. Its registers must be free: the GEMM that read them must have finished.
    DEVICE void round_weights() { round_pairs<kKeys>(weights, scores); }
    DEVICE void rescale_sum(const float (&rescale)[2]) {
#pragma unroll
        for (int j = 0; j < HS / 2; j++) sum[j] *= rescale[j / 2 % 2];
    }

    DEVICE void take_turn() const { barrier_sync(kFirstTurn + reader, kHopperReaders * kWarpgroup); }
    DEVICE void give_turn() const { barrier_arrive(kFirstTurn + (reader ^ 1), kHopperReaders * kWarpgroup); }

    DEVICE void walk(int first, int last) {
        if (reader == 1) give_turn();  // the other one begins
        float rescale[2];
        mbarrier_wait(&shared.queries_full, 0);
        mbarrier_wait(&shared.key_stages[0].full, 0);
        take_turn();
        wgmma_fence();
        multiply_keys(0);
        if (reader == 0 || first < last) give_turn();
        wgmma_wait<0>();
        wgmma_pin(scores);
        release(&shared.key_stages[0].empty);
        weigh(last * kKeys, rescale);
        round_weights();
#pragma unroll 1
        for (int i = 1; i <= last - first; i++) {
            HopperStage &keys = shared.key_stages[i % 2], &values = shared.value_stages[(i - 1) % 2];
            mbarrier_wait(&keys.full, i / 2 % 2);
            mbarrier_wait(&values.full, (i - 1) / 2 % 2);
            take_turn();
            wgmma_pin(sum);
            wgmma_pin(weights);
            wgmma_fence();
            multiply_keys(i);
            multiply_values(i - 1);
            if (reader == 0 || i < last - first) give_turn();
            wgmma_wait<1>();
            wgmma_pin(scores);
            release(&keys.empty);
            weigh((last - i) * kKeys, rescale);
            wgmma_wait<0>();
            wgmma_pin(sum);
            release(&values.empty);
            rescale_sum(rescale);
            round_weights();
        }
        const int i = last - first;
        mbarrier_wait(&shared.value_stages[i % 2].full, i / 2 % 2);
        wgmma_pin(sum);
        wgmma_pin(weights);
        wgmma_fence();
        multiply_values(i);
        wgmma_wait<0>();
        wgmma_pin(sum);
    }

    // Stores the sums as rows of out, through the queries' shared memory, and the logarithms of their denominators.
    DEVICE void store(bf16* out, float* lse, int b, int h) {
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float total = row_sum(sum_exp[half]);
            factor[half] = 1 / total;
            if (query(half) < s.T && lane_id() % 4 == 0)
                lse[(int64_t(b) * s.NH + h) * s.T + query(half)] = max_score[half] * s.scale + logf(total);
        }
        store_rows<HS>(head_of_out(out, s, b, first_t, h, s.HS), s.out_row, s.T - first_t, s.HS, {shared.queries}, row,
                       sum, factor);
    }
};

template <int HS>
__global__ void __launch_bounds__(kHopperThreads, 1)
    flash_forward_hopper_kernel(bf16* out, float* lse, const __grid_constant__ TensorMap qkv, FlashShape s) {
    SMEM_DYNAMIC(HopperShared<HS>, shared);
    const int b = blockIdx.z, h = blockIdx.y;
    const int t0 = int(gridDim.x - 1 - blockIdx.x) * kHopperRows;  // the longest first
    const int first = s.first_tile(b, t0, kHopperRows), last = (min(t0 + kHopperRows, s.T) - 1) / kHopperRows;
    if (threadIdx.x == 0) {
        mbarrier_init(&shared->queries_full, 1);
#pragma unroll
        for (int i = 0; i < HopperShared<HS>::kStages; i++)
#pragma unroll
            for (HopperStage* stage : {&shared->key_stages[i], &shared->value_stages[i]}) stage->init();
        mbarrier_fence_init();
    }
    __syncthreads();
    if (warpgroup_id() == 0) {
        give_registers<24>();
        if (threadIdx.x == 0) bring_tiles<HS>(*shared, qkv, s, b, h, t0, first, last);
    } else {
        take_registers<240>();
        HopperQueries<HS> queries(*shared, s, b, t0);
        queries.walk(first, last);
        queries.store(out, lse, b, h);
    }
}

template <int HS>
void flash_attention_forward_hopper(Cuda& cuda, bf16* out, float* lse, const bf16* qkv, const AttentionShape& shape) {
    const dim3 grid(unsigned(ceil_div(shape.T, kHopperRows)), unsigned(shape.NH), unsigned(shape.B));
    launch(cuda, {"attention_forward", attention_gemms_cost(shape, 2)}, flash_forward_hopper_kernel<HS>, grid,
           kHopperThreads, sizeof(HopperShared<HS>), out, lse, map_of_qkv(qkv, shape, kHopperRows), FlashShape(shape));
}

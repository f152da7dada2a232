/*
Attention in fp32 without tensor cores, for --dtype fp32 and, with conversion at loads and stores, for heads of more
than 128 in bf16: forward, and backward in the two kernels that flash_attention_backward.cuh describes. The equations
are in attention.cuh.

A warp has kFp32Rows rows of one side, in shared memory, and walks over tiles of 32 rows of the other side. Each lane
computes the complete scores of one row of the tile; in the sums over the tile each lane has every 32nd column. Warps
share no sums, so the result has the same bits each time. HS is any multiple of 16 bytes up to 256. In shared memory the
rows of a tile are 4 floats longer, so that 16-byte reads of eight rows are in 32 different banks; a warp reads its own
rows one at a time.

Compute-bound: a 16-byte read feeds 4 kFp32Rows multiply-adds.
*/
#pragma once
#include "llmc/cuda/attention/attention_stats.cuh"
#include "llmc/ops/op_cost.h"  // attention_gemms_cost

inline constexpr int kFp32Warps = 4, kFp32Threads = kFp32Warps * kWarp, kFp32Rows = 4, kFp32Tile = kWarp;
inline constexpr int kFp32BlockRows = kFp32Warps * kFp32Rows;

// Two tensors of the block's own rows, two of the tile's, and each warp's scores.
constexpr size_t attention_fp32_shared_bytes(int64_t HS) {
    return size_t(2 * kFp32BlockRows * HS + 2 * kFp32Tile * (HS + 4) + kFp32BlockRows * kFp32Tile) * sizeof(float);
}
// The limit per block on every GPU since Ampere; sm_86, 89 and 120 have the least.
static_assert(attention_fp32_shared_bytes(kMaxHeadSize) <= 99 << 10);

// to (rows, HS), `pitch` apart  <-  rows [first, first + rows) of a tensor, zeros from row `end` on; by the whole block
template <class T>
DEVICE void load_rows(float* to, int pitch, const T* from, int stride, int first, int rows, int end, int HS) {
    constexpr int P = Pack<T>::size;
    for (int i = threadIdx.x; i < rows * (HS / P); i += kFp32Threads) {
        const int row = i / (HS / P), c = i % (HS / P) * P;
        Pack<T> x{};
        if (first + row < end) x = load16(from + int64_t(first + row) * stride + c);
#pragma unroll
        for (int k = 0; k < P; k += 4)
            store16(to + row * pitch + c + k,
                    Pack<float>{to_float(x[k]), to_float(x[k + 1]), to_float(x[k + 2]), to_float(x[k + 3])});
    }
}
template <class T>
DEVICE void load_own(float* to, const T* from, int stride, int first, int end, int HS) {
    load_rows(to, HS, from, stride, first, kFp32BlockRows, end, HS);
}
template <class T>
DEVICE void load_tile(float* to, const T* from, int stride, int first, int end, int HS) {
    load_rows(to, HS + 4, from, stride, first, kFp32Tile, end, HS);
}

// The lane's dot products: dots[r] = own row r times this lane's row of the tile.
DEVICE void dot_rows(float (&dots)[kFp32Rows], const float* own, const float* other, int HS) {
#pragma unroll
    for (int r = 0; r < kFp32Rows; r++) dots[r] = 0;
    for (int c = 0; c < HS; c += 4) {
        const Pack<float> y = load16(other + threadIdx.x % kWarp * (HS + 4) + c);
#pragma unroll
        for (int r = 0; r < kFp32Rows; r++) {
            const Pack<float> x = load16(own + r * HS + c);
#pragma unroll
            for (int i = 0; i < 4; i++) dots[r] = fmaf(x[i], y[i], dots[r]);
        }
    }
}

// sums[r][j] += sum over the tile's rows i of weights[r][i] times its column lane + 32 j
template <int J>
DEVICE void add_rows(float (&sums)[kFp32Rows][J], const float* weights, const float* tile, int HS) {
    for (int i = 0; i < kFp32Tile; i += 4) {
        Pack<float> w[kFp32Rows];
#pragma unroll
        for (int r = 0; r < kFp32Rows; r++) w[r] = load16(weights + r * kFp32Tile + i);
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int j = 0; j < J; j++) {
                const int c = threadIdx.x % kWarp + kWarp * j;
                const float x = c < HS ? tile[(i + k) * (HS + 4) + c] : 0;
#pragma unroll
                for (int r = 0; r < kFp32Rows; r++) sums[r][j] = fmaf(w[r][k], x, sums[r][j]);
            }
    }
}

// Rows [first, end) of a tensor  <-  the warp's sums times factor[r]
template <class T, int J>
DEVICE void write_rows(T* to, int stride, int first, int end, int HS, const float (&sums)[kFp32Rows][J],
                       const float (&factor)[kFp32Rows]) {
#pragma unroll
    for (int r = 0; r < kFp32Rows; r++)
#pragma unroll
        for (int j = 0; j < J; j++) {
            const int c = threadIdx.x % kWarp + kWarp * j;
            if (c < HS && first + r < end) to[int64_t(first + r) * stride + c] = from_float<T>(sums[r][j] * factor[r]);
        }
}

// The parts of a block's shared memory.
struct Fp32Shared {
    float *own, *own_second, *tile, *tile_second, *weights;  // weights: this warp's

    DEVICE Fp32Shared(float* shared, int HS) {
        own = shared;
        own_second = own + kFp32BlockRows * HS;
        tile = own_second + kFp32BlockRows * HS;
        tile_second = tile + kFp32Tile * (HS + 4);
        weights = tile_second + kFp32Tile * (HS + 4) + threadIdx.x / kWarp * kFp32Rows * kFp32Tile;
    }
};

template <class T, int J>
__global__ void __launch_bounds__(kFp32Threads, 2)
    attention_fp32_forward_kernel(T* out, float* lse, const T* qkv, FlashShape s) {
    SMEM_DYNAMIC(float, memory);
    const int HS = s.HS;
    const Fp32Shared shared(memory, HS);
    const int lane = threadIdx.x % kWarp, b = blockIdx.z, h = blockIdx.y;
    const int t0 = int(blockIdx.x) * kFp32BlockRows, row = threadIdx.x / kWarp * kFp32Rows, t = t0 + row;
    const FlashHead<const T> head(qkv, s, b, 0, h, HS);
    load_own(shared.own, head.q, s.row, t0, s.T, HS);

    float sums[kFp32Rows][J] = {}, max_score[kFp32Rows], sum_exp[kFp32Rows] = {};
    int window_left[kFp32Rows];
#pragma unroll
    for (int r = 0; r < kFp32Rows; r++) {
        max_score[r] = -INFINITY;
        window_left[r] = s.window_left(b, t + r);
    }
    const int first = s.first_tile(b, t0, kFp32Tile), last = min(t0 + kFp32BlockRows, s.T) - 1;
    for (int s0 = first * kFp32Tile; s0 <= last; s0 += kFp32Tile) {
        __syncthreads();  // all warps are done with the previous tile and its weights
        load_tile(shared.tile, head.k, s.row, s0, s.T, HS);
        load_tile(shared.tile_second, head.v, s.row, s0, s.T, HS);
        __syncthreads();
        float scores[kFp32Rows];
        dot_rows(scores, shared.own + row * HS, shared.tile, HS);
#pragma unroll
        for (int r = 0; r < kFp32Rows; r++) {
            const float score = in_window(t + r, s0 + lane, window_left[r]) ? scores[r] : -INFINITY;
            const float new_max = fmaxf(max_score[r], warp_max(score));  // of scores before scaling
            const float shift = new_max == -INFINITY ? 0 : __fmul_rn(new_max, s.scale_log2);
            const float weight = exp2f(fmaf(score, s.scale_log2, -shift));
            const float rescale = exp2f(__fmul_rn(max_score[r], s.scale_log2) - shift);
            max_score[r] = new_max;
            sum_exp[r] = fmaf(sum_exp[r], rescale, warp_sum(weight));
#pragma unroll
            for (int j = 0; j < J; j++) sums[r][j] *= rescale;
            shared.weights[r * kFp32Tile + lane] = weight;
        }
        __syncwarp();
        add_rows(sums, shared.weights, shared.tile_second, HS);
    }
#pragma unroll
    for (int r = 0; r < kFp32Rows; r++) {
        if (lane == 0 && t + r < s.T)
            lse[(int64_t(b) * s.NH + h) * s.T + t + r] = max_score[r] * s.scale + logf(sum_exp[r]);
        sum_exp[r] = 1 / sum_exp[r];
    }
    write_rows(head_of_out(out, s, b, 0, h, HS), s.out_row, t, s.T, HS, sums, sum_exp);
}

// Own rows: queries and dout; tiles: keys and values.
template <class T, int J>
__global__ void __launch_bounds__(kFp32Threads, 2)
    attention_fp32_queries_kernel(T* dqkv, const T* dout, const float* stats, const T* qkv, FlashShape s) {
    SMEM_DYNAMIC(float, memory);
    const int HS = s.HS;
    const Fp32Shared shared(memory, HS);
    const int lane = threadIdx.x % kWarp, b = blockIdx.z, h = blockIdx.y;
    const int t0 = int(blockIdx.x) * kFp32BlockRows, row = threadIdx.x / kWarp * kFp32Rows, t = t0 + row;
    const FlashHead<const T> head(qkv, s, b, 0, h, HS);
    load_own(shared.own, head.q, s.row, t0, s.T, HS);
    load_own(shared.own_second, head_of_out(dout, s, b, 0, h, HS), s.out_row, t0, s.T, HS);
    const float* row_stats = stats + (int64_t(b) * s.NH + h) * ceil_div(s.T, kFlashTile) * kStatsBlock;

    float sums[kFp32Rows][J] = {}, log2_sum[kFp32Rows], D[kFp32Rows], factor[kFp32Rows];
    int window_left[kFp32Rows];
#pragma unroll
    for (int r = 0; r < kFp32Rows; r++) {
        const float* from = row_stats + (t + r) / kFlashTile * kStatsBlock + (t + r) % kFlashTile;
        log2_sum[r] = from[0], D[r] = from[kFlashTile], factor[r] = s.scale;
        window_left[r] = s.window_left(b, t + r);
    }
    const int first = s.first_tile(b, t0, kFp32Tile), last = min(t0 + kFp32BlockRows, s.T) - 1;
    for (int s0 = first * kFp32Tile; s0 <= last; s0 += kFp32Tile) {
        __syncthreads();  // all warps are done with the previous tile and its weights
        load_tile(shared.tile, head.k, s.row, s0, s.T, HS);
        load_tile(shared.tile_second, head.v, s.row, s0, s.T, HS);
        __syncthreads();
        float scores[kFp32Rows], dp[kFp32Rows];
        dot_rows(scores, shared.own + row * HS, shared.tile, HS);
        dot_rows(dp, shared.own_second + row * HS, shared.tile_second, HS);
#pragma unroll
        for (int r = 0; r < kFp32Rows; r++) {
            const float weight = exp2f(fmaf(scores[r], s.scale_log2, -log2_sum[r]));
            const bool seen = in_window(t + r, s0 + lane, window_left[r]);
            shared.weights[r * kFp32Tile + lane] = seen ? weight * (dp[r] - D[r]) : 0;
        }
        __syncwarp();
        add_rows(sums, shared.weights, shared.tile, HS);
    }
    write_rows(FlashHead<T>(dqkv, s, b, 0, h, HS).q, s.row, t, s.T, HS, sums, factor);
}

// Own rows: keys and values; tiles: queries and dout, of each head of the group.
template <class T, int J>
__global__ void __launch_bounds__(kFp32Threads, 2)
    attention_fp32_keys_kernel(T* dqkv, const T* dout, const float* stats, const T* qkv, FlashShape s) {
    SMEM_DYNAMIC(float, memory);
    const int HS = s.HS;
    const Fp32Shared shared(memory, HS);
    const int lane = threadIdx.x % kWarp, b = blockIdx.z, kv = blockIdx.y;
    const int s0 = int(blockIdx.x) * kFp32BlockRows, row = threadIdx.x / kWarp * kFp32Rows, key = s0 + row;
    float dk[kFp32Rows][J] = {}, dv[kFp32Rows][J] = {};
    const int first = s0 / kFp32Tile, last = s.last_tile(b, s0, kFp32BlockRows, kFp32Tile);
    for (int h = kv * s.group; h < (kv + 1) * s.group; h++) {
        const FlashHead<const T> head(qkv, s, b, 0, h, HS);
        if (h == kv * s.group) {
            load_own(shared.own, head.k, s.row, s0, s.T, HS);
            load_own(shared.own_second, head.v, s.row, s0, s.T, HS);
        }
        const T* head_dout = head_of_out(dout, s, b, 0, h, HS);
        const float* row_stats = stats + (int64_t(b) * s.NH + h) * ceil_div(s.T, kFlashTile) * kStatsBlock;
        for (int t0 = first * kFp32Tile; t0 <= last * kFp32Tile; t0 += kFp32Tile) {
            __syncthreads();  // all warps are done with the previous tile and its weights
            load_tile(shared.tile, head.q, s.row, t0, s.T, HS);
            load_tile(shared.tile_second, head_dout, s.out_row, t0, s.T, HS);
            __syncthreads();
            const float* from = row_stats + (t0 + lane) / kFlashTile * kStatsBlock + (t0 + lane) % kFlashTile;
            const float log2_sum = from[0], D = from[kFlashTile];
            const int window_left = s.window_left(b, t0 + lane);
            float scores[kFp32Rows], dp[kFp32Rows], ds[kFp32Rows];
            dot_rows(scores, shared.own + row * HS, shared.tile, HS);
            dot_rows(dp, shared.own_second + row * HS, shared.tile_second, HS);
#pragma unroll
            for (int r = 0; r < kFp32Rows; r++) {
                const bool seen = in_window(t0 + lane, key + r, window_left);
                const float weight = seen ? exp2f(fmaf(scores[r], s.scale_log2, -log2_sum)) : 0;
                shared.weights[r * kFp32Tile + lane] = weight;
                ds[r] = seen ? weight * (dp[r] - D) : 0;
            }
            __syncwarp();
            add_rows(dv, shared.weights, shared.tile_second, HS);
            __syncwarp();  // all lanes have read the weights: dS takes their place
#pragma unroll
            for (int r = 0; r < kFp32Rows; r++) shared.weights[r * kFp32Tile + lane] = ds[r];
            __syncwarp();
            add_rows(dk, shared.weights, shared.tile, HS);
        }
    }
    float one[kFp32Rows], scale[kFp32Rows];
#pragma unroll
    for (int r = 0; r < kFp32Rows; r++) one[r] = 1, scale[r] = s.scale;
    const FlashHead<T> grad(dqkv, s, b, 0, kv * s.group, HS);
    write_rows(grad.k, s.row, key, s.T, HS, dk, scale);
    write_rows(grad.v, s.row, key, s.T, HS, dv, one);
}

template <int J, class T>
void attention_fp32_forward(Cuda& cuda, T* out, float* lse, const T* qkv, const AttentionShape& shape) {
    const dim3 grid(unsigned(ceil_div(shape.T, kFp32BlockRows)), unsigned(shape.NH), unsigned(shape.B));
    launch(cuda, {"attention_forward", attention_gemms_cost(shape, 2)}, attention_fp32_forward_kernel<T, J>, grid,
           kFp32Threads, attention_fp32_shared_bytes(shape.HS), out, lse, qkv, FlashShape(shape));
}

template <int J, class T>
void attention_fp32_backward(Cuda& cuda, T* dqkv, const T* dout, const T* out, const float* lse, const T* qkv,
                             const AttentionShape& shape) {
    float* stats = cuda.workspace_of<float>(attention_stats_size(shape));
    attention_stats<kWarp>(cuda, stats, dout, out, lse, shape);
    const size_t shared_bytes = attention_fp32_shared_bytes(shape.HS);
    dim3 grid(unsigned(ceil_div(shape.T, kFp32BlockRows)), unsigned(shape.NKV), unsigned(shape.B));
    launch(cuda, {"attention_backward: keys", attention_gemms_cost(shape, 4)}, attention_fp32_keys_kernel<T, J>, grid,
           kFp32Threads, shared_bytes, dqkv, dout, stats, qkv, FlashShape(shape));
    grid.y = unsigned(shape.NH);
    launch(cuda, {"attention_backward: queries", attention_gemms_cost(shape, 3)}, attention_fp32_queries_kernel<T, J>,
           grid, kFp32Threads, shared_bytes, dqkv, dout, stats, qkv, FlashShape(shape));
}

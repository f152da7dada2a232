/*
The inputs of attention's backward per row of scores:   D[t] = sum over HS of dout[t] out[t],   the logarithm to base 2
of the softmax's denominator and, for kernels that ask for it, window_left: how many earlier keys the row sees.

  dout, out (B, T, NH, HS)     lse (B, NH, T)     tiles = ceil(T / 64)
  stats (B, NH, tiles, 3, 64): log2, D, and window_left as int32, which is written only if `with_window`
Rows from T on get a denominator of infinity, so that their weights are zero without a mask. The kernel for keys fetches
one block of 192 floats per step, aligned for cp.async.

Memory-bound: reads 2 B T NH HS elements, writes 8 bytes per row, 12 with window_left. D is summed over the lanes
of a row in a fixed order.
*/
#pragma once
#include "llmc/cuda/attention/flash_tile.cuh"
#include "llmc/ops/op_cost.h"  // elements_cost

inline constexpr int kStatsBlock = 3 * kFlashTile;

// For kernels that fetch the statistics of `rows` rows at a time, a multiple of 64: T is rounded up to that.
inline int64_t attention_stats_size(const AttentionShape& s, int rows = kFlashTile) {
    return s.B * s.NH * ceil_div(s.T, rows) * (rows / kFlashTile) * kStatsBlock;
}

// Counters that the first kernel of a backward pass clears for the next one; at most as many as it has threads.
struct ClearedCounters {
    int* counters = nullptr;
    int64_t n = 0;
};

// A group of `lanes` lanes for each of B x (T rounded up) x NH rows, heads next to each other as in memory.
template <class T, int lanes>
__global__ void __launch_bounds__(256)
    attention_stats_kernel(float* stats, const T* dout, const T* out, const float* lse, int64_t rows, int padded_T,
                           bool with_window, ClearedCounters cleared, FlashShape s) {
    const int64_t thread = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, row = thread / lanes;
    if (thread < cleared.n) cleared.counters[thread] = 0;
    const int lane = threadIdx.x % lanes;
    const int h = int(row % s.NH), t = int(row / s.NH % padded_T);
    const int64_t b = row / s.NH / padded_T;
    const bool valid = row < rows && t < s.T;
    float D = 0;
    for (int c = lane * Pack<T>::size; valid && c < s.HS; c += lanes * Pack<T>::size) {
        const int64_t at = ((b * s.T + t) * s.NH + h) * s.HS + c;
        const Pack<T> x = load16_streaming(dout + at), y = load16_streaming(out + at);
#pragma unroll
        for (int i = 0; i < x.size; i++) D = fmaf(to_float(x[i]), to_float(y[i]), D);
    }
    D = warp_sum<lanes>(D);
    if (row >= rows || lane != 0) return;
    const int64_t head = b * s.NH + h;
    float* block = stats + (head * (padded_T / kFlashTile) + t / kFlashTile) * kStatsBlock + t % kFlashTile;
    block[0] = valid ? lse[head * s.T + t] * kLog2E : INFINITY;
    block[kFlashTile] = D;
    if (with_window) reinterpret_cast<int*>(block)[2 * kFlashTile] = s.window_left(int(b), t);
}

template <int lanes, class T>
void attention_stats(Cuda& cuda, float* stats, const T* dout, const T* out, const float* lse,
                     const AttentionShape& shape, bool with_window = false, int rows_at_a_time = kFlashTile,
                     ClearedCounters cleared = {}) {
    const int64_t padded_T = ceil_div(shape.T, rows_at_a_time) * rows_at_a_time, rows = shape.B * shape.NH * padded_T;
    ensure(cleared.n <= rows * lanes);
    launch(cuda, {"attention_backward: row sums", elements_cost<T>(2, 2, shape.B * shape.T * shape.NH * shape.HS)},
           attention_stats_kernel<T, lanes>, unsigned(ceil_div(rows, 256 / lanes)), 256, 0, stats, dout, out, lse, rows,
           int(padded_T), with_window, cleared, FlashShape(shape));
}

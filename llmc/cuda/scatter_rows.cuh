/*
Adds rows to those rows of a table that their tokens select:   table[tokens[n]] += inp[n],   in a fixed order,
without atomics

  table (V, C) f32     inp: N rows of C T, `stride` apart     tokens (N) int32, each in [0, V)
  scales (N, C / width) f32, or null: a factor for each `width` columns of a row

Work      the rows are sorted by token (sort_tokens.cuh), so that each row of the table is written by one thread per
          column. A block sums kRunRows sorted rows; a token whose rows continue in the next blocks leaves partial sums,
          which a second kernel adds up: half of a batch may be one token
Bytes     N*C*sizeof(T), and 8*C per distinct token
Accuracy  f32 sums in an order that differs from the CPU's: N eps at most (test/cuda/embedding_cuda_test.cu)
Requires  C, stride, width % Pack<T>::size == 0, tokens below 2^24, pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/memory.h"         // aligned
#include "llmc/cuda/device.cuh"       // Pack, load16, launch
#include "llmc/cuda/sort_tokens.cuh"  // sort_tokens
#include "llmc/ops/op_cost.h"         // elements_cost

inline constexpr int kRunRows = 64, kRunThreads = 128;

// Block x takes the sorted rows [x kRunRows, ...), block y a range of columns. A run is those of the block's rows that
// have the same token. The sum of a run that began in an earlier block goes to partials[x][0], the first part of one
// that continues in the next to partials[x][1].
template <class T, bool kScaled>
__global__ void __launch_bounds__(kRunThreads)
    scatter_runs_kernel(float* table, float* partials, const T* inp, int64_t stride, const float* scales, int width,
                        const int32_t* tokens, const int32_t* rows, int64_t N, int64_t C) {
    constexpr int P = Pack<T>::size, kAhead = 4;  // rows loaded before they are added
    const int64_t c = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * P;
    if (c >= C) return;
    const int64_t num_scales = kScaled ? C / width : 0, head = kScaled ? c / width : 0;
    const int64_t first = int64_t(blockIdx.x) * kRunRows, end = min(N, first + kRunRows);
    float* own = partials + int64_t(blockIdx.x) * 2 * C + c;
    float sum[P] = {};
    bool began_earlier = first > 0 && tokens[first - 1] == tokens[first];
    for (int64_t i = first; i < end; i += kAhead) {
        Pack<T> x[kAhead];
        float scale[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; j++) {
            const int64_t row = rows[min(i + j, end - 1)];
            x[j] = load16(inp + row * stride + c);
            scale[j] = kScaled ? scales[row * num_scales + head] : 1;
        }
#pragma unroll
        for (int j = 0; j < kAhead; j++) {
            const int64_t at = i + j;
            if (at >= end) break;
            for (int k = 0; k < P; k++) sum[k] = fmaf(to_float(x[j][k]), scale[j], sum[k]);
            const int32_t token = tokens[at];
            const bool goes_on = at + 1 < N && tokens[at + 1] == token;
            if (goes_on && at + 1 < end) continue;
            float* to = began_earlier ? own : goes_on ? own + C : table + int64_t(token) * C + c;
            const bool add = !began_earlier && !goes_on;
            for (int k = 0; k < P; k++) to[k] = add ? to[k] + sum[k] : sum[k], sum[k] = 0;
            began_earlier = false;
        }
    }
}

// Adds up each run that continues after its first block: that block's part and those of the blocks after it, in order.
template <class T = float>
__global__ void __launch_bounds__(kRunThreads)
    scatter_joins_kernel(T* table, const float* partials, const int32_t* tokens, int64_t N, int64_t C) {
    const int64_t c = int64_t(blockIdx.y) * blockDim.x + threadIdx.x, first = int64_t(blockIdx.x) * kRunRows;
    const int64_t next = first + kRunRows;
    if (c >= C || next >= N) return;
    const int32_t token = tokens[next - 1];
    const bool began_here = first == 0 || tokens[first - 1] != token || tokens[first] != token;
    if (!began_here || tokens[next] != token) return;
    float sum = partials[(int64_t(blockIdx.x) * 2 + 1) * C + c];
    for (int64_t block = blockIdx.x + 1; block * kRunRows < N && tokens[block * kRunRows] == token; block++)
        sum += partials[block * 2 * C + c];
    table[int64_t(token) * C + c] += sum;
}

// Bytes of workspace for scatter_rows.
inline size_t scatter_rows_workspace(int64_t N, int64_t C) {
    return aligned(size_t(sort_tokens_size(N)) * sizeof(int32_t)) +
           aligned(size_t(ceil_div(N, int64_t(kRunRows)) * 2 * C) * sizeof(float));
}

template <class T>
void scatter_rows(Cuda& cuda, void* memory, float* table, const T* inp, int64_t stride, const int32_t* tokens,
                  int64_t N, int64_t C, const float* scales = nullptr, int64_t width = 0) {
    float* partials =
        reinterpret_cast<float*>(static_cast<char*>(memory) + aligned(size_t(sort_tokens_size(N)) * sizeof(int32_t)));
    const SortedTokens sorted = sort_tokens(cuda, static_cast<int32_t*>(memory), tokens, N);
    const auto blocks = unsigned(ceil_div(N, int64_t(kRunRows)));
    // A row is read once; each run adds to a row of the table, in float.
    OpCost runs = elements_cost<T>(1, 2, N * C);
    runs.bytes += 2 * 4 * double(N * C);
    launch(cuda, {"scatter_runs", runs}, scales ? scatter_runs_kernel<T, true> : scatter_runs_kernel<T, false>,
           dim3(blocks, unsigned(ceil_div(C, int64_t(kRunThreads * Pack<T>::size)))), kRunThreads, 0, table, partials,
           inp, stride, scales, int(width), sorted.tokens, sorted.rows, N, C);
    launch(cuda, {"scatter_joins", elements_cost<float>(2, 1, int64_t(blocks) * C)}, scatter_joins_kernel<float>,
           dim3(blocks, unsigned(ceil_div(C, int64_t(kRunThreads)))), kRunThreads, 0, table, partials, sorted.tokens, N,
           C);
}

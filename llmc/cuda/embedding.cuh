/*
Embedding:   out[b,t] = wte[tokens[b,t]] + wpe[t]

  tokens (B, T) int32, each in [0, rows of wte)     wte (V, C) T     wpe (max T, C) T     out, dout (B, T, C) T
  dwte (V, C) f32, dwpe (max T, C) f32 +=

Math      f32. dwte: the rows of dout are sorted by token (sort_tokens.cuh), so that each row of dwte is written by one
          thread a column and summed in a fixed order: no atomics
Work      backward: a block sums kRunRows sorted rows; a token whose rows go on in the next blocks leaves partial sums,
          which a second kernel adds up. Half of a batch may be one token. dwpe: a thread adds up B rows
Bytes     forward 3*N*C*sizeof(T); backward 2*N*C*sizeof(T), and 8*C for each token that occurs
Accuracy  f32 sums in an order of their own: N eps at most (test/embedding_cuda_test.cu)
Requires  C % Pack<T>::size == 0, tokens below 2^24, pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"          // require
#include "llmc/base/memory.h"         // aligned
#include "llmc/cuda/device.cuh"       // Pack, load16, store16, launch
#include "llmc/cuda/sort_tokens.cuh"  // sort_tokens

inline constexpr int kEmbeddingThreads = 256;

template <class T>
__global__ void __launch_bounds__(kEmbeddingThreads)
    embedding_forward_kernel(T* out, const int32_t* tokens, const T* wte, const T* wpe, int64_t N, int64_t T_,
                             int64_t C) {
    constexpr int P = Pack<T>::size;
    const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * P;
    if (i >= N * C) return;
    const int64_t row = i / C, c = i % C;
    Pack<T> x = load16(wte + int64_t(tokens[row]) * C + c);
    const Pack<T> position = load16(wpe + row % T_ * C + c);
    for (int k = 0; k < P; k++) x[k] = from_float<T>(to_float(x[k]) + to_float(position[k]));
    store16(out + i, x);
}

template <class T>
void check_embedding(const char* op, int64_t C) {
    require(C % Pack<T>::size == 0, "%s of %ld channels: they must be a multiple of %d, 16 bytes", op, C,
            Pack<T>::size);
}

template <class T>
void embedding_forward(Cuda& cuda, T* out, const int32_t* tokens, const T* wte, const T* wpe, int64_t B, int64_t T_,
                       int64_t C) {
    check_embedding<T>("embedding_forward", C);
    const int64_t N = B * T_, threads = N * C / Pack<T>::size;
    launch(cuda, "embedding_forward", embedding_forward_kernel<T>, unsigned(ceil_div(threads, kEmbeddingThreads)),
           kEmbeddingThreads, 0, out, tokens, wte, wpe, N, T_, C);
}

inline constexpr int kRunRows = 64, kRunThreads = 128;

// Block x takes the sorted rows [x kRunRows, ...), block y a range of columns. A run is what those rows have of one
// token. A run that began in an earlier block is left in partials[x][0], the first part of one that goes on in
// partials[x][1].
template <class T>
__global__ void __launch_bounds__(kRunThreads)
    embedding_runs_kernel(float* dwte, float* partials, const T* dout, const int32_t* tokens, const int32_t* rows,
                          int64_t N, int64_t C) {
    constexpr int P = Pack<T>::size, kAhead = 4;  // rows loaded before they are added
    const int64_t c = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * P;
    if (c >= C) return;
    const int64_t first = int64_t(blockIdx.x) * kRunRows, end = min(N, first + kRunRows);
    float* own = partials + int64_t(blockIdx.x) * 2 * C + c;
    float sum[P] = {};
    bool began_earlier = first > 0 && tokens[first - 1] == tokens[first];
    for (int64_t i = first; i < end; i += kAhead) {
        Pack<T> x[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; j++) x[j] = load16(dout + int64_t(rows[min(i + j, end - 1)]) * C + c);
#pragma unroll
        for (int j = 0; j < kAhead; j++) {
            const int64_t at = i + j;
            if (at >= end) break;
            for (int k = 0; k < P; k++) sum[k] += to_float(x[j][k]);
            const int32_t token = tokens[at];
            const bool goes_on = at + 1 < N && tokens[at + 1] == token;
            if (goes_on && at + 1 < end) continue;
            float* to = began_earlier ? own : goes_on ? own + C : dwte + int64_t(token) * C + c;
            const bool add = !began_earlier && !goes_on;
            for (int k = 0; k < P; k++) to[k] = add ? to[k] + sum[k] : sum[k], sum[k] = 0;
            began_earlier = false;
        }
    }
}

// Each run that goes on beyond its first block: that block's part and those of the blocks behind it, in order.
template <class T = float>
__global__ void __launch_bounds__(kRunThreads)
    embedding_joins_kernel(T* dwte, const float* partials, const int32_t* tokens, int64_t N, int64_t C) {
    const int64_t c = int64_t(blockIdx.y) * blockDim.x + threadIdx.x, first = int64_t(blockIdx.x) * kRunRows;
    const int64_t next = first + kRunRows;
    if (c >= C || next >= N) return;
    const int32_t token = tokens[next - 1];
    const bool began_here = first == 0 || tokens[first - 1] != token || tokens[first] != token;
    if (!began_here || tokens[next] != token) return;
    float sum = partials[(int64_t(blockIdx.x) * 2 + 1) * C + c];
    for (int64_t block = blockIdx.x + 1; block * kRunRows < N && tokens[block * kRunRows] == token; block++)
        sum += partials[block * 2 * C + c];
    dwte[int64_t(token) * C + c] += sum;
}

template <class T>
__global__ void __launch_bounds__(kEmbeddingThreads)
    embedding_positions_kernel(float* dwpe, const T* dout, int64_t B, int64_t T_, int64_t C) {
    constexpr int P = Pack<T>::size;
    const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * P;
    if (i >= T_ * C) return;
    float sum[P] = {};
#pragma unroll 4
    for (int64_t b = 0; b < B; b++) {
        const Pack<T> x = load16(dout + b * T_ * C + i);
        for (int k = 0; k < P; k++) sum[k] += to_float(x[k]);
    }
    for (int k = 0; k < P; k++) dwpe[i + k] += sum[k];
}

// Bytes of workspace for a batch of N tokens.
inline size_t embedding_backward_workspace(int64_t N, int64_t C) {
    return aligned(size_t(sort_tokens_size(N)) * sizeof(int32_t)) +
           size_t(ceil_div(N, int64_t(kRunRows)) * 2 * C) * sizeof(float);
}

template <class T>
void embedding_backward(Cuda& cuda, float* dwte, float* dwpe, const T* dout, const int32_t* tokens, int64_t B,
                        int64_t T_, int64_t C) {
    check_embedding<T>("embedding_backward", C);
    constexpr int64_t P = Pack<T>::size;
    const int64_t N = B * T_;
    char* memory = static_cast<char*>(cuda.workspace(embedding_backward_workspace(N, C)));
    float* partials = reinterpret_cast<float*>(memory + aligned(size_t(sort_tokens_size(N)) * sizeof(int32_t)));
    const SortedTokens sorted = sort_tokens(cuda, reinterpret_cast<int32_t*>(memory), tokens, N);
    const auto blocks = unsigned(ceil_div(N, int64_t(kRunRows)));
    launch(cuda, "embedding_runs", embedding_runs_kernel<T>, dim3(blocks, unsigned(ceil_div(C, kRunThreads * P))),
           kRunThreads, 0, dwte, partials, dout, sorted.tokens, sorted.rows, N, C);
    launch(cuda, "embedding_joins", embedding_joins_kernel<float>,
           dim3(blocks, unsigned(ceil_div(C, int64_t(kRunThreads)))), kRunThreads, 0, dwte, partials, sorted.tokens, N,
           C);
    launch(cuda, "embedding_positions", embedding_positions_kernel<T>,
           unsigned(ceil_div(T_ * C / P, kEmbeddingThreads)), kEmbeddingThreads, 0, dwpe, dout, B, T_, C);
}

/*
Embedding:   out[b,t] = wte[tokens[b,t]] + wpe[t],   or without learned positions, wpe null, out[b,t] = wte[tokens[b,t]]

  tokens (B, T) int32, each in [0, rows of wte)     wte (V, C) T     wpe (max T, C) T     out, dout (B, T, C) T
  dwte (V, C) f32, dwpe (max T, C) f32, may be null +=

The fused form with RMSNorm:   out[n] = x[n] * rstd[n],   x[n] = wte[tokens[n]],
rstd[n] = 1 / sqrt(mean(x[n]^2) + eps);   its backward: dout becomes dx = rstd * (dout - y * mean(dout * y)) with
y = x * rstd, and dwte[tokens[n]] += dx[n]

Math      f32. dwte: in a fixed order without atomics (scatter_rows.cuh)
Work      one pack per thread; dwpe: each thread adds up B rows; fused: one warp per row, kept in shared memory between
          the two passes over it
Bytes     forward 3*N*C*sizeof(T); backward 2*N*C*sizeof(T), and 8*C per distinct token; fused: forward 2, backward's
          norm 3 times N*C*sizeof(T), including the rows of wte, then those of embedding_backward
Accuracy  f32 sums in an order that differs from the CPU's: N eps at most; fused: half a unit of T for stored values,
          including dx, and roundings of f32 (test/cuda/embedding_cuda_test.cu)
Requires  C % Pack<T>::size == 0, tokens below 2^24, pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"           // require
#include "llmc/cuda/device.cuh"        // Pack, load16, store16, warp_sum, launch
#include "llmc/cuda/scatter_rows.cuh"  // scatter_rows
#include "llmc/ops/op_cost.h"          // embedding_backward_cost, kEmbeddingForward, ...

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
    if (wpe) {
        const Pack<T> position = load16(wpe + row % T_ * C + c);
        for (int k = 0; k < P; k++) x[k] = from_float<T>(to_float(x[k]) + to_float(position[k]));
    }
    store16(out + i, x);
}

template <class T>
void check_embedding(const char* op, int64_t C) {
    require(C % Pack<T>::size == 0, "%s of %ld channels: they must be a multiple of %d, 16 bytes", op, C,
            Pack<T>::size);
}

template <class T>
void embedding_forward(Cuda& cuda, T* out, const int32_t* tokens, const T* wte, std::type_identity_t<const T*> wpe,
                       int64_t B, int64_t T_, int64_t C) {
    const OpScope op(cuda, __func__, elements_cost<T>(kEmbeddingForward, B * T_ * C));
    check_embedding<T>("embedding_forward", C);
    const int64_t N = B * T_, threads = N * C / Pack<T>::size;
    launch(cuda, "embedding_forward", embedding_forward_kernel<T>, unsigned(ceil_div(threads, kEmbeddingThreads)),
           kEmbeddingThreads, 0, out, tokens, wte, wpe, N, T_, C);
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

template <class T>
void embedding_backward(Cuda& cuda, float* dwte, float* dwpe, const T* dout, const int32_t* tokens, int64_t B,
                        int64_t T_, int64_t C) {
    const OpScope op(cuda, __func__, embedding_backward_cost<T>(B * T_ * C));
    check_embedding<T>("embedding_backward", C);
    scatter_rows(cuda, cuda.workspace(scatter_rows_workspace(B * T_, C)), dwte, dout, C, tokens, B * T_, C);
    if (dwpe)
        launch(cuda, {"embedding_positions", elements_cost<T>(1, 1, B * T_ * C)}, embedding_positions_kernel<T>,
               unsigned(ceil_div(T_ * C / Pack<T>::size, kEmbeddingThreads)), kEmbeddingThreads, 0, dwpe, dout, B, T_,
               C);
}

inline constexpr int kEmbedRowsPerBlock = 4;

template <class T>
__global__ void __launch_bounds__(kWarp* kEmbedRowsPerBlock)
    embedding_rmsnorm_forward_kernel(T* out, float* rstd, const int32_t* tokens, const T* wte, int64_t N, int C,
                                     float eps) {
    constexpr int P = Pack<T>::size;
    SMEM_DYNAMIC(T, rows);  // (kEmbedRowsPerBlock, C); a lane reads only what it wrote itself
    T* row = rows + threadIdx.y * C;
    const int64_t n = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
    if (n >= N) return;  // whole warps return together
    const T* from = wte + int64_t(tokens[n]) * C;
    const int first = threadIdx.x * P, step = kWarp * P;
    float squares = 0;
    for (int c = first; c < C; c += step) {
        const Pack<T> x = load16(from + c);
        store16(row + c, x);
        for (int k = 0; k < P; k++) squares = fmaf(to_float(x[k]), to_float(x[k]), squares);
    }
    const float s = 1 / sqrtf(warp_sum(squares) / float(C) + eps);
    for (int c = first; c < C; c += step) {
        Pack<T> x = load16(row + c);
        for (int k = 0; k < P; k++) x[k] = from_float<T>(to_float(x[k]) * s);
        store16(out + n * C + c, x);
    }
    if (threadIdx.x == 0) rstd[n] = s;
}

template <class T>
__global__ void __launch_bounds__(kWarp* kEmbedRowsPerBlock)
    embedding_rmsnorm_backward_kernel(T* dout, const int32_t* tokens, const T* wte, const float* rstd, int64_t N,
                                      int C) {
    constexpr int P = Pack<T>::size;
    SMEM_DYNAMIC(T, rows);  // (kEmbedRowsPerBlock, 2, C): x, dout; a lane reads only what it wrote itself
    T *x_row = rows + threadIdx.y * 2 * C, *d_row = x_row + C;
    const int64_t n = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
    if (n >= N) return;  // whole warps return together
    const T* from = wte + int64_t(tokens[n]) * C;
    const int first = threadIdx.x * P, step = kWarp * P;
    const float s = rstd[n];
    float sum = 0;
    for (int c = first; c < C; c += step) {
        const Pack<T> x = load16(from + c), d = load16_streaming(dout + n * C + c);
        store16(x_row + c, x);
        store16(d_row + c, d);
        for (int k = 0; k < P; k++) sum = fmaf(to_float(d[k]), to_float(x[k]) * s, sum);
    }
    const float mean = warp_sum(sum) / float(C);
    for (int c = first; c < C; c += step) {
        const Pack<T> x = load16(x_row + c);
        Pack<T> d = load16(d_row + c);
        for (int k = 0; k < P; k++) d[k] = from_float<T>((to_float(d[k]) - to_float(x[k]) * s * mean) * s);
        store16(dout + n * C + c, d);
    }
}

template <class T>
void embedding_rmsnorm_forward(Cuda& cuda, T* out, float* rstd, const int32_t* tokens, const T* wte, int64_t N,
                               int64_t C, float eps) {
    const OpScope op(cuda, __func__, elements_cost<T>(kEmbeddingRmsnormForward, N * C));
    check_embedding<T>("embedding_rmsnorm_forward", C);
    launch(cuda, "embedding_rmsnorm_forward", embedding_rmsnorm_forward_kernel<T>,
           unsigned(ceil_div(N, kEmbedRowsPerBlock)), dim3(kWarp, kEmbedRowsPerBlock),
           size_t(kEmbedRowsPerBlock) * size_t(C) * sizeof(T), out, rstd, tokens, wte, N, int(C), eps);
}

template <class T>
void embedding_rmsnorm_backward(Cuda& cuda, float* dwte, T* dout, const int32_t* tokens, const T* wte,
                                const float* rstd, int64_t B, int64_t T_, int64_t C) {
    const OpScope op(cuda, __func__, elements_cost<T>(kEmbeddingRmsnormBackward, B * T_ * C));
    check_embedding<T>("embedding_rmsnorm_backward", C);
    const int64_t N = B * T_;
    launch(cuda, "embedding_rmsnorm_backward", embedding_rmsnorm_backward_kernel<T>,
           unsigned(ceil_div(N, kEmbedRowsPerBlock)), dim3(kWarp, kEmbedRowsPerBlock),
           size_t(kEmbedRowsPerBlock) * 2 * size_t(C) * sizeof(T), dout, tokens, wte, rstd, N, int(C));
    embedding_backward(cuda, dwte, nullptr, dout, tokens, B, T_, C);
}

/*
Embedding and RMSNorm without weight, in one pass:   out[n] = x[n] * rstd[n],   x[n] = wte[tokens[n]],
rstd[n] = 1 / sqrt(mean(x[n]^2) + eps);   backward: dout becomes dx = rstd * (dout - y * mean(dout * y)) with
y = x * rstd, and dwte[tokens[n]] += dx[n]

  tokens (N) int32, each in [0, rows of wte), below 2^24     wte (V, C) T     out, dout (N, C) T     rstd (N) f32
  dwte (V, C) f32 +=     dout =     (llmc/ops/embedding_rmsnorm.h)

Math      f32; the scatter into dwte is embedding_backward's, sorted by token and without atomics
Work      one warp per row, kept in shared memory between the two passes over it
Bytes     forward 2, backward's norm 3 times N*C*sizeof(T), including the rows of wte; then those of embedding_backward
Accuracy  half a unit of T for stored values, including dx, and roundings of f32
          (test/cuda/embedding_rmsnorm_cuda_test.cu)
Requires  C % Pack<T>::size == 0, pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"        // require
#include "llmc/cuda/device.cuh"     // Pack, load16, store16, warp_sum, launch
#include "llmc/cuda/embedding.cuh"  // check_embedding, embedding_backward
#include "llmc/ops/op_cost.h"       // embedding_rmsnorm_backward_cost, embedding_rmsnorm_forward_cost

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
    const OpScope op(cuda, __func__, embedding_rmsnorm_forward_cost<T>(N * C));
    check_embedding<T>("embedding_rmsnorm_forward", C);
    launch(cuda, "embedding_rmsnorm_forward", embedding_rmsnorm_forward_kernel<T>,
           unsigned(ceil_div(N, kEmbedRowsPerBlock)), dim3(kWarp, kEmbedRowsPerBlock),
           size_t(kEmbedRowsPerBlock) * size_t(C) * sizeof(T), out, rstd, tokens, wte, N, int(C), eps);
}

template <class T>
void embedding_rmsnorm_backward(Cuda& cuda, float* dwte, T* dout, const int32_t* tokens, const T* wte,
                                const float* rstd, int64_t B, int64_t T_, int64_t C) {
    const OpScope op(cuda, __func__, embedding_rmsnorm_backward_cost<T>(B * T_ * C));
    check_embedding<T>("embedding_rmsnorm_backward", C);
    const int64_t N = B * T_;
    launch(cuda, "embedding_rmsnorm_backward", embedding_rmsnorm_backward_kernel<T>,
           unsigned(ceil_div(N, kEmbedRowsPerBlock)), dim3(kWarp, kEmbedRowsPerBlock),
           size_t(kEmbedRowsPerBlock) * 2 * size_t(C) * sizeof(T), dout, tokens, wte, rstd, N, int(C));
    embedding_backward(cuda, dwte, nullptr, dout, tokens, B, T_, C);
}

/*
Embedding:   out[b,t] = wte[tokens[b,t]] + wpe[t],   or without learned positions, wpe null, out[b,t] = wte[tokens[b,t]]

  tokens (B, T) int32, each in [0, rows of wte)     wte (V, C) T     wpe (max T, C) T     out, dout (B, T, C) T
  dwte (V, C) f32, dwpe (max T, C) f32, may be null +=

Math      f32. dwte: in a fixed order without atomics (scatter_rows.cuh)
Work      one pack per thread; dwpe: each thread adds up B rows
Bytes     forward 3*N*C*sizeof(T); backward 2*N*C*sizeof(T), and 8*C per distinct token
Accuracy  f32 sums in an order that differs from the CPU's: N eps at most (test/cuda/embedding_cuda_test.cu)
Requires  C % Pack<T>::size == 0, tokens below 2^24, pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"           // require
#include "llmc/cuda/device.cuh"        // Pack, load16, store16, launch
#include "llmc/cuda/scatter_rows.cuh"  // scatter_rows
#include "llmc/ops/op_cost.h"          // embedding_backward_cost, embedding_forward_cost

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
    const OpScope op(cuda, __func__, embedding_forward_cost<T>(B * T_ * C));
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

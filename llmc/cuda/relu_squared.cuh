/*
ReLU squared:   out = max(inp, 0)^2,   dinp = 2 max(inp, 0) dout

  inp, out, dinp, dout (n) T     dinp = , and may be dout itself     (llmc/ops/relu_squared.h)

Math      f32; NaN stays NaN
Work      one pack per thread
Bytes     forward 2, backward 3 times n*sizeof(T)
Accuracy  the CPU's bits: one rounding to T (test/cuda/relu_squared_cuda_test.cu)
Requires  n % Pack<T>::size == 0, pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"     // require
#include "llmc/cuda/device.cuh"  // Pack, load16, store16, launch
#include "llmc/ops/op_cost.h"    // kReluSquaredBackward, kReluSquaredForward

inline constexpr int kReluSquaredThreads = 256;

// Not fmaxf(), which gives 0 for a NaN.
DEVICE float relu(float x) { return x < 0 ? 0 : x; }
DEVICE float relu_squared(float x) { return relu(x) * relu(x); }
DEVICE float relu_squared_gradient(float d, float x) { return d * (2 * relu(x)); }

template <class T>
__global__ void __launch_bounds__(kReluSquaredThreads) relu_squared_forward_kernel(T* out, const T* inp, int64_t n) {
    const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * Pack<T>::size;
    if (i >= n) return;
    Pack<T> x = load16_streaming(inp + i);
    for (int k = 0; k < x.size; k++) x[k] = from_float<T>(relu_squared(to_float(x[k])));
    store16(out + i, x);
}

template <class T>
__global__ void __launch_bounds__(kReluSquaredThreads)
    relu_squared_backward_kernel(T* dinp, const T* dout, const T* inp, int64_t n) {
    const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * Pack<T>::size;
    if (i >= n) return;
    const Pack<T> x = load16_streaming(inp + i);
    Pack<T> d = load16_streaming(dout + i);
    for (int k = 0; k < x.size; k++) d[k] = from_float<T>(relu_squared_gradient(to_float(d[k]), to_float(x[k])));
    store16(dinp + i, d);
}

template <class T>
unsigned relu_squared_blocks(int64_t n) {
    require(n % Pack<T>::size == 0, "relu_squared of %ld elements: they must be a multiple of %d, 16 bytes", n,
            Pack<T>::size);
    return unsigned(ceil_div(n, kReluSquaredThreads * Pack<T>::size));
}

template <class T>
void relu_squared_forward(Cuda& cuda, T* out, const T* inp, int64_t n) {
    const OpScope op(cuda, __func__, elements_cost<T>(kReluSquaredForward, n));
    launch(cuda, "relu_squared_forward", relu_squared_forward_kernel<T>, relu_squared_blocks<T>(n), kReluSquaredThreads,
           0, out, inp, n);
}

template <class T>
void relu_squared_backward(Cuda& cuda, T* dinp, const T* dout, const T* inp, int64_t n) {
    const OpScope op(cuda, __func__, elements_cost<T>(kReluSquaredBackward, n));
    launch(cuda, "relu_squared_backward", relu_squared_backward_kernel<T>, relu_squared_blocks<T>(n),
           kReluSquaredThreads, 0, dinp, dout, inp, n);
}

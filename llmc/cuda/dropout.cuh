/*
Dropout:   out[i] = inp[i] * (kept(i) ? 1 / (1 - p) : 0),   kept by random bits that depend on the element's index alone

  inp, out (n) T     out may be inp     (llmc/ops/dropout.h)

Math      f32 and 64-bit integers; NaN stays NaN
Work      one pack per thread, a word of splitmix64 for every two elements
Bytes     2*n*sizeof(T)
Accuracy  the CPU's bits: one rounding to T (test/cuda/dropout_cuda_test.cu)
Requires  n and mask.first % Pack<T>::size == 0, pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"     // require
#include "llmc/base/rng.h"       // Rng, mix64
#include "llmc/cuda/device.cuh"  // Pack, load16, store16, launch
#include "llmc/ops/dropout.h"    // DropoutMask
#include "llmc/ops/op_cost.h"    // kDropout

inline constexpr int kDropoutThreads = 256;

template <class T>
__global__ void __launch_bounds__(kDropoutThreads) dropout_kernel(T* out, const T* inp, DropoutMask mask, int64_t n) {
    const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * Pack<T>::size;
    if (i >= n) return;
    Pack<T> x = load16_streaming(inp + i);
    uint64_t state = mask.key + (mask.first + uint64_t(i)) / 2 * Rng::kStep;
#pragma unroll
    for (int k = 0; k < x.size; k += 2) {
        const uint64_t word = mix64(state += Rng::kStep);
        x[k] = from_float<T>(to_float(x[k]) * (uint32_t(word) >= mask.threshold ? mask.scale : 0.f));
        x[k + 1] = from_float<T>(to_float(x[k + 1]) * (uint32_t(word >> 32) >= mask.threshold ? mask.scale : 0.f));
    }
    store16(out + i, x);
}

template <class T>
void dropout(Cuda& cuda, T* out, const T* inp, DropoutMask mask, int64_t n) {
    const OpScope op(cuda, __func__, elements_cost<T>(kDropout, n));
    require(n % Pack<T>::size == 0 && mask.first % uint64_t(Pack<T>::size) == 0,
            "dropout of %ld elements from %lu on: both must be multiples of %d, 16 bytes", n,
            static_cast<unsigned long>(mask.first), Pack<T>::size);
    launch(cuda, "dropout", dropout_kernel<T>, unsigned(ceil_div(n, kDropoutThreads * Pack<T>::size)), kDropoutThreads,
           0, out, inp, mask, n);
}

/*
Adds one buffer to another:   to[i] += from[i]   over n floats

Work      four elements, 16 bytes, per thread
Bytes     12*n
Accuracy  the CPU's bits: one rounding per element (test/cuda/accumulate_cuda_test.cu)
Requires  pointers 16-byte aligned; any n
*/
#pragma once
#include "llmc/cuda/device.cuh"  // Pack, load16, store16, launch
#include "llmc/ops/op_cost.h"    // accumulate_cost

inline constexpr int kAccumulateThreads = 256;

template <class T>
__global__ void __launch_bounds__(kAccumulateThreads) accumulate_kernel(T* to, const T* from, int64_t n) {
    constexpr int P = Pack<T>::size;
    const int64_t first = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * P;
    if (first + P > n) {
        for (int64_t i = first; i < n; i++) to[i] += from[i];
        return;
    }
    Pack<T> sum = load16(to + first);
    const Pack<T> more = load16_streaming(from + first);
    for (int k = 0; k < P; k++) sum[k] += more[k];
    store16(to + first, sum);
}

inline void accumulate(Cuda& cuda, float* to, const float* from, int64_t n) {
    const OpScope op(cuda, __func__, accumulate_cost(n));
    if (n == 0) return;
    launch(cuda, "accumulate", accumulate_kernel<float>,
           unsigned(ceil_div(n, int64_t(kAccumulateThreads) * Pack<float>::size)), kAccumulateThreads, 0, to, from, n);
}

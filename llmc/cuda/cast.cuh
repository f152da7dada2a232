/*
Converts element types:   out[i] = inp[i]   over n elements, f32 to bf16 (to nearest, ties to even) and back

Work      eight elements per thread: one 16-byte access of the bf16, two of the f32
Bytes     6*n
Accuracy  the CPU's bits; NaN becomes some NaN (test/cuda/cast_cuda_test.cu)
Requires  pointers 16-byte aligned; any n
*/
#pragma once
#include "llmc/cuda/device.cuh"  // Pack, load16, store16, launch
#include "llmc/base/op_scope.h"  // OpCost

inline constexpr int kCastThreads = 256, kCastElements = 8;

template <class To, class From>
__global__ void __launch_bounds__(kCastThreads) cast_kernel(To* out, const From* inp, int64_t n) {
    const int64_t first = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * kCastElements;
    if (first + kCastElements > n) {
        for (int64_t i = first; i < n; i++) out[i] = from_float<To>(to_float(inp[i]));
        return;
    }
    float values[kCastElements];
    for (int k = 0; k < kCastElements; k += Pack<From>::size) {
        const Pack<From> x = load16_streaming(inp + first + k);
        for (int j = 0; j < x.size; j++) values[k + j] = to_float(x[j]);
    }
    for (int k = 0; k < kCastElements; k += Pack<To>::size) {
        Pack<To> x;
        for (int j = 0; j < x.size; j++) x[j] = from_float<To>(values[k + j]);
        store16(out + first + k, x);
    }
}

template <class To, class From>
void cast(Cuda& cuda, To* out, const From* inp, int64_t n) {
    const OpScope op(cuda, __func__, {.bytes = double(sizeof(To) + sizeof(From)) * double(n)});
    launch(cuda, "cast", cast_kernel<To, From>, unsigned(ceil_div(n, kCastThreads * kCastElements)), kCastThreads, 0,
           out, inp, n);
}

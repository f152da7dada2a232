/*
GELU in its tanh form:   out = x/2 * (1 + tanh(u)) = x * s,   u = sqrt(2/pi) * (x + 0.044715 x^3),   s = sigmoid(2u)

  inp, out, dinp, dout (n) T     backward: dinp = dout * (s + x s (1 - s) d(2u)/dx), and may be dout itself
                                 (llmc/cpu/gelu.h has the formulas)

Math      f32; e^-2u by fast_exp2, the quotient by __fdividef; 1 - s as e^-2u s, which does not cancel
Work      two packs per thread, a block's width apart. With amax each block stores its largest magnitude, and one more
          block reduces these
Bytes     forward 2, backward 3 times n*sizeof(T)
Accuracy  f32: forward 6 eps of |x|, backward 12 eps of |dout|; bf16: half an eps more for stored values
          (test/cuda/gelu_cuda_test.cu)
Requires  n % Pack<T>::size == 0, pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"     // require
#include "llmc/cuda/device.cuh"  // Pack, load16, store16, fast_exp2, launch
#include "llmc/cuda/reduce.cuh"  // block_largest, store_largest
#include "llmc/ops/op_cost.h"    // gelu_backward_cost, gelu_forward_cost

inline constexpr int kGeluThreads = 256, kGeluPacks = 2;

// e^-2u, as a power of 2
DEVICE float gelu_exp(float x) {
    constexpr float kMinus2ScaleLog2E = -1.5957691216f * 1.4426950409f;  // -2 sqrt(2/pi) log2(e)
    return fast_exp2(x * fmaf(x * x, 0.044715f, 1.f) * kMinus2ScaleLog2E);
}

DEVICE float gelu(float x) { return __fdividef(x, 1 + gelu_exp(x)); }

// d, the gradient of gelu(x), times gelu'(x)
DEVICE float gelu_gradient(float d, float x) {
    constexpr float k2Scale = 1.5957691216f, kLargest = 3.402823466e38f;
    const float e = gelu_exp(x), s = __fdividef(1, 1 + e);
    const float rest = fminf(e, kLargest) * s;  // 1 - s; 0, not NaN, where e is infinite
    const float slope = fmaf(x * x, 3 * 0.044715f, 1) * k2Scale;
    return d * fmaf(x * (s * rest), slope, s);
}

// Calls body(i) for the first element i < n of each of this thread's packs.
template <class T, class Body>
DEVICE void for_packs(int64_t n, Body body) {
    const int64_t first = (int64_t(blockIdx.x) * kGeluPacks * kGeluThreads + threadIdx.x) * Pack<T>::size;
#pragma unroll
    for (int p = 0; p < kGeluPacks; p++) {
        const int64_t i = first + p * kGeluThreads * Pack<T>::size;
        if (i < n) body(p, i);
    }
}

template <class T>
__global__ void __launch_bounds__(kGeluThreads) gelu_forward_kernel(T* out, const T* inp, int64_t n) {
    Pack<T> x[kGeluPacks];
    for_packs<T>(n, [&](int p, int64_t i) { x[p] = load16_streaming(inp + i); });
    for_packs<T>(n, [&](int p, int64_t i) {
        for (int k = 0; k < Pack<T>::size; k++) x[p][k] = from_float<T>(gelu(to_float(x[p][k])));
        store16(out + i, x[p]);
    });
}

// largest (gridDim.x) may be null
template <class T>
__global__ void __launch_bounds__(kGeluThreads)
    gelu_backward_kernel(T* dinp, const T* dout, const T* inp, float* largest, int64_t n) {
    SMEM_STATIC(uint32_t, shared, [kGeluThreads / kWarp]);
    uint32_t bits = 0;
    Pack<T> x[kGeluPacks], d[kGeluPacks];
    for_packs<T>(n, [&](int p, int64_t i) {
        x[p] = load16_streaming(inp + i);
        d[p] = load16_streaming(dout + i);
    });
    for_packs<T>(n, [&](int p, int64_t i) {
        for (int k = 0; k < Pack<T>::size; k++)
            d[p][k] = from_float<T>(gelu_gradient(to_float(d[p][k]), to_float(x[p][k])));
        store16(dinp + i, d[p]);
        bits = largest_bits(bits, d[p]);
    });
    if (!largest) return;
    bits = block_largest(bits, shared);
    if (threadIdx.x == 0) largest[blockIdx.x] = __uint_as_float(bits);
}

template <class T>
unsigned gelu_blocks(int64_t n) {
    require(n % Pack<T>::size == 0, "gelu of %ld elements: they must be a multiple of %d, 16 bytes", n, Pack<T>::size);
    return unsigned(ceil_div(n, kGeluPacks * kGeluThreads * Pack<T>::size));
}

template <class T>
void gelu_forward(Cuda& cuda, T* out, const T* inp, int64_t n) {
    const OpScope op(cuda, __func__, gelu_forward_cost<T>(n, Cuda::kExpFlops));
    launch(cuda, "gelu_forward", gelu_forward_kernel<T>, gelu_blocks<T>(n), kGeluThreads, 0, out, inp, n);
}

template <class T>
void gelu_backward(Cuda& cuda, const GemmInput<T>& dinp, const T* dout, const T* inp, int64_t n) {
    const OpScope op(cuda, __func__, gelu_backward_cost<T>(n, Cuda::kExpFlops));
    const unsigned blocks = gelu_blocks<T>(n);
    float* largest = dinp.amax ? cuda.workspace_of<float>(blocks) : nullptr;
    launch(cuda, "gelu_backward", gelu_backward_kernel<T>, blocks, kGeluThreads, 0, dinp.values, dout, inp, largest, n);
    if (dinp.amax) store_largest(cuda, dinp.amax, largest, blocks);
}

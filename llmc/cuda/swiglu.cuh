/*
SwiGLU:   out = silu(gate) * up,   silu(x) = x sigmoid(x)

  inp, dinp (N, 2C) T: each row the C gates, then the C ups     out, dout (N, C) T
  dinp = , and may be inp itself     amax one float =, may be null     (llmc/ops/swiglu.h has the derivatives)

Math      f32; e^-gate by fast_exp2, quotients by __fdividef; backward recomputes the sigmoid, nothing is saved
Work      one pack of gates and its ups per thread; blocks (row, columns). With amax each block stores its largest
          magnitude, and one more block reduces these
Bytes     forward 3, backward 5 times N*C*sizeof(T)
Accuracy  f32: out and dup (6 + |gate| where it is negative) eps, dgate 9 eps of |dout up|; bf16: half an eps more for
          stored values (test/cuda/swiglu_cuda_test.cu)
Requires  C % Pack<T>::size == 0, pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"     // require
#include "llmc/cuda/device.cuh"  // Pack, load16, store16, fast_exp2, launch
#include "llmc/cuda/reduce.cuh"  // block_largest, store_largest
#include "llmc/ops/op_cost.h"    // swiglu_backward_cost, swiglu_forward_cost

inline constexpr int kSwigluMaxThreads = 256;

// e^-gate, as a power of 2
DEVICE float swiglu_exp(float gate) { return fast_exp2(gate * -1.4426950409f); }

template <class T>
DEVICE Pack<T> swiglu(const Pack<T>& gates, const Pack<T>& ups) {
    Pack<T> y;
    for (int k = 0; k < y.size; k++) {
        const float gate = to_float(gates[k]);
        y[k] = from_float<T>(__fdividef(gate, 1 + swiglu_exp(gate)) * to_float(ups[k]));
    }
    return y;
}

template <class T>
struct SwigluGradient {
    Pack<T> gates, ups;
};
template <class T>
DEVICE SwigluGradient<T> swiglu_gradient(const Pack<T>& dout, const Pack<T>& gates, const Pack<T>& ups) {
    constexpr float kLargest = 3.402823466e38f;
    SwigluGradient<T> d_inp;
    for (int k = 0; k < gates.size; k++) {
        const float gate = to_float(gates[k]), d = to_float(dout[k]);
        const float e = swiglu_exp(gate), s = __fdividef(1, 1 + e);
        const float rest = fminf(e, kLargest) * s;  // 1 - s; 0, not NaN, where e is infinite
        d_inp.gates[k] = from_float<T>(d * to_float(ups[k]) * fmaf(gate * s, rest, s));
        d_inp.ups[k] = from_float<T>(d * (gate * s));
    }
    return d_inp;
}

template <class T>
__global__ void __launch_bounds__(kSwigluMaxThreads) swiglu_forward_kernel(T* out, const T* inp, int C) {
    const int64_t n = blockIdx.x;
    const int c = int(blockIdx.y * blockDim.x + threadIdx.x) * Pack<T>::size;
    if (c >= C) return;
    const T* row = inp + n * 2 * C;
    const Pack<T> gates = load16_streaming(row + c), ups = load16_streaming(row + C + c);
    store16(out + n * C + c, swiglu(gates, ups));
}

// largest (gridDim.y, gridDim.x) may be null
template <class T>
__global__ void __launch_bounds__(kSwigluMaxThreads)
    swiglu_backward_kernel(T* dinp, const T* dout, const T* inp, float* largest, int C) {
    SMEM_STATIC(uint32_t, shared, [kSwigluMaxThreads / kWarp]);
    const int64_t n = blockIdx.x;
    const int c = int(blockIdx.y * blockDim.x + threadIdx.x) * Pack<T>::size;
    uint32_t bits = 0;
    if (c < C) {
        const T* row = inp + n * 2 * C;
        const Pack<T> gates = load16_streaming(row + c), ups = load16_streaming(row + C + c);
        const auto [dgates, dups] = swiglu_gradient(load16_streaming(dout + n * C + c), gates, ups);
        store16(dinp + n * 2 * C + c, dgates);
        store16(dinp + n * 2 * C + C + c, dups);
        bits = largest_bits(largest_bits(bits, dgates), dups);
    }
    if (!largest) return;
    bits = block_largest(bits, shared);
    if (threadIdx.x == 0) largest[blockIdx.y * gridDim.x + blockIdx.x] = __uint_as_float(bits);
}

// The columns in as few blocks of up to 256 threads as possible, of equal size.
inline int64_t swiglu_column_blocks(int64_t packs) { return ceil_div(packs, kSwigluMaxThreads); }
template <class T, class... P>
void launch_swiglu(Cuda& cuda, const char* op, void (*kernel)(P...), int64_t N, int64_t C,
                   std::type_identity_t<P>... args) {
    require(C % Pack<T>::size == 0, "%s of %ld columns: they must be a multiple of %d, 16 bytes", op, C, Pack<T>::size);
    const int64_t packs = C / Pack<T>::size, blocks = swiglu_column_blocks(packs);
    const int64_t threads = ceil_div(ceil_div(packs, blocks), kWarp) * kWarp;
    launch(cuda, op, kernel, dim3(unsigned(N), unsigned(blocks)), unsigned(threads), 0, args...);
}

template <class T>
void swiglu_forward(Cuda& cuda, T* out, const T* inp, int64_t N, int64_t C) {
    const OpScope op(cuda, __func__, swiglu_forward_cost<T>(N * C, Cuda::kExpFlops));
    launch_swiglu<T>(cuda, "swiglu_forward", swiglu_forward_kernel<T>, N, C, out, inp, int(C));
}

template <class T>
void swiglu_backward(Cuda& cuda, const GemmInput<T>& dinp, const T* dout, const T* inp, int64_t N, int64_t C) {
    const OpScope op(cuda, __func__, swiglu_backward_cost<T>(N * C, Cuda::kExpFlops));
    const int64_t blocks = N * swiglu_column_blocks(C / Pack<T>::size);
    float* largest = dinp.amax ? cuda.workspace_of<float>(blocks) : nullptr;
    launch_swiglu<T>(cuda, "swiglu_backward", swiglu_backward_kernel<T>, N, C, dinp.values, dout, inp, largest, int(C));
    if (dinp.amax) store_largest(cuda, dinp.amax, largest, blocks);
}

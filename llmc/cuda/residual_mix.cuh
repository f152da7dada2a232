/*
Residual mix:   out = a inp + b_sign b inp0,   and fused with the add before it and the norm after it

  inp, inp0, out, dout, dinp, dinp0 (n) T     a, b: one T each; a may be null, a factor of one     da, db f32 +=
  dinp = , and may be dout itself; dinp0 = , or += with add_to_dinp0     (llmc/ops/residual_mix.h has the formulas)

Math      f32, each result rounded once
Work      one pack per thread; backward: kMixPacks packs per thread; blocks store their sums of dout inp and dout inp0,
          and one more block for each adds them up. The fused form: one warp per row, as rmsnorm
Bytes     forward 3, fused 6, backward 5 times n*sizeof(T); one more if dinp0 is added to; two fewer, dinp and inp, if a
          is null and dinp is dout
Accuracy  activations: the CPU's results, rounded to T. Sums: at most 32 products of a thread, and a block's threads
          in f32, of blocks in f64 (test/cuda/residual_mix_cuda_test.cu)
Requires  n (or C) % Pack<T>::size == 0, pointers to activations 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"      // require, ensure
#include "llmc/cuda/device.cuh"   // Pack, load16, store16, block_sum, launch
#include "llmc/cuda/reduce.cuh"   // sum_in_double
#include "llmc/cuda/rmsnorm.cuh"  // rmsnorm_row
#include "llmc/ops/op_cost.h"     // add_partials_cost, residual_mix_backward_cost, kResidualMixForward, ...

inline constexpr int kMixThreads = 256, kMixPacks = 4;

template <class T>
DEVICE float factor_of(const T* parameter) {
    return parameter ? to_float(*parameter) : 1;
}

template <class T>
DEVICE T mix(T inp, T inp0, float a, float b) {
    return from_float<T>(fmaf(to_float(inp0), b, to_float(inp) * a));
}

template <class T>
__global__ void __launch_bounds__(kMixThreads)
    residual_mix_forward_kernel(T* out, const T* inp, const T* inp0, const T* a, const T* b, float b_sign, int64_t n) {
    const int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * Pack<T>::size;
    if (i >= n) return;
    const float factor = factor_of(a), factor0 = b_sign * factor_of(b);
    Pack<T> x = load16_streaming(inp + i);
    const Pack<T> x0 = load16_streaming(inp0 + i);
    for (int k = 0; k < x.size; k++) x[k] = mix(x[k], x0[k], factor, factor0);
    store16(out + i, x);
}

template <class T>
void check_residual_mix(const char* op, int64_t n) {
    require(n % Pack<T>::size == 0, "%s of %ld values: they must be a multiple of %d, 16 bytes", op, n, Pack<T>::size);
}

template <class T>
void residual_mix_forward(Cuda& cuda, T* out, const T* inp, const T* inp0, std::type_identity_t<const T*> a, const T* b,
                          float b_sign, int64_t n) {
    const OpScope op(cuda, __func__, elements_cost<T>(kResidualMixForward, n));
    check_residual_mix<T>("residual_mix_forward", n);
    launch(cuda, "residual_mix_forward", residual_mix_forward_kernel<T>,
           unsigned(ceil_div(n, kMixThreads * Pack<T>::size)), kMixThreads, 0, out, inp, inp0, a, b, b_sign, n);
}

// partials (2, gridDim.x): sums of dout inp0, then of dout inp. dinp null: it is dout, and stays as it is.
template <class T>
__global__ void __launch_bounds__(kMixThreads)
    residual_mix_backward_kernel(T* dinp, T* dinp0, float* partials, const T* dout, const T* inp, const T* inp0,
                                 const T* a, const T* b, float b_sign, bool add_to_dinp0, int64_t n) {
    SMEM_STATIC(float, shared, [kWarp]);
    constexpr int P = Pack<T>::size;
    const float factor = factor_of(a), factor0 = b_sign * factor_of(b);
    const int64_t first = (int64_t(blockIdx.x) * kMixPacks * kMixThreads + threadIdx.x) * P;
    float sum = 0, sum0 = 0;
#pragma unroll
    for (int j = 0; j < kMixPacks; j++) {
        const int64_t i = first + int64_t(j) * kMixThreads * P;
        if (i >= n) break;
        const Pack<T> d = load16(dout + i), x0 = load16_streaming(inp0 + i);
        if (a) {
            const Pack<T> x = load16_streaming(inp + i);
            for (int k = 0; k < P; k++) sum = fmaf(to_float(d[k]), to_float(x[k]), sum);
        }
        Pack<T> dx0{};
        if (add_to_dinp0) dx0 = load16(dinp0 + i);
        for (int k = 0; k < P; k++) {
            sum0 = fmaf(to_float(d[k]), to_float(x0[k]), sum0);
            dx0[k] = from_float<T>(fmaf(to_float(d[k]), factor0, to_float(dx0[k])));
        }
        store16(dinp0 + i, dx0);
        if (!dinp) continue;
        Pack<T> dx;
        for (int k = 0; k < P; k++) dx[k] = from_float<T>(to_float(d[k]) * factor);
        store16(dinp + i, dx);
    }
    sum0 = block_sum(sum0, shared);
    sum = block_sum(sum, shared);
    if (threadIdx.x > 0) return;
    partials[blockIdx.x] = sum0;
    partials[gridDim.x + blockIdx.x] = sum;
}

// Block 0 computes db, block 1 da.
template <class T = float>
__global__ void __launch_bounds__(kSumThreads)
    residual_mix_sums_kernel(T* da, T* db, const float* partials, float b_sign, int64_t num) {
    SMEM_STATIC(double, shared, [kWarp]);
    const float sum = float(sum_in_double(partials + blockIdx.x * num, num, shared));
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0)
        *db += b_sign * sum;
    else
        *da += sum;
}

inline int64_t residual_mix_blocks(int64_t n, int64_t pack) { return ceil_div(n, kMixPacks * kMixThreads * pack); }

template <class T>
void residual_mix_backward(Cuda& cuda, T* dinp, T* dinp0, float* da, float* db, const T* dout, const T* inp,
                           const T* inp0, std::type_identity_t<const T*> a, const T* b, float b_sign, bool add_to_dinp0,
                           int64_t n) {
    const OpScope op(cuda, __func__, residual_mix_backward_cost<T>(n, a || dinp != dout, add_to_dinp0));
    check_residual_mix<T>("residual_mix_backward", n);
    ensure(!a == !da);
    const int64_t blocks = residual_mix_blocks(n, Pack<T>::size);
    float* partials = cuda.workspace_of<float>(2 * blocks);
    launch(cuda, "residual_mix_backward", residual_mix_backward_kernel<T>, unsigned(blocks), kMixThreads, 0,
           !a && dinp == dout ? nullptr : dinp, dinp0, partials, dout, inp, inp0, a, b, b_sign, add_to_dinp0, n);
    launch(cuda, {"residual_mix_sums", add_partials_cost(blocks, 2)}, residual_mix_sums_kernel<>, a ? 2 : 1,
           kSumThreads, 0, da, db, partials, b_sign, blocks);
}

template <class T>
__global__ void __launch_bounds__(kWarp* kRmsRowsPerBlock)
    residual_mix_rmsnorm_forward_kernel(T* residual, T* mixed, T* out, float* rstd, const T* inp1, const T* inp2,
                                        const T* inp0, const T* a, const T* b, int64_t N, int C, float eps) {
    SMEM_DYNAMIC(T, rows);
    const int64_t n = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
    if (n >= N) return;  // whole warps return together
    const float factor = factor_of(a), factor0 = factor_of(b);
    const T* no_weight = nullptr;
    rmsnorm_row(out, rstd, rows + threadIdx.y * C, no_weight, n, C, eps, [=](int64_t i) {
        Pack<T> x = load16_streaming(inp1 + i);
        const Pack<T> y = load16_streaming(inp2 + i), x0 = load16_streaming(inp0 + i);
        for (int k = 0; k < x.size; k++) x[k] = from_float<T>(to_float(x[k]) + to_float(y[k]));
        store16(residual + i, x);
        for (int k = 0; k < x.size; k++) x[k] = mix(x[k], x0[k], factor, factor0);
        store16(mixed + i, x);
        return x;
    });
}

template <class T>
void residual_mix_rmsnorm_forward(Cuda& cuda, T* residual, T* mixed, T* out, float* rstd, const T* inp1, const T* inp2,
                                  const T* inp0, std::type_identity_t<const T*> a, const T* b, int64_t N, int64_t C,
                                  float eps) {
    const OpScope op(cuda, __func__, elements_cost<T>(kResidualMixRmsnormForward, N * C));
    check_residual_mix<T>("residual_mix_rmsnorm_forward", C);
    launch(cuda, "residual_mix_rmsnorm_forward", residual_mix_rmsnorm_forward_kernel<T>,
           unsigned(ceil_div(N, kRmsRowsPerBlock)), dim3(kWarp, kRmsRowsPerBlock),
           size_t(kRmsRowsPerBlock) * size_t(C) * sizeof(T), residual, mixed, out, rstd, inp1, inp2, inp0, a, b, N,
           int(C), eps);
}

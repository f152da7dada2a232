/*
The squared L2 norm of a buffer:   out = sum of x[i]^2

  x (n) f32     out: one double in device memory, overwritten; not finite if any element is not, or if a square
  overflows (|x| > 1e19), as on the CPU (llmc/cpu/global_norm.h)

Math      f32 within a block's kNormChunk elements, a chain of 64 fused multiply-adds a thread, then double
Work      a block a chunk, 16 packs a thread, 4 of them under way at a time; then one block adds up the chunks' sums
Bytes     4 n; the partial sums are 4 bytes a chunk
Accuracy  2 f32 eps of the norm (test/global_norm_cuda_test.cu)
          the same bits on any GPU: the order depends on n alone
Requires  x 16-byte aligned
*/
#pragma once
#include "llmc/cuda/device.cuh"  // Pack, load16, block_sum, launch
#include "llmc/cuda/reduce.cuh"  // sum_in_double

inline constexpr int kNormThreads = 256, kNormPacks = 16;
inline constexpr int64_t kNormChunk = int64_t(kNormThreads) * kNormPacks * Pack<float>::size;

template <class T = float>
__global__ void __launch_bounds__(kNormThreads) squares_kernel(float* partials, const T* x, int64_t n) {
    constexpr int P = Pack<T>::size;
    SMEM_STATIC(float, shared, [kWarp]);
    const int64_t chunk = blockIdx.x * kNormChunk;
    float sum = 0;
    const auto add = [&](float value) { sum = fmaf(value, value, sum); };
    if (chunk + kNormChunk <= n) {
        const T* from = x + chunk + threadIdx.x * P;
#pragma unroll 4
        for (int i = 0; i < kNormPacks; i++) {
            const Pack<T> pack = load16(from + i * kNormThreads * P);
            for (int k = 0; k < P; k++) add(pack[k]);
        }
    } else {
        for (int64_t i = chunk + threadIdx.x; i < n; i += kNormThreads) add(x[i]);
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

template <class T = float>
__global__ void __launch_bounds__(kSumThreads) add_squares_kernel(double* out, const T* partials, int64_t num) {
    SMEM_STATIC(double, shared, [kWarp]);
    const double sum = sum_in_double(partials, num, shared);
    if (threadIdx.x == 0) *out = sum;
}

inline void global_norm_squared(Cuda& cuda, double* out, const float* x, int64_t n) {
    const int64_t chunks = ceil_div(n, kNormChunk);
    float* partials = cuda.workspace_of<float>(chunks);
    if (chunks > 0) launch(cuda, "squares", squares_kernel<float>, unsigned(chunks), kNormThreads, 0, partials, x, n);
    launch(cuda, "add_squares", add_squares_kernel<float>, 1, kSumThreads, 0, out, partials, chunks);
}

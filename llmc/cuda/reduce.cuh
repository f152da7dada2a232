/*
Sums over rows in a fixed order, in two stages: blocks store partial sums in the workspace, then one kernel adds them
up.

  add_partials       out[c] += sum over i < num of partials[i * stride + c]                    for c in [0, n)
                     of up to three outputs at once, side by side in the partials: those of output j begin at j * n
  add_column_sums    out[c] += sum over r < N of inp[r, c]     inp (N, C) T, out (C) f32: a bias's gradient
  sum_in_double      the sum of n numbers, by one block: the last stage of a sum over a whole tensor
  store_largest      amax = the largest of n magnitudes, by one block, as bits: the same in any order, with NaN largest

Work      add_partials: 32 columns per block, whose warps divide the partials; column sums: kColumnRows rows per block
Bytes     N*C*sizeof(T) for the column sums; the partials are N / kColumnRows of that in f32
Accuracy  the order of additions depends on the shape alone: the same bits each time (test/cuda/reduce_cuda_test.cu)
Requires  column sums: C % Pack<T>::size == 0
*/
#pragma once
#include "llmc/base/check.h"     // require
#include "llmc/cuda/device.cuh"  // Pack, load16, launch
#include "llmc/ops/op_cost.h"    // absmax_cost, add_partials_cost, elements_cost

inline constexpr int kAddWarps = 16;

template <class T>
DEVICE uint32_t magnitude_bits(T x) {
    return __float_as_uint(to_float(x)) & 0x7FFFFFFF;
}
template <class T>
DEVICE uint32_t largest_bits(uint32_t most, const Pack<T>& x) {
    for (int k = 0; k < x.size; k++) most = max(most, magnitude_bits(x[k]));
    return most;
}
DEVICE uint32_t warp_largest(uint32_t bits) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) bits = max(bits, __shfl_xor_sync(kAllLanes, bits, offset));
    return bits;
}
// The largest of a block, in its thread 0. `shared` holds a number for each warp.
DEVICE uint32_t block_largest(uint32_t bits, uint32_t* shared) {
    bits = warp_largest(bits);
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = bits;
    __syncthreads();
    if (threadIdx.x > 0) return bits;
    for (unsigned i = 1; i < blockDim.x / kWarp; i++) bits = max(bits, shared[i]);
    return bits;
}

inline constexpr int kLargestThreads = 1024;

template <class T = float>
__global__ void __launch_bounds__(kLargestThreads) largest_kernel(T* amax, const T* magnitudes, int64_t n) {
    SMEM_STATIC(uint32_t, shared, [kLargestThreads / kWarp]);
    constexpr int P = Pack<T>::size;
    uint32_t bits = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x * P; i < n; i += kLargestThreads * P)
        bits = largest_bits(bits, load16_below(magnitudes, i, n));
    bits = block_largest(bits, shared);
    if (threadIdx.x == 0) *amax = __uint_as_float(bits);
}

inline void store_largest(Cuda& cuda, float* amax, const float* magnitudes, int64_t n) {
    launch(cuda, {"largest", absmax_cost<float>(n)}, largest_kernel<float>, 1, kLargestThreads, 0, amax, magnitudes, n);
}

// The outputs of one launch; the second and third may be null.
template <class T = float>
struct PartialSums {
    T *first, *second, *third;

    PartialSums(T* first, T* second = nullptr, T* third = nullptr) : first(first), second(second), third(third) {}
};

template <class T = float>
__global__ void __launch_bounds__(kWarp* kAddWarps)
    add_partials_kernel(PartialSums<T> to, const float* partials, int64_t num, int64_t stride, int64_t n) {
    SMEM_STATIC(float, sums, [kAddWarps][kWarp]);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int64_t c = int64_t(blockIdx.x) * kWarp + lane;
    T* const out = blockIdx.y == 0 ? to.first : blockIdx.y == 1 ? to.second : to.third;
    partials += blockIdx.y * n;
    float sum = 0;
    if (c < n)
        for (int64_t i = warp; i < num; i += kAddWarps) sum += partials[i * stride + c];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= n) return;
    for (int w = 1; w < kAddWarps; w++) sum += sums[w][lane];
    out[c] += sum;
}

inline void add_partials(Cuda& cuda, const PartialSums<>& to, const float* partials, int64_t num, int64_t stride,
                         int64_t n) {
    const unsigned outputs = to.third ? 3 : to.second ? 2 : 1;
    launch(cuda, {"add_partials", add_partials_cost(num, outputs * n)}, add_partials_kernel<float>,
           dim3(unsigned(ceil_div(n, kWarp)), outputs), kWarp * kAddWarps, 0, to, partials, num, stride, n);
}

inline constexpr int kColumnWarps = 8, kColumnRows = 128;  // rows per block: 16 per warp

// partials (gridDim.y, C)
template <class T>
__global__ void __launch_bounds__(kWarp* kColumnWarps)
    column_sums_kernel(float* partials, const T* inp, int64_t N, int64_t C) {
    SMEM_STATIC(float, sums, [kColumnWarps][kWarp * Pack<T>::size]);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int64_t c = (int64_t(blockIdx.x) * kWarp + lane) * Pack<T>::size;
    const int64_t first = int64_t(blockIdx.y) * kColumnRows, end = min(N, first + kColumnRows);
    float sum[Pack<T>::size] = {};
    if (c < C)
#pragma unroll 4
        for (int64_t row = first + warp; row < end; row += kColumnWarps) {
            const Pack<T> x = load16(inp + row * C + c);
            for (int k = 0; k < x.size; k++) sum[k] += to_float(x[k]);
        }
    for (int k = 0; k < Pack<T>::size; k++) sums[warp][k * kWarp + lane] = sum[k];  // a bank for each lane
    __syncthreads();
    if (warp > 0 || c >= C) return;
    float* to = partials + blockIdx.y * C + c;
    for (int k = 0; k < Pack<T>::size; k++) {
        for (int w = 1; w < kColumnWarps; w++) sum[k] += sums[w][k * kWarp + lane];
        to[k] = sum[k];
    }
}

template <class T>
void add_column_sums(Cuda& cuda, float* out, const T* inp, int64_t N, int64_t C) {
    const OpScope op(cuda, __func__, elements_cost<T>(1, 1, N * C));
    require(C % Pack<T>::size == 0, "column sums of (%ld, %ld): the columns must be a multiple of %d", N, C,
            Pack<T>::size);
    const int64_t chunks = ceil_div(N, kColumnRows);
    float* partials = cuda.workspace_of<float>(chunks * C);
    const dim3 grid(unsigned(ceil_div(C, kWarp * Pack<T>::size)), unsigned(chunks));
    launch(cuda, "column_sums", column_sums_kernel<T>, grid, kWarp * kColumnWarps, 0, partials, inp, N, C);
    add_partials(cuda, out, partials, chunks, C, C);
}

inline constexpr int kSumThreads = 1024;

// By a block of kSumThreads; thread 0 gets the sum. `shared` holds kWarp doubles.
template <class T>
DEVICE double sum_in_double(const T* values, int64_t n, double* shared) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += kSumThreads) sum += double(values[i]);
    sum = warp_sum(sum);
    if (lane == 0) shared[warp] = sum;
    __syncthreads();
    return warp_sum(shared[lane]);
}

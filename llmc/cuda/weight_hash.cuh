/*
A 64-bit hash of weights that does not depend on how they are partitioned:

  sum += sum over j of mix64((first + j + 1) K + word j)

  x (n) f32 or bf16     sum: one integer in device memory, accumulated; x begins at element `first_index` of the whole
                        (llmc/ops/weight_hash.h)

Work      16 bytes, two words, per thread, four times per round; each block adds its sum with one atomic
Bytes     n*sizeof(T)
Accuracy  the CPU's integer (test/cuda/weight_hash_cuda_test.cu)
Requires  x 16-byte aligned; first_index a multiple of 8/sizeof(T)
*/
#pragma once
#include <algorithm>
#include "llmc/base/check.h"     // ensure
#include "llmc/base/rng.h"       // mix64
#include "llmc/cuda/device.cuh"  // Pack, load16_below, warp_sum, atomic_add, launch

inline constexpr int kHashThreads = 256, kHashPacks = 4, kHashBlocksPerSm = 6;

template <class T>
__global__ void __launch_bounds__(kHashThreads)
    weight_hash_kernel(uint64_t* sum, const T* x, int64_t n, uint64_t first) {
    constexpr int P = Pack<T>::size;
    SMEM_STATIC(uint64_t, shared, [kHashThreads / kWarp]);
    uint64_t own = 0;
    const auto add = [&](const Pack<T>& pack, int64_t i) {
        uint64_t words[2];
        memcpy(words, &pack, sizeof words);
        const uint64_t position = (first + uint64_t(i) / (P / 2) + 1) * Rng::kStep;
        own += mix64(position + words[0]);
        if (i + P / 2 < n) own += mix64(position + Rng::kStep + words[1]);
    };
    const int64_t round = int64_t(kHashThreads) * kHashPacks * P;
    for (int64_t begin = blockIdx.x * round; begin < n; begin += gridDim.x * round) {
        const int64_t at = begin + threadIdx.x * P;
        if (begin + round <= n) {
            Pack<T> packs[kHashPacks];
#pragma unroll
            for (int k = 0; k < kHashPacks; k++) packs[k] = load16_streaming(x + at + k * kHashThreads * P);
#pragma unroll
            for (int k = 0; k < kHashPacks; k++) add(packs[k], at + k * kHashThreads * P);
        } else {
            for (int64_t i = at; i < n; i += kHashThreads * P) add(load16_below(x, i, n), i);
        }
    }
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    own = warp_sum(own);
    if (lane == 0) shared[warp] = own;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < kHashThreads / kWarp; w++) own += shared[w];
    atomic_add(sum, own);
}

template <class T>
void add_hash(Cuda& cuda, uint64_t* sum, const T* x, int64_t n, int64_t first_index) {
    const OpScope op(cuda, __func__);
    constexpr int64_t in_word = 8 / sizeof(T);
    ensure(first_index % in_word == 0);
    const int64_t rounds = ceil_div(n, kHashThreads * kHashPacks * Pack<T>::size);
    if (rounds > 0)
        launch(cuda, "weight_hash", weight_hash_kernel<T>,
               unsigned(std::min<int64_t>(rounds, kHashBlocksPerSm * cuda.num_sms)), kHashThreads, 0, sum, x, n,
               uint64_t(first_index / in_word));
}

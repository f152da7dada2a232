/*
The sum over ranks, each of which has a buffer:   out[i] = sum over r of inp[r][i], in the order of sum_tree

  inp (num_ranks) pointers to n elements each: float, bf16 (summed in float, rounded once) or uint64_t; up to eight
  out (n)      overwritten; may be one of the inputs

Work      a thread 16 bytes of the output, unrolled for each number of ranks: all loads are under way at a time
Bytes     (num_ranks + 1) n elements
Accuracy  the CPU's bits (llmc/cpu/sum_ranks.h), but for which NaN
Requires  any n; pointers of which one is not 16-byte aligned cost several times as much
*/
#pragma once
#include <cstdint>
#include "llmc/base/sum_tree.h"  // sum_tree
#include "llmc/cuda/device.cuh"  // Pack, load16_streaming, store16, launch

inline constexpr int kSumRanksThreads = 256, kMostSumRanks = 8;

template <class T>
struct RankPointers {
    const T* of[kMostSumRanks];
};

template <int num_ranks, class T>
__global__ void __launch_bounds__(kSumRanksThreads)
    sum_ranks_kernel(T* out, RankPointers<T> inp, int64_t n, bool aligned) {
    constexpr int P = Pack<T>::size;
    const auto sum_of = [](const auto& value) {
        if constexpr (std::is_same_v<T, bf16>)
            return from_float<bf16>(sum_tree<0, num_ranks>([&](int r) { return to_float(value(r)); }));
        else
            return sum_tree<0, num_ranks>(value);
    };
    const int64_t first = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * P;
    if (!aligned || first + P > n) {
        for (int64_t i = first; i < n && i < first + P; i++) out[i] = sum_of([&](int r) { return inp.of[r][i]; });
        return;
    }
    Pack<T> values[num_ranks], sums;
    for (int r = 0; r < num_ranks; r++) values[r] = load16_streaming(inp.of[r] + first);
    for (int k = 0; k < P; k++) sums[k] = sum_of([&](int r) { return values[r][k]; });
    store16(out + first, sums);
}

template <class T>
void sum_ranks(Cuda& cuda, T* out, const T* const* inp, int num_ranks, int64_t n) {
    const OpScope op(cuda, __func__);
    require(num_ranks <= kMostSumRanks, "%d virtual ranks on one GPU: expected at most %d", num_ranks, kMostSumRanks);
    RankPointers<T> pointers{};
    uintptr_t bits = reinterpret_cast<uintptr_t>(out);
    for (int r = 0; r < num_ranks; r++) {
        pointers.of[r] = inp[r];
        bits |= reinterpret_cast<uintptr_t>(inp[r]);
    }
    using Kernel = void (*)(T*, RankPointers<T>, int64_t, bool);
    static constexpr Kernel kKernels[kMostSumRanks] = {
        sum_ranks_kernel<1, T>, sum_ranks_kernel<2, T>, sum_ranks_kernel<3, T>, sum_ranks_kernel<4, T>,
        sum_ranks_kernel<5, T>, sum_ranks_kernel<6, T>, sum_ranks_kernel<7, T>, sum_ranks_kernel<8, T>};
    if (n > 0)
        launch(cuda, "sum_ranks", kKernels[num_ranks - 1],
               unsigned(ceil_div(n, int64_t(kSumRanksThreads * Pack<T>::size))), kSumRanksThreads, 0, out, pointers, n,
               bits % 16 == 0);
}

/*
Sums one buffer per rank:   out[i] = sum over r of inp[r][i], in the order of sum_tree

  inp (num_ranks) pointers to n elements each: float, bf16 (summed in float, rounded once) or uint64_t; up to eight
  out (n)      overwritten; may be one of the inputs

Work      each thread computes 16 bytes of the output, unrolled for each number of ranks, with all loads in flight
Bytes     (num_ranks + 1) n elements
Accuracy  the CPU's bits (llmc/cpu/sum_ranks.h), except for the payload of NaN
Requires  any n; several times slower if a pointer is not 16-byte aligned

sum_terms sums what any number of ranks have sent:   out[i] = sum over r of term[r][i]

  own (n)      term[rank]: float or bf16
  others       term[r] is others[r * stride ...], n elements
  out (n)      overwritten, in float; may be own

Work      each thread takes 16 bytes of the terms; eight ranks' loads are in flight at a time
Bytes     num_ranks n terms and n floats
Accuracy  the CPU's bits
*/
#pragma once
#include <cstdint>
#include "llmc/base/sum_tree.h"  // sum_tree
#include "llmc/cuda/device.cuh"  // Pack, load16_streaming, store16, store_floats, launch

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

// Sums of 2^k groups of ranks that wait for the next 2^k groups, like the digits of a binary counter. They stay in
// registers, because unrolling makes all indices constants.
template <int P>
struct WaitingSums {
    static constexpr int kLevels = 13;
    float level[kLevels][P];

    // Adds the sum of group `number`.
    DEVICE void add(int number, float (&sum)[P]) {
        bool goes_on = true;
#pragma unroll
        for (int k = 0; k < kLevels; k++) {
            if (!goes_on) continue;
            goes_on = number >> k & 1;
            for (int p = 0; p < P; p++) {
                if (goes_on) sum[p] = level[k][p] + sum[p];
                if (!goes_on) level[k][p] = sum[p];
            }
        }
    }
    // Adds the sums of all `number` groups to `sum`, which holds that of the ranks after them if has_sum.
    DEVICE void add_all_to(float (&sum)[P], int number, bool has_sum) const {
#pragma unroll
        for (int k = 0; k < kLevels; k++) {
            if (!(number >> k & 1)) continue;
            for (int p = 0; p < P; p++) sum[p] = has_sum ? level[k][p] + sum[p] : level[k][p];
            has_sum = true;
        }
    }
};

inline constexpr int kTermsGroup = 8, kMostTerms = kTermsGroup << WaitingSums<1>::kLevels;

// The terms of all ranks from a thread's first element on. `left`: elements left; `whole`: they fill an aligned Pack.
template <class T>
struct RankTerms {
    const T *own, *others;
    int64_t stride, left;
    int rank;
    bool whole;

    // The sum of `count` ranks from rank `at` on.
    template <int count>
    DEVICE void sum(float (&out)[Pack<T>::size], int at) const {
        Pack<T> terms[count];
        for (int r = 0; r < count; r++) {
            const T* const from = at + r == rank ? own : others + (at + r) * stride;
            if (whole)
                terms[r] = load16_streaming(from);
            else
                for (int p = 0; p < Pack<T>::size; p++) terms[r][p] = from[p < left ? p : 0];
        }
        for (int p = 0; p < Pack<T>::size; p++)
            out[p] = sum_tree<0, count>([&](int r) { return to_float(terms[r][p]); });
    }
};

template <class T>
__global__ void __launch_bounds__(kSumRanksThreads)
    sum_terms_kernel(float* out, const T* own, const T* others, int64_t stride, int rank, int num_ranks, int64_t n,
                     bool aligned) {
    constexpr int P = Pack<T>::size;
    const int64_t first = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * P;
    if (first >= n) return;
    const bool whole = aligned && first + P <= n;
    const RankTerms<T> terms{own + first, others + first, stride, n - first, rank, whole};
    WaitingSums<P> waiting;
    float sum[P] = {};
    const int groups = num_ranks / kTermsGroup, at = groups * kTermsGroup, rest = num_ranks - at;
    for (int g = 0; g < groups; g++) {
        terms.template sum<kTermsGroup>(sum, g * kTermsGroup);
        waiting.add(g, sum);
    }
    switch (rest) {
        case 1:
            terms.template sum<1>(sum, at);
            break;
        case 2:
            terms.template sum<2>(sum, at);
            break;
        case 3:
            terms.template sum<3>(sum, at);
            break;
        case 4:
            terms.template sum<4>(sum, at);
            break;
        case 5:
            terms.template sum<5>(sum, at);
            break;
        case 6:
            terms.template sum<6>(sum, at);
            break;
        case 7:
            terms.template sum<7>(sum, at);
            break;
        default:
            break;
    }
    waiting.add_all_to(sum, groups, rest > 0);
    if (whole) return store_floats(out + first, sum);
    for (int p = 0; p < P; p++)
        if (first + p < n) out[first + p] = sum[p];
}

template <class T>
void sum_terms(Cuda& cuda, float* out, const T* own, const T* others, int64_t stride, int rank, int num_ranks,
               int64_t n) {
    const double terms = double(num_ranks) * double(n);
    const OpCost cost{.bytes = terms * sizeof(T) + double(n) * sizeof(float), .flops = terms};
    const OpScope op(cuda, __func__, cost);
    require(num_ranks < kMostTerms, "a sum over %d ranks: expected less than %d", num_ranks, kMostTerms);
    const uintptr_t bits = reinterpret_cast<uintptr_t>(out) | reinterpret_cast<uintptr_t>(own) |
                           reinterpret_cast<uintptr_t>(others) | uintptr_t(stride) * sizeof(T);
    if (n > 0)
        launch(cuda, {"sum_terms", cost}, sum_terms_kernel<T>,
               unsigned(ceil_div(n, int64_t(kSumRanksThreads * Pack<T>::size))), kSumRanksThreads, 0, out, own, others,
               stride, rank, num_ranks, n, bits % 16 == 0);
}

/*
Adds one buffer of n floats to another:   to[i] += from[i]
Converts element types:                   out[i] = inp[i]   f32 to bf16 (to nearest, ties to even) and back
Adds f32 to a list of bf16 sums:          to[i] += from[i]   rounded stochastically (llmc/ops/buffers.h)

Work      accumulate: four elements, 16 bytes, per thread; others: eight, one 16-byte access of the bf16, two of the
          f32; lists as in llmc/cuda/adamw.cuh
Bytes     accumulate 12*n, cast 6*n, accumulate_rounded 8*n, of a step's first micro-batch 6*n
Accuracy  the CPU's bits: one rounding per element; NaN becomes some NaN (test/cuda/buffers_cuda_test.cu)
Requires  pointers 16-byte aligned; any n
*/
#pragma once
#include "llmc/base/op_scope.h"       // OpCost
#include "llmc/cuda/device.cuh"       // Pack, load16, store16, launch
#include "llmc/cuda/moments.cuh"      // MomentBits, store_moments
#include "llmc/cuda/tensor_list.cuh"  // TensorList, for_tensor_lists
#include "llmc/ops/buffers.h"         // RoundedSum
#include "llmc/ops/op_cost.h"         // accumulate_cost

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

inline constexpr int kRoundedSumThreads = 256, kRoundedSumBlocksPerSm = 4;

// T is bf16, which sums are stored as.
template <class T = bf16>
__global__ void __launch_bounds__(kRoundedSumThreads, kRoundedSumBlocksPerSm)
    accumulate_rounded_kernel(TensorList<RoundedSum> list, int64_t micro_batch, const StepScalars* s) {
    constexpr int P = Pack<T>::size;
    for (uint32_t chunk = blockIdx.x; chunk < list.num_chunks(); chunk += gridDim.x) {
        const int at = list.tensor_of(chunk);
        const RoundedSum& sum = list.tensors[at];
        const uint64_t key = rounded_sum_key(sum.rounding, s->updates, micro_batch), e = sum.rounding.first;
        int64_t i = (int64_t(chunk - list.first[at]) * kRoundedSumThreads + threadIdx.x) * P;
        if (i + P <= sum.n) {
            float sums[P], more[P];
            load_floats(more, sum.from + i);
            if (micro_batch > 0) {
                load_floats(sums, sum.to + i);
                for (int k = 0; k < P; k++) more[k] = sums[k] + more[k];
            }
            store_moments(sum.to + i, more, MomentBits<T, P>(key, e + uint64_t(i)), Moment::first);
            continue;
        }
        for (; i < sum.n; i++) {  // less than a pack, by one thread
            const float x = micro_batch > 0 ? to_float(sum.to[i]) + sum.from[i] : sum.from[i];
            store_moment(sum.to + i, x, MomentBits<T, 1>(key, e + uint64_t(i)).of(0, Moment::first));
        }
    }
}

inline void accumulate_rounded(Cuda& cuda, const RoundedSum* sums, int64_t count, int64_t micro_batch,
                               const StepScalars* s) {
    const bool is_first = micro_batch == 0;
    const OpScope op(cuda, __func__, accumulate_rounded_cost(num_elements(sums, count), is_first));
    for_tensor_lists(sums, count, kRoundedSumThreads * Pack<bf16>::size, kRoundedSumBlocksPerSm * cuda.num_sms,
                     [&](const TensorList<RoundedSum>& list, unsigned blocks) {
                         const OpCost cost = accumulate_rounded_cost(num_elements(list.tensors, list.count), is_first);
                         launch(cuda, {"accumulate_rounded", cost}, accumulate_rounded_kernel<bf16>, blocks,
                                kRoundedSumThreads, 0, list, micro_batch, s);
                     });
}

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

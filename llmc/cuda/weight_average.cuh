/*
A running average of weights:   average += rate (weight - average)

  average, weight (n) f32

Math      f32, the CPU's bits
Work      each thread takes 4 elements at a time; blocks stride over the chunks of up to 32 tensors (tensor_list.cuh)
Bytes     12*n
Requires  pointers 16-byte aligned
*/
#pragma once
#include "llmc/cuda/device.cuh"       // Pack, load_floats, store_floats, launch
#include "llmc/cuda/tensor_list.cuh"  // TensorList, for_tensor_lists
#include "llmc/ops/op_cost.h"         // elements_cost, num_elements
#include "llmc/ops/weight_average.h"  // WeightAverage

inline constexpr int kAverageThreads = 256, kAverageBlocksPerSm = 6;

template <class T = float>
__global__ void __launch_bounds__(kAverageThreads, kAverageBlocksPerSm)
    average_weights_kernel(TensorList<WeightAverage> list, T rate) {
    constexpr int P = Pack<T>::size;
    for (uint32_t chunk = blockIdx.x; chunk < list.num_chunks(); chunk += gridDim.x) {
        const int at = list.tensor_of(chunk);
        const auto [average, weight, n] = list.tensors[at];
        int64_t i = (int64_t(chunk - list.first[at]) * kAverageThreads + threadIdx.x) * P;
        if (i + P <= n) {
            float values[P], weights[P];
            load_floats(values, average + i), load_floats(weights, weight + i);
            for (int k = 0; k < P; k++) values[k] = fmaf(rate, weights[k] - values[k], values[k]);
            store_floats(average + i, values);
            continue;
        }
        for (; i < n; i++) average[i] = fmaf(rate, weight[i] - average[i], average[i]);  // by one thread
    }
}

inline void average_weights(Cuda& cuda, const WeightAverage* tensors, int64_t count, double rate) {
    const OpScope op(cuda, __func__, elements_cost<float>(3, 3, num_elements(tensors, count)));
    for_tensor_lists(tensors, count, kAverageThreads * Pack<float>::size, kAverageBlocksPerSm * cuda.num_sms,
                     [&](const TensorList<WeightAverage>& list, unsigned blocks) {
                         const OpCost cost = elements_cost<float>(3, 3, num_elements(list.tensors, list.count));
                         launch(cuda, {"average_weights", cost}, average_weights_kernel<float>, blocks, kAverageThreads,
                                0, list, float(rate));
                     });
}

/*
One launch for many tensors: the kernel gets a list of them as its argument, and its blocks stride over the chunks of
all tensors as over one long array.

  for_tensor_lists(tensors, count, kChunk, kBlocksPerSm * cuda.num_sms, [&](const auto& list, unsigned blocks) {
      launch(cuda, {"adamw_update", cost}, adamw_kernel<T>, blocks, kThreads, 0, list, s);
  });

  template <class Tensor>
  __global__ void kernel(TensorList<Tensor> list, ...) {
      for (uint32_t chunk = blockIdx.x; chunk < list.num_chunks(); chunk += gridDim.x) {
          const int t = list.tensor_of(chunk);
          ... elements from (chunk - list.first[t]) * kChunk on of list.tensors[t]

A Tensor is a struct with pointers and `int64_t n`, its elements. A chunk lies within one tensor. Kernel arguments take
4 KiB at most.
*/
#pragma once
#include <algorithm>
#include "llmc/cuda/device.cuh"  // DEVICE, ceil_div

template <class Tensor>
struct TensorList {
    static constexpr int kMost = 32;
    Tensor tensors[kMost];
    uint32_t first[kMost + 1];  // the first chunk of each tensor, then the number of all
    int count = 0;

    DEVICE uint32_t num_chunks() const { return first[count]; }
    DEVICE int tensor_of(uint32_t chunk) const {
        int low = 0, high = count;  // first[low] <= chunk < first[high]
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (first[middle] <= chunk)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
};

// Calls start(list, blocks) for lists of the tensors that have elements, in order, with at most `most_blocks` blocks.
template <class Tensor, class Start>
void for_tensor_lists(const Tensor* tensors, int64_t count, int64_t chunk, int64_t most_blocks, Start start) {
    TensorList<Tensor> list;
    static_assert(sizeof list <= 4000, "kernel arguments: 4 KiB with the others");
    const auto flush = [&] {
        if (list.count == 0) return;
        start(list, unsigned(std::min<int64_t>(list.first[list.count], most_blocks)));
        list.count = 0;
    };
    list.first[0] = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t chunks = ceil_div(tensors[i].n, chunk);
        if (chunks == 0) continue;
        // Chunks are counted in 32 bits.
        if (list.count == TensorList<Tensor>::kMost || list.first[list.count] + chunks > INT32_MAX) flush();
        list.tensors[list.count] = tensors[i];
        list.first[list.count + 1] = list.first[list.count] + uint32_t(chunks);
        list.count++;
    }
    flush();
}

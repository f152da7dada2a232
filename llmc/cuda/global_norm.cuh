/*
The squared L2 norm of the gradient:   sum += x[0]^2 + x[1]^2 + ...   over units of 32 elements (llmc/ops/global_norm.h)

  x (n) f32     sum: one ExactSum in device memory, accumulated; NaN, infinity and elements above 1.8e19 count as not
  finite

Math      a unit in f32, in the CPU's order; units are added exactly, as integers (llmc/base/exact_sum.h)
Work      four lanes per unit, 32 units per warp and round. The bits that the units add to a word of the sum are added
          up across the warp; lane w keeps word w until the end, when blocks add their words to the sum
Bytes     4 n
Accuracy  the CPU's words, bit for bit (test/cuda/global_norm_cuda_test.cu); atomics are on integers, so their order
          does not matter
Requires  x 16-byte aligned
*/
#pragma once
#include <algorithm>
#include "llmc/base/exact_sum.h"  // ExactSum, exact_part
#include "llmc/cuda/device.cuh"   // Pack, load16_below, atomic_add, launch
#include "llmc/ops/op_cost.h"     // add_squares_cost

inline constexpr int kNormThreads = 256, kNormWarps = kNormThreads / kWarp, kNormBlocksPerSm = 4;
inline constexpr int kNormUnitElements = 32, kNormRoundElements = kWarp * kNormUnitElements;
inline constexpr int kSumWords = ExactSum::kWords + 1;  // the last one counts what is not finite

// The sum of squares of a unit, in all four lanes that hold it: lane j has elements 4j to 4j + 3 in a, and those 16
// further on in b.
DEVICE float unit_squares(const Pack<float>& a, const Pack<float>& b) {
    float s[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        s[k] = fmaf(b[k], b[k], a[k] * a[k]);
        s[k] += __shfl_xor_sync(kAllLanes, s[k], 2);
        s[k] += __shfl_xor_sync(kAllLanes, s[k], 1);
    }
    return (s[0] + s[2]) + (s[1] + s[3]);
}

// Adds a number >= 0 of each lane to the warp's ExactSum, of which lane w has word w.
DEVICE void warp_add_exactly(uint64_t& word, float x) {
    const int lane = threadIdx.x % kWarp;
    const bool finite = is_finite(x);
    const uint32_t strange = __ballot_sync(kAllLanes, !finite);
    if (lane == ExactSum::kWords) word += uint64_t(__popc(strange));
    const ExactPart part = exact_part(finite ? x : 0);
    uint32_t left = __ballot_sync(kAllLanes, part.bits != 0);
    while (left) {  // usually once: units have similar magnitudes
        const int at = __shfl_sync(kAllLanes, part.word, __ffs(int(left)) - 1);
        const uint64_t bits = part.word == at ? part.bits : 0;
        // 16, 16 and 23 bits of each lane at a time: few enough that the sum over 32 lanes is below 2^32.
        const uint64_t low = __reduce_add_sync(kAllLanes, uint32_t(bits) & 0xFFFF);
        const uint64_t middle = __reduce_add_sync(kAllLanes, uint32_t(bits) >> 16);
        const uint64_t high = __reduce_add_sync(kAllLanes, uint32_t(bits >> 32));
        if (lane == at) word += low + (middle << 16);
        if (lane == at + 1) word += high;
        left &= ~__ballot_sync(kAllLanes, part.word == at);
    }
}

template <class T = float>
__global__ void __launch_bounds__(kNormThreads) squares_kernel(uint64_t* sum, const T* x, int64_t n) {
    SMEM_STATIC(uint64_t, shared, [kNormWarps][kSumWords]);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int in_unit = lane % 4, lane_first = lane / 4 * kNormUnitElements + in_unit * Pack<T>::size;
    uint64_t word = 0;
    const int64_t step = int64_t(gridDim.x) * kNormWarps * kNormRoundElements;
    for (int64_t first = (int64_t(blockIdx.x) * kNormWarps + warp) * kNormRoundElements; first < n; first += step) {
        // Eight units at a time. Lane l keeps the unit of lanes 4 (l / 4) to 4 (l / 4) + 3 in round l % 4.
        float unit = 0;
        const auto add_units = [&](auto load) {
            Pack<T> a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int64_t at = first + lane_first + i * 8 * kNormUnitElements;
                a[i] = load(at);
                b[i] = load(at + kNormUnitElements / 2);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float squares = unit_squares(a[i], b[i]);
                if (in_unit == i) unit = squares;
            }
        };
        if (first + kNormRoundElements <= n)
            add_units([&](int64_t i) { return load16_streaming(x + i); });
        else
            add_units([&](int64_t i) { return load16_below(x, i, n); });
        warp_add_exactly(word, unit);
    }
    if (lane < kSumWords) shared[warp][lane] = word;
    __syncthreads();
    if (threadIdx.x >= kSumWords) return;
    for (int w = 1; w < kNormWarps; w++) word += shared[w][lane];
    if (word) atomic_add(sum + lane, word);
}

inline void add_squares(Cuda& cuda, ExactSum* sum, const float* x, int64_t n) {
    const OpScope op(cuda, __func__, add_squares_cost(n));
    const int64_t blocks =
        std::min<int64_t>(ceil_div(n, kNormWarps * kNormRoundElements), kNormBlocksPerSm * cuda.num_sms);
    if (blocks > 0)
        launch(cuda, "squares", squares_kernel<float>, unsigned(blocks), kNormThreads, 0,
               reinterpret_cast<uint64_t*>(sum), x, n);
}

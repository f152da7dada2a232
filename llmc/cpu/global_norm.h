/*
The squared L2 norm of the gradient, for clipping:   sum += x[0]^2 + x[1]^2 + ...

  x (n)     sum: an ExactSum, accumulated
Units of 32 elements, counted from x, are summed in float: 16 pairs 16 apart, by a fused multiply-add each, and then the
pairs 8 apart, 4, 2 and 1; what is missing of the last unit counts as zeros. The sum of units is exact. So any cut of a
buffer at multiples of 32 elements, in any order, on any number of threads, processors or ranks, gives the same words,
and so do the kernels (llmc/cuda/global_norm.cuh).

A unit that is not finite counts as such: one that has NaN or infinity in it, or squares that no float holds (an element
above 1.8e19). Squares of elements below 1e-19 lose digits, and those of elements below 2.6e-23 count for nothing.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/base/exact_sum.h"  // ExactSum
#include "llmc/cpu/device.h"      // Cpu, parallel_for
#include "llmc/cpu/simd.h"

inline namespace ANVIL_CPU_LEVEL {

inline constexpr int64_t kNormUnit = 2 * kLanes;

// Of four units at a time: x[i], x[i + 8], x[i + 4] and x[i + 12] have become one lane when what is left is turned.
namespace norm_units {
typedef float Quad __attribute__((vector_size(16)));

ANVIL_INLINE Quad quarter(F32x16 a, F32x16 b) {
    const F32x16 squares = fma(b, b, a * a);
    Quad q[4];
    std::memcpy(q, &squares, sizeof q);
    return (q[0] + q[2]) + (q[1] + q[3]);
}

// out[k]: the lanes of q[k] added up, the first and third, the second and fourth, and both
ANVIL_INLINE Quad sums_of(const Quad (&q)[4]) {
    const Quad a = __builtin_shufflevector(q[0], q[1], 0, 1, 4, 5) + __builtin_shufflevector(q[0], q[1], 2, 3, 6, 7);
    const Quad b = __builtin_shufflevector(q[2], q[3], 0, 1, 4, 5) + __builtin_shufflevector(q[2], q[3], 2, 3, 6, 7);
    return __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
}
}  // namespace norm_units

inline void add_squares(Cpu& cpu, ExactSum* sum, const float* x, int64_t n) {
    const int64_t units = (n + kNormUnit - 1) / kNormUnit, threads = cpu.num_threads;
    ExactSum* partials = reinterpret_cast<ExactSum*>(cpu.shared(threads * int64_t(sizeof(ExactSum) / sizeof(float))));
    parallel_for(cpu, threads, [=](int64_t thread) {
        using namespace norm_units;
        ExactSum own;
        const int64_t end = std::min(n, units * (thread + 1) / threads * kNormUnit);
        int64_t i = units * thread / threads * kNormUnit;
        for (; i + 4 * kNormUnit <= end; i += 4 * kNormUnit) {
            Quad quarters[4];
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++)
                quarters[k] = quarter(load(x + i + k * kNormUnit), load(x + i + k * kNormUnit + kLanes));
            const Quad sums = sums_of(quarters);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) own.add(sums[k]);
        }
        for (; i < end; i += kNormUnit) {
            const int left = int(std::min(end - i, kNormUnit));
            const F32x16 a = load(x + i, std::min(left, kLanes)), b = load(x + i + kLanes, std::max(left - kLanes, 0));
            own.add(sum_lanes(fma(b, b, a * a)));
        }
        partials[thread] = own;
    });
    for (int64_t thread = 0; thread < threads; thread++) sum->add(partials[thread]);
}

}  // namespace ANVIL_CPU_LEVEL

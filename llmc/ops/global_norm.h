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
#include <cstdint>
#include "llmc/base/exact_sum.h"  // ExactSum

template <class Device>
struct GlobalNormOps {
    void (*add_squares)(Device&, ExactSum* sum, const float* x, int64_t n);
};

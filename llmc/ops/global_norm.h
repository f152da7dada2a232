/*
The squared L2 norm of the gradient, for clipping:   sum += x[0]^2 + x[1]^2 + ...

  x (n) float     sum: an ExactSum, accumulated
Units of 32 elements, counted from x, are summed in float: first 16 pairs of elements that are 16 apart, with one fused
multiply-add each, then a tree of pairs that are 8, 4, 2 and 1 apart. The last unit is padded with zeros. The sum over
units is exact, so the result is bit-identical for any partition of the buffer at multiples of 32 elements, in any
order, on any number of threads and ranks, on CPUs and GPUs (llmc/cuda/global_norm.cuh).

A unit with a NaN, an infinity, or an element above 1.8e19, whose square overflows, makes the sum not finite. Squares of
elements below 1e-19 lose digits, and those of elements below 2.6e-23 underflow to zero.
*/
#pragma once
#include <cstdint>
#include "llmc/base/exact_sum.h"  // ExactSum

template <class Device>
struct GlobalNormOps {
    void (*add_squares)(Device&, ExactSum* sum, const float* x, int64_t n);
};

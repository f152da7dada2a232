/*
Adds one buffer to another:   to[i] += from[i]   over n floats. Used to sum gradients of micro-batches pairwise.
*/
#pragma once
#include <cstdint>

template <class Device>
struct AccumulateOps {
    void (*accumulate)(Device&, float* to, const float* from, int64_t n);
};

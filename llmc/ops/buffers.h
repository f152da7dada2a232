/*
Whole buffers of n elements:

  accumulate    to[i] += from[i]   over floats. Used to sum gradients of micro-batches pairwise
  cast          out[i] = inp[i], of another type; to bf16 rounded to nearest, ties to even
*/
#pragma once
#include <cstdint>
#include "llmc/base/bf16.h"  // bf16

template <class Device>
struct BufferOps {
    void (*accumulate)(Device&, float* to, const float* from, int64_t n);
    void (*cast_to_bf16)(Device&, bf16* out, const float* inp, int64_t n);
    void (*cast_to_float)(Device&, float* out, const bf16* inp, int64_t n);
};

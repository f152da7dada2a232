/*
Whole buffers of n elements:

  accumulate    to[i] += from[i]   over floats. Used to sum gradients of micro-batches pairwise
  cast          out[i] = inp[i], of another type; to bf16 rounded to nearest, ties to even
  accumulate_rounded
                to[i] += from[i], of a list of bf16 sums; if micro_batch == 0, to[i] = from[i]. Each is added in fp32,
                then rounded stochastically as moments are (moments.h), with the random bits of this micro-batch of
                the update that follows s->updates. Rounded to nearest, a sum would lose what is below half a unit of
                it, however often it is added
*/
#pragma once
#include <cstdint>
#include "llmc/base/bf16.h"         // bf16
#include "llmc/ops/moments.h"       // MomentRounding
#include "llmc/ops/step_scalars.h"  // StepScalars

// A piece of a parameter's gradient, summed over micro-batches in bf16.
struct RoundedSum {
    bf16* to;
    const float* from;
    int64_t n;
    MomentRounding rounding;  // of the piece's moments; sums have a stream of their own
};
constexpr uint64_t rounded_sum_key(const MomentRounding& rounding, int64_t updates, int64_t micro_batch) {
    const uint64_t key = other_rounding(rounding, Stream::rounded_gradients).key;
    return mix64(~moments_key_of(key, updates + 1) + uint64_t(micro_batch) * Rng::kStep);
}

template <class Device>
struct BufferOps {
    void (*accumulate)(Device&, float* to, const float* from, int64_t n);
    void (*accumulate_rounded)(Device&, const RoundedSum* sums, int64_t count, int64_t micro_batch,
                               const StepScalars* s);
    void (*cast_to_bf16)(Device&, bf16* out, const float* inp, int64_t n);
    void (*cast_to_float)(Device&, float* out, const bf16* inp, int64_t n);
};

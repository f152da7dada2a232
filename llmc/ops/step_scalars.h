/*
The sums and decisions of a training step, computed in device memory:

  add_mean_loss   sums.loss += weight * mean of losses (n),   sums.targets += the number of targets (n) that are >= 0
  decide_step     loss, norm and applied from the sums; grad_scale, with clipping by the global norm (Pascanu et al.,
                  2013, arXiv:1211.5063) if grad_clip > 0; counts the step in `updates` if it is applied
*/
#pragma once
#include <cstdint>
#include "llmc/base/exact_sum.h"  // ExactSum

// The sums of one optimizer step, in 64-bit integers only: an all-reduce adds them word by word, and the result is
// bit-identical for any number of ranks.
struct StepSums {
    ExactSum loss;            // of the targets that count, divided by the step's tokens
    ExactSum squares;         // of the gradient, before clipping
    ExactSum part_squares;    // of the gradients of parts of the step (llmc/run/noise_scale.h)
    uint64_t targets = 0;     // the number that count: those not below 0
    uint64_t elapsed_us = 0;  // training time before this step, as measured by rank 0
    uint64_t saturated = 0;   // elements beyond the range of their delayed FP8 scale (quantize.h)
    uint64_t votes[5] = {};   // ranks that request something of all ranks (Vote in llmc/run/step_config.h)
};

// The results and decisions of one optimizer step, in device memory, so that the host need not wait.
struct StepScalars {
    StepSums sums = {};
    double loss = 0;        // mean over the targets that count; NaN if there are none, or if it is not finite
    double norm = 0;        // of the gradient of that mean, before clipping; NaN if it is not finite
    double grad_scale = 1;  // factor for the gradient: tokens / targets that count, times the clip factor
    int64_t updates = 0;    // steps so far that changed the weights, including this one
    int32_t applied = 0;    // 0: something was not finite, and nothing may change
};

template <class Device>
struct StepScalarsOps {
    void (*add_mean_loss)(Device&, StepScalars* s, const float* losses, const int32_t* targets, int64_t n,
                          double weight);
    void (*decide_step)(Device&, StepScalars* s, double grad_clip, uint64_t num_tokens);
};

/*
The sums and decisions of a training step, computed in device memory.
*/
#pragma once
#include <cstdint>
#include "llmc/base/exact_sum.h"  // ExactSum

// The sums of one optimizer step, in 64-bit integers only: an all-reduce adds them word by word, and the result has the
// same bits for any number of ranks.
struct StepSums {
    ExactSum loss;            // of the losses of the targets that count, over the step's tokens
    ExactSum squares;         // of the gradient, before clipping
    ExactSum part_squares;    // of the gradients of parts of the step (llmc/train/noise_scale.h)
    uint64_t targets = 0;     // that count: those not below 0
    uint64_t elapsed_us = 0;  // of training before it, as rank 0 has measured it
    uint64_t saturated = 0;   // elements beyond their delayed scale's range in FP8 (quantize.h)
    uint64_t votes[7] = {};   // ranks that request something of all (Vote in llmc/train/step.h)
};

// The results and decisions of one optimizer step. In device memory, so that the host need not wait.
struct StepScalars {
    StepSums sums = {};
    double loss = 0;        // mean over the targets that count; NaN if it is not finite, or there are none
    double norm = 0;        // of the gradient of that, before clipping; NaN if it is not finite
    double grad_scale = 1;  // of the gradient: tokens / targets that count, times the clip factor
    int64_t updates = 0;    // steps so far that changed the weights, this one included
    int32_t applied = 0;    // 0: something was not finite, and nothing may change
};

template <class Device>
struct StepScalarsOps {
    void (*add_mean_loss)(Device&, StepScalars* s, const float* losses, const int32_t* targets, int64_t n,
                          double weight);
    void (*decide_step)(Device&, StepScalars* s, double grad_clip, uint64_t num_tokens);
};

/*
What one optimizer step finds out and decides, in device memory, so that the host never waits for it:

  add_mean_loss   s.sums.loss += weight * (sum of losses) / n        losses (n) f32, one micro-batch's
  decide_step     s.loss = s.sums.loss,   s.norm = sqrt(s.sums.squares),   s.applied = both are finite,   s.grad_scale =
                  what clipping makes of the norm, and s.updates counts the steps applied    (llmc/cpu/step_scalars.h)

Math      double; the mean's order of additions depends on n alone; sums of means are exact (llmc/base/exact_sum.h)
Work      one block; one thread
Bytes     4 n
Accuracy  the mean within n / 1024 + 10 double roundings; the decision is the CPU's, bit for bit
Requires  nothing
*/
#pragma once
#include "llmc/cuda/device.cuh"     // launch
#include "llmc/cuda/reduce.cuh"     // sum_in_double
#include "llmc/ops/op_cost.h"       // elements_cost
#include "llmc/ops/step_scalars.h"  // StepScalars

template <class T>
__global__ void __launch_bounds__(kSumThreads)
    add_mean_loss_kernel(StepScalars* s, const T* losses, int64_t n, double weight) {
    SMEM_STATIC(double, shared, [kWarp]);
    const double sum = sum_in_double(losses, n, shared);
    if (threadIdx.x == 0) s->sums.loss.add(weight * (sum / double(n)));
}

inline void add_mean_loss(Cuda& cuda, StepScalars* s, const float* losses, int64_t n, double weight) {
    const OpScope op(cuda, __func__, elements_cost<float>(1, 1, n));
    launch(cuda, "add_mean_loss", add_mean_loss_kernel<float>, 1, kSumThreads, 0, s, losses, n, weight);
}

template <class S>
__global__ void decide_step_kernel(S* s, double grad_clip) {
    const double loss = s->sums.loss.value(), norm = sqrt(s->sums.squares.value());
    const bool applied = fabs(loss) < INFINITY && fabs(norm) < INFINITY;
    s->loss = loss;
    s->norm = norm;
    s->grad_scale = grad_clip > 0 && norm > grad_clip ? grad_clip / (norm + 1e-6) : 1;
    s->applied = applied;
    s->updates += applied;
}

inline void decide_step(Cuda& cuda, StepScalars* s, double grad_clip) {
    const OpScope op(cuda, __func__);
    launch(cuda, "decide_step", decide_step_kernel<StepScalars>, 1, 1, 0, s, grad_clip);
}

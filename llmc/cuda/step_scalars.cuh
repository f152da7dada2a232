/*
The sums and decisions of one optimizer step, in device memory, so that the host never waits for them:

  add_mean_loss   s.sums.loss += weight * (sum of losses) / n        losses (n) f32, one micro-batch's
                  s.sums.targets += targets that are not below 0     targets (n) int32
  decide_step     s.loss = s.sums.loss share,   s.norm = sqrt(s.sums.squares) share,   s.applied = both are finite,
                  s.grad_scale = share times the clip factor,   share = num_tokens / s.sums.targets,
                  and s.updates counts the steps applied                                     (llmc/ops/step_scalars.h)

Math      double; the mean's order of additions depends on n alone; sums of means are exact (llmc/base/exact_sum.h)
Work      add_mean_loss: one block; decide_step: one thread
Bytes     8 n
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
    add_mean_loss_kernel(StepScalars* s, const T* losses, const int32_t* targets, int64_t n, double weight) {
    SMEM_STATIC(double, shared, [kWarp]);
    const double sum = sum_in_double(losses, n, shared);
    float count = 0;  // exact up to 2^24 per warp
    for (int64_t i = threadIdx.x; i < n; i += kSumThreads) count += targets[i] >= 0;
    count = warp_sum(count);
    if (threadIdx.x % kWarp == 0) atomic_add(&s->sums.targets, uint64_t(count));
    if (threadIdx.x == 0) s->sums.loss.add(weight * (sum / double(n)));
}

inline void add_mean_loss(Cuda& cuda, StepScalars* s, const float* losses, const int32_t* targets, int64_t n,
                          double weight) {
    const OpScope op(cuda, __func__, elements_cost<float>(2, 1, n));
    launch(cuda, "add_mean_loss", add_mean_loss_kernel<float>, 1, kSumThreads, 0, s, losses, targets, n, weight);
}

template <class S>
__global__ void decide_step_kernel(S* s, double grad_clip, uint64_t num_tokens) {
    const double share = s->sums.targets > 0 ? double(num_tokens) / double(s->sums.targets) : double(NAN);
    const double loss = s->sums.loss.value() * share, norm = sqrt(s->sums.squares.value()) * share;
    const bool applied = fabs(loss) < INFINITY && fabs(norm) < INFINITY;
    s->loss = loss;
    s->norm = norm;
    s->grad_scale = grad_clip > 0 && norm > grad_clip ? share * (grad_clip / (norm + 1e-6)) : share;
    s->applied = applied;
    s->updates += applied;
}

inline void decide_step(Cuda& cuda, StepScalars* s, double grad_clip, uint64_t num_tokens) {
    const OpScope op(cuda, __func__);
    launch(cuda, "decide_step", decide_step_kernel<StepScalars>, 1, 1, 0, s, grad_clip, num_tokens);
}

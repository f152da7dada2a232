/*
Scalars of a training step on the CPU: llmc/ops/step_scalars.h.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include "llmc/cpu/device.h"        // Cpu, mean
#include "llmc/ops/step_scalars.h"  // StepScalars

// s->sums.loss += weight * mean of losses (n); the mean is rounded, but the sum of such means is exact.
// s->sums.targets += the number of targets (n) that are not below 0
inline void add_mean_loss(Cpu& cpu, StepScalars* s, const float* losses, const int32_t* targets, int64_t n,
                          double weight) {
    const OpScope op(cpu, __func__);
    s->sums.loss.add(weight * mean(cpu, losses, n));
    s->sums.targets += uint64_t(std::count_if(targets, targets + n, [](int32_t target) { return target >= 0; }));
}

// Computes the loss and the norm from the sums, whether both are finite, and the factor for the gradient. Sums and
// gradients are means over the step's num_tokens; the factor turns them into means over the targets that count. If all
// of them count, it is 1 and changes no bits.
// Clipping by the global norm (Pascanu et al., 2013, arXiv:1211.5063), as in torch.nn.utils.clip_grad_norm_; a limit
// of 0 means none.
inline void decide_step(Cpu& cpu, StepScalars* s, double grad_clip, uint64_t num_tokens) {
    const OpScope op(cpu, __func__);
    // NaN if no target counts.
    const double share = s->sums.targets > 0 ? double(num_tokens) / double(s->sums.targets) : double(NAN);
    s->loss = s->sums.loss.value() * share;
    s->norm = std::sqrt(s->sums.squares.value()) * share;
    s->applied = std::isfinite(s->loss) && std::isfinite(s->norm);
    s->grad_scale = grad_clip > 0 && s->norm > grad_clip ? share * (grad_clip / (s->norm + 1e-6)) : share;
    s->updates += s->applied;
}

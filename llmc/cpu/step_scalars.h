/*
Scalars of a training step on the CPU: llmc/ops/step_scalars.h.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include "llmc/cpu/device.h"        // Cpu, mean
#include "llmc/ops/step_scalars.h"  // StepScalars

// s->sums.loss += weight * mean of losses (n), which is rounded; the sum of such means is exact
inline void add_mean_loss(Cpu& cpu, StepScalars* s, const float* losses, int64_t n, double weight) {
    const OpScope op(cpu, __func__);
    s->sums.loss.add(weight * mean(cpu, losses, n));
}

// Computes loss and norm from the sums, whether both are finite, and the factor for clipping.
// Clipping by the global norm (Pascanu et al., 2013, arXiv:1211.5063), as in torch.nn.utils.clip_grad_norm_; a limit
// of 0 means none.
inline void decide_step(Cpu& cpu, StepScalars* s, double grad_clip) {
    const OpScope op(cpu, __func__);
    s->loss = s->sums.loss.value();
    s->norm = std::sqrt(s->sums.squares.value());
    s->applied = std::isfinite(s->loss) && std::isfinite(s->norm);
    s->grad_scale = grad_clip > 0 && s->norm > grad_clip ? grad_clip / (s->norm + 1e-6) : 1;
    s->updates += s->applied;
}

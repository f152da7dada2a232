/*
Lion (Chen et al., 2023, arXiv:2302.06675, algorithm 2), element by element. Every update has the same size and the
sign of c, which mixes the gradient into the momentum with beta1; the momentum itself is updated with beta2.

  g = grad * grad_scale,   c = m + (1 - beta1) (g - m)
  master = master (1 - lr wd) - lr sign(c),   m += (1 - beta2) (g - m),   param = master          sign(0) = 0

  param (n) float or bf16     master, grad (n) float     m (n) float or bf16
If param is float, it is its own master weight and `master` is null. Otherwise param is master rounded to nearest, and
is not read. A NaN in c makes the weight NaN. bf16 m is rounded stochastically when it is stored (moments.h).
*/
#pragma once
#include <cstdint>
#include "llmc/ops/moments.h"       // MomentRounding
#include "llmc/ops/step_scalars.h"  // StepScalars

struct LionHyper {
    double learning_rate, beta1, beta2, weight_decay;
};

template <class T, class M = float>
struct LionTensor {
    T* param;
    float* master;
    M* m;
    const float* grad;
    int64_t n;
    LionHyper hyper;
    MomentRounding rounding = {};  // if M is bf16
};

// One call updates several tensors, each with its own hyperparameters.
template <class Device, class T>
struct LionOps {
    void (*lion_update)(Device&, const LionTensor<T>* tensors, int64_t count, const StepScalars* s);
    void (*lion_update_bf16)(Device&, const LionTensor<T, bf16>* tensors, int64_t count, const StepScalars* s);
};

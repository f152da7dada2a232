/*
Lion (Chen et al., 2023, arXiv:2302.06675, algorithm 2), element by element: the step has the sign of the momentum,
looked at with a shorter memory than the one it is kept with, and always the same size.

  g = grad * grad_scale,   c = m + (1 - beta1) (g - m)
  master = master (1 - lr wd) - lr sign(c),   m += (1 - beta2) (g - m),   param = master          sign(0) = 0

  param (n) float or bf16     master, grad (n) float     m (n) float or bf16
A float param is its own master, and `master` null; else param is the master rounded to nearest, and not read. A NaN in
c comes out as NaN. In bf16 m is stored rounded stochastically (moments.h).
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
    MomentRounding rounding = {};  // where M is bf16
};

// One call updates several tensors, each with numbers of its own.
template <class Device, class T>
struct LionOps {
    void (*lion_update)(Device&, const LionTensor<T>* tensors, int64_t count, const StepScalars* s);
    void (*lion_update_bf16)(Device&, const LionTensor<T, bf16>* tensors, int64_t count, const StepScalars* s);
};

/*
AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), element by element as torch.optim.AdamW does it:

  g = grad * grad_scale,   m += (1 - beta1) (g - m),   v = beta2 v + (1 - beta2) g^2
  master = master (1 - lr wd) - lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps),   param = master

  param (n) float or bf16     master, grad (n) float     m, v (n) float or bf16
A float param is its own master weight, and `master` is null. Otherwise param is master rounded to nearest, and is not
read. bf16 m and v are rounded stochastically when they are stored (moments.h); the update uses their unrounded values.
One call updates several tensors, each with its own hyperparameters.
*/
#pragma once
#include <cstdint>
#include "llmc/ops/moments.h"       // MomentRounding
#include "llmc/ops/step_scalars.h"  // StepScalars

struct AdamWHyper {
    double learning_rate, beta1, beta2, eps, weight_decay;
};

template <class T, class M = float>
struct AdamWTensor {
    T* param;
    float* master;
    M *m, *v;
    const float* grad;
    int64_t n;
    AdamWHyper hyper;
    MomentRounding rounding = {};  // if M is bf16
};

template <class Device, class T>
struct AdamwOps {
    void (*adamw_update)(Device&, const AdamWTensor<T>* tensors, int64_t count, const StepScalars* s);
    void (*adamw_update_bf16)(Device&, const AdamWTensor<T, bf16>* tensors, int64_t count, const StepScalars* s);
};

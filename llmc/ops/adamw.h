/*
AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), element by element as torch.optim.AdamW does it:

  g = grad * grad_scale,   m += (1 - beta1) (g - m),   v = beta2 v + (1 - beta2) g^2
  master = master (1 - lr wd) - lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps),   param = master

  param (n) float or bf16     master, grad (n) float     m, v (n) float or bf16
A float param is its own master weight, and `master` is null. Otherwise param is master rounded to nearest, and is not
read. bf16 m and v are rounded stochastically when they are stored (moments.h); the update uses their unrounded values.
A bf16 param with bf16 moments may have no master: then it is read, and rounded stochastically, too. `master` is null in
all tensors of a call, or in none.
One call updates several tensors, each with its own hyperparameters.
*/
#pragma once
#include <cstdint>
#include <type_traits>
#include "llmc/base/check.h"        // ensure
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

// Whether param may do without a master.
template <class T, class M>
inline constexpr bool kNeedsNoMaster = std::is_same_v<T, float> || (std::is_same_v<T, bf16> && std::is_same_v<M, bf16>);

// Whether the tensors have master weights: all or none of them.
template <class T, class M>
bool have_masters(const AdamWTensor<T, M>* tensors, int64_t count) {
    constexpr bool kMayHave = !std::is_same_v<T, float>, kMayLack = kNeedsNoMaster<T, M>;
    const bool has_master = count > 0 && tensors[0].master;
    ensure(count == 0 || (has_master ? kMayHave : kMayLack));
    for (int64_t i = 0; i < count; i++) ensure(bool(tensors[i].master) == has_master);
    return has_master;
}

template <class Device, class T>
struct AdamwOps {
    void (*adamw_update)(Device&, const AdamWTensor<T>* tensors, int64_t count, const StepScalars* s);
    void (*adamw_update_bf16)(Device&, const AdamWTensor<T, bf16>* tensors, int64_t count, const StepScalars* s);
};

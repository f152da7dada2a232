/*
Lion, in one pass, as the step was decided:

  g = grad * s.grad_scale,   c = m + (1 - beta1) (g - m)
  master = master (1 - lr wd) - lr sign(c),   m += (1 - beta2) (g - m),   param = master

  param (n) T     master, m, grad (n) f32     s in device memory; if !s.applied nothing changes, bit for bit.
  A null master: param is float and its own master. Else param is master rounded to nearest.

Math      f32 in the CPU's order and with its fused multiply-adds (llmc/cpu/lion.h)
Work      a thread updates Pack<T>::size elements of every tensor at a time, blocks stride over all of them
Bytes     20*n; with a bf16 param 22*n
Accuracy  the CPU's bits
Requires  pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"         // ensure
#include "llmc/ops/op_cost.h"        // lion_cost
#include "llmc/cuda/device.cuh"      // Pack, store16, launch
#include "llmc/cuda/float_pack.cuh"  // load_floats, store_floats
#include "llmc/ops/lion.h"           // LionHyper

inline constexpr int kLionThreads = 256, kLionBlocksPerSm = 4;

template <class T>
__global__ void __launch_bounds__(kLionThreads, kLionBlocksPerSm)
    lion_kernel(T* param, float* master, float* m, const float* grad, int64_t n, LionHyper hyper,
                const StepScalars* s) {
    constexpr int P = Pack<T>::size;
    constexpr bool kOwnMaster = std::is_same_v<T, float>;
    if (!s->applied) return;
    const float minus_rate = float(-hyper.learning_rate), grad_scale = float(s->grad_scale);
    const float keep = float(1 - hyper.learning_rate * hyper.weight_decay);
    const float one_minus_beta1 = float(1 - hyper.beta1), one_minus_beta2 = float(1 - hyper.beta2);

    // __fmul_rn is not fused with what follows: the CPU does not, either
    const auto update = [=](float& p, float& m, float grad) {
        const float change = __fmul_rn(grad, grad_scale) - m, c = fmaf(one_minus_beta1, change, m);
        p = fmaf(minus_rate, c > 0 ? 1 : c < 0 ? -1 : c, __fmul_rn(p, keep));
        m = fmaf(one_minus_beta2, change, m);
    };
    float* weight;
    if constexpr (kOwnMaster)
        weight = param;
    else
        weight = master;
    const int64_t stride = int64_t(gridDim.x) * kLionThreads * P;
    int64_t i = (int64_t(blockIdx.x) * kLionThreads + threadIdx.x) * P;
    for (; i + P <= n; i += stride) {
        float weights[P], ms[P], grads[P];
        load_floats(weights, weight + i);
        load_floats(ms, m + i);
        load_floats(grads, grad + i);
#pragma unroll
        for (int k = 0; k < P; k++) update(weights[k], ms[k], grads[k]);
        store_floats(m + i, ms);
        store_floats(weight + i, weights);
        if constexpr (!kOwnMaster) {
            Pack<T> rounded;
            for (int k = 0; k < P; k++) rounded[k] = from_float<T>(weights[k]);
            store16(param + i, rounded);
        }
    }
    for (; i < n; i++) {  // by one thread: the others' i is beyond n already
        update(weight[i], m[i], grad[i]);
        if constexpr (!kOwnMaster) param[i] = from_float<T>(weight[i]);
    }
}

template <class T>
void lion_update(Cuda& cuda, T* param, float* master, float* m, const float* grad, int64_t n, const LionHyper& hyper,
                 const StepScalars* s) {
    const OpScope op(cuda, __func__, lion_cost<T>(n));
    ensure((master == nullptr) == (std::is_same_v<T, float>));
    if (n == 0) return;
    const int64_t blocks =
        std::min<int64_t>(ceil_div(n, kLionThreads * Pack<T>::size), kLionBlocksPerSm * cuda.num_sms);
    launch(cuda, "lion_update", lion_kernel<T>, unsigned(blocks), kLionThreads, 0, param, master, m, grad, n, hyper, s);
}

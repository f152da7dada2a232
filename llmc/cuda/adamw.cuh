/*
AdamW, in one pass, as the step was decided:

  g = grad * s.grad_scale,   m += (1 - beta1) (g - m),   v = beta2 v + (1 - beta2) g^2
  master = master (1 - lr wd) - lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps),   param = master

  param (n) T     master, m, v, grad (n) f32     s in device memory; if !s.applied nothing changes, bit for bit.
  A null master: param is float and its own master. Else param is master rounded to nearest. step = s.updates.

Math      f32 in the CPU's order and with its fused multiply-adds (llmc/cpu/adamw.h)
          coefficients in double, once a block
Work      a thread Pack<T>::size elements of every tensor at a time, blocks stride over all of them
Bytes     28*n; with a bf16 param 30*n
Accuracy  the CPU's bits; where the two double pow() differ, roundings of the coefficients
          (test/cuda/adamw_cuda_test.cu)
Requires  pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"         // ensure
#include "llmc/cuda/device.cuh"      // Pack, store16, launch
#include "llmc/cuda/float_pack.cuh"  // load_floats, store_floats
#include "llmc/ops/adamw.h"          // AdamWHyper
#include "llmc/ops/op_cost.h"        // adamw_cost
#include "llmc/ops/step_scalars.h"   // StepScalars

inline constexpr int kAdamWThreads = 256, kAdamWBlocksPerSm = 4;

template <class T>
__global__ void __launch_bounds__(kAdamWThreads, kAdamWBlocksPerSm)
    adamw_kernel(T* param, float* master, float* m, float* v, const float* grad, int64_t n, AdamWHyper hyper,
                 const StepScalars* s) {
    constexpr int P = Pack<T>::size;
    constexpr bool kOwnMaster = std::is_same_v<T, float>;
    if (!s->applied) return;
    SMEM_STATIC(float, shared, [2]);
    // The two powers take hundreds of instructions each: one by the first warp, one by the second.
    if (threadIdx.x == 0) shared[0] = float(-hyper.learning_rate / (1 - pow(hyper.beta1, double(s->updates))));
    if (threadIdx.x == kWarp) shared[1] = float(1 / sqrt(1 - pow(hyper.beta2, double(s->updates))));
    __syncthreads();
    const float minus_rate = shared[0], v_scale = shared[1];
    const float keep = float(1 - hyper.learning_rate * hyper.weight_decay), eps = float(hyper.eps);
    const float one_minus_beta1 = float(1 - hyper.beta1), one_minus_beta2 = float(1 - hyper.beta2);
    const float beta2 = float(hyper.beta2), grad_scale = float(s->grad_scale);

    // __fmul_rn is not fused with what follows: the CPU does not, either
    const auto update = [=](float& p, float& m, float& v, float grad) {
        const float g = __fmul_rn(grad, grad_scale);
        m = fmaf(one_minus_beta1, g - m, m);
        v = fmaf(__fmul_rn(one_minus_beta2, g), g, __fmul_rn(beta2, v));
        p = fmaf(minus_rate, m / fmaf(sqrtf(v), v_scale, eps), __fmul_rn(p, keep));
    };
    float* weight;
    if constexpr (kOwnMaster)
        weight = param;
    else
        weight = master;
    const int64_t stride = int64_t(gridDim.x) * kAdamWThreads * P;
    int64_t i = (int64_t(blockIdx.x) * kAdamWThreads + threadIdx.x) * P;
    for (; i + P <= n; i += stride) {
        float weights[P], ms[P], vs[P], grads[P];
        load_floats(weights, weight + i);
        load_floats(ms, m + i);
        load_floats(vs, v + i);
        load_floats(grads, grad + i);
#pragma unroll
        for (int k = 0; k < P; k++) update(weights[k], ms[k], vs[k], grads[k]);
        store_floats(m + i, ms);
        store_floats(v + i, vs);
        store_floats(weight + i, weights);
        if constexpr (!kOwnMaster) {
            Pack<T> rounded;
            for (int k = 0; k < P; k++) rounded[k] = from_float<T>(weights[k]);
            store16(param + i, rounded);
        }
    }
    for (; i < n; i++) {  // by one thread: the others' i is beyond n already
        update(weight[i], m[i], v[i], grad[i]);
        if constexpr (!kOwnMaster) param[i] = from_float<T>(weight[i]);
    }
}

template <class T>
void adamw_update(Cuda& cuda, T* param, float* master, float* m, float* v, const float* grad, int64_t n,
                  const AdamWHyper& hyper, const StepScalars* s) {
    const OpScope op(cuda, __func__, adamw_cost<T>(n));
    ensure((master == nullptr) == (std::is_same_v<T, float>));
    if (n == 0) return;
    const int64_t blocks =
        std::min<int64_t>(ceil_div(n, kAdamWThreads * Pack<T>::size), kAdamWBlocksPerSm * cuda.num_sms);
    launch(cuda, "adamw_update", adamw_kernel<T>, unsigned(blocks), kAdamWThreads, 0, param, master, m, v, grad, n,
           hyper, s);
}

/*
Lion in one pass, with the decisions of the step:

  g = grad * s.grad_scale,   c = m + (1 - beta1) (g - m)
  master = master (1 - lr wd) - lr sign(c),   m += (1 - beta2) (g - m),   param = master

  param (n) T     master, grad (n) f32     m (n) M     s in device memory
  If !s.applied nothing changes, bit for bit. With M = bf16, m is rounded as llmc/ops/moments.h says.
  If master is null, param is float and its own master. Else param is master rounded to nearest.

Math      f32 in the CPU's order and with its fused multiply-adds (llmc/cpu/lion.h)
Work      each thread takes 4 elements of every array at a time, 8 if any is bf16; blocks stride over the chunks of up
          to 32 tensors (tensor_list.cuh)
Bytes     20*n; with a bf16 param 22*n; with a bf16 m 4*n fewer
Accuracy  the CPU's bits
Requires  pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"          // ensure
#include "llmc/ops/op_cost.h"         // lion_cost
#include "llmc/cuda/device.cuh"       // Pack, store16, launch
#include "llmc/cuda/float_pack.cuh"   // load_floats, store_floats
#include "llmc/cuda/moments.cuh"      // MomentBits, store_moments
#include "llmc/cuda/tensor_list.cuh"  // TensorList, for_tensor_lists
#include "llmc/ops/lion.h"            // LionHyper, LionTensor

inline constexpr int kLionThreads = 256, kLionBlocksPerSm = 4;

template <class T, class M>
__global__ void __launch_bounds__(kLionThreads, kLionBlocksPerSm)
    lion_kernel(TensorList<LionTensor<T, M>> list, const StepScalars* s) {
    wait_for_previous_kernels();
    constexpr int P = kUpdatePack<T, M>;
    constexpr bool kOwnMaster = std::is_same_v<T, float>;
    if (!s->applied) return;
    const float grad_scale = float(s->grad_scale);
    for (uint32_t chunk = blockIdx.x; chunk < list.num_chunks(); chunk += gridDim.x) {
        const int at = list.tensor_of(chunk);
        const LionTensor<T, M>& tensor = list.tensors[at];
        const LionHyper& hyper = tensor.hyper;
        const float minus_rate = float(-hyper.learning_rate);
        const float keep = float(1 - hyper.learning_rate * hyper.weight_decay);
        const float one_minus_beta1 = float(1 - hyper.beta1), one_minus_beta2 = float(1 - hyper.beta2);
        // __fmul_rn is not fused with what follows, as on the CPU.
        const auto update = [=](float& p, float& m, float grad) {
            const float change = __fmul_rn(grad, grad_scale) - m, c = fmaf(one_minus_beta1, change, m);
            p = fmaf(minus_rate, c > 0 ? 1 : c < 0 ? -1 : c, __fmul_rn(p, keep));
            m = fmaf(one_minus_beta2, change, m);
        };
        float* weight;
        M* const m = tensor.m;
        if constexpr (kOwnMaster)
            weight = tensor.param;
        else
            weight = tensor.master;
        const int64_t n = tensor.n;
        int64_t i = (int64_t(chunk - list.first[at]) * kLionThreads + threadIdx.x) * P;
        if (i + P <= n) {
            float weights[P], ms[P], grads[P];
            load_floats(weights, weight + i);
            load_floats(ms, m + i);
            load_floats(grads, tensor.grad + i);
#pragma unroll
            for (int k = 0; k < P; k++) update(weights[k], ms[k], grads[k]);
            const MomentBits<M, P> bits(moments_key_of(tensor.rounding.key, s->updates),
                                        tensor.rounding.first + uint64_t(i));
            store_moments(m + i, ms, bits, Moment::first);
            store_floats(weight + i, weights);
            if constexpr (!kOwnMaster) {
                Pack<T> rounded;
                for (int k = 0; k < P; k++) rounded[k] = from_float<T>(weights[k]);
                store16(tensor.param + i, rounded);
            }
            continue;
        }
        for (; i < n; i++) {  // less than a pack, by one thread: i is beyond n in the others
            float new_m = to_float(m[i]);
            update(weight[i], new_m, tensor.grad[i]);
            const MomentBits<M, 1> bits(moments_key_of(tensor.rounding.key, s->updates),
                                        tensor.rounding.first + uint64_t(i));
            store_moment(m + i, new_m, bits.of(0, Moment::first));
            if constexpr (!kOwnMaster) tensor.param[i] = from_float<T>(weight[i]);
        }
    }
}

template <class T, class M>
void lion_update(Cuda& cuda, const LionTensor<T, M>* tensors, int64_t count, const StepScalars* s) {
    const OpScope op(cuda, __func__, lion_cost<T, M>(num_elements(tensors, count)));
    for (int64_t i = 0; i < count; i++) ensure((tensors[i].master == nullptr) == (std::is_same_v<T, float>));
    for_tensor_lists(tensors, count, kLionThreads * kUpdatePack<T, M>, kLionBlocksPerSm * cuda.num_sms,
                     [&](const TensorList<LionTensor<T, M>>& list, unsigned blocks) {
                         const OpCost cost = lion_cost<T, M>(num_elements(list.tensors, list.count));
                         launch(cuda, {"lion_update", cost}, lion_kernel<T, M>, blocks, kLionThreads, 0, list, s);
                     });
}

/*
AdamW in one pass, with the decisions of the step:

  g = grad * s.grad_scale,   m += (1 - beta1) (g - m),   v = beta2 v + (1 - beta2) g^2
  master = master (1 - lr wd) - lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps),   param = master

  param (n) T     master, grad (n) f32     m, v (n) M     s in device memory
  If !s.applied nothing changes, bit for bit. With M = bf16, m and v are rounded as llmc/ops/moments.h says.
  If master is null, param is its own master: float, or bf16 that is rounded as the moments are. Else param is master
  rounded to nearest. step = s.updates.

Math      f32 in the CPU's order and with its fused multiply-adds (llmc/cpu/adamw.h);
          coefficients in double, once per block
Work      each thread takes 4 elements of every array at a time, 8 if any is bf16; blocks stride over the chunks of up
          to 32 tensors (tensor_list.cuh)
Bytes     28*n; with a bf16 param 30*n; with bf16 moments 8*n fewer; with these and no master 16*n
Accuracy  the CPU's bits, but for roundings of the coefficients where the two double pow() differ
          (test/cuda/adamw_cuda_test.cu)
Requires  pointers 16-byte aligned
*/
#pragma once
#include "llmc/base/check.h"          // ensure
#include "llmc/cuda/device.cuh"       // Pack, store16, load_floats, launch
#include "llmc/cuda/moments.cuh"      // MomentBits, store_moments
#include "llmc/cuda/tensor_list.cuh"  // TensorList, for_tensor_lists
#include "llmc/ops/adamw.h"           // AdamWHyper, AdamWTensor
#include "llmc/ops/op_cost.h"         // adamw_cost
#include "llmc/ops/step_scalars.h"    // StepScalars

#if defined(CUDART_VERSION) && CUDART_VERSION < 13000
inline constexpr int kAdamWBlocksPerSm = 3;  // with 4, nvcc 12.4 spills registers
#else
inline constexpr int kAdamWBlocksPerSm = 4;
#endif
inline constexpr int kAdamWThreads = 256;

// W: the type of the weights that are updated; T where they have no master weights.
template <class T, class M, class W>
__global__ void __launch_bounds__(kAdamWThreads, kAdamWBlocksPerSm)
    adamw_kernel(TensorList<AdamWTensor<T, M>> list, const StepScalars* s) {
    constexpr int P = kUpdatePack<T, M>, kMost = TensorList<AdamWTensor<T, M>>::kMost;
    constexpr bool kOwnMaster = std::is_same_v<T, W>;
    if (!s->applied) return;
    SMEM_STATIC(float, minus_rates, [kMost]);
    SMEM_STATIC(float, v_scales, [kMost]);
    // Each pow() takes hundreds of instructions, so those of all tensors run at once: one of the two powers on the
    // first warps, the other on the next.
    const int t = int(threadIdx.x) % kMost;
    if (t < list.count && threadIdx.x < 2 * kMost) {
        const AdamWHyper& hyper = list.tensors[t].hyper;
        if (threadIdx.x < kMost)
            minus_rates[t] = float(-hyper.learning_rate / (1 - pow(hyper.beta1, double(s->updates))));
        else
            v_scales[t] = float(1 / sqrt(1 - pow(hyper.beta2, double(s->updates))));
    }
    __syncthreads();
    const float grad_scale = float(s->grad_scale);

    for (uint32_t chunk = blockIdx.x; chunk < list.num_chunks(); chunk += gridDim.x) {
        const int at = list.tensor_of(chunk);
        const AdamWTensor<T, M>& tensor = list.tensors[at];
        const AdamWHyper& hyper = tensor.hyper;
        const float minus_rate = minus_rates[at], v_scale = v_scales[at];
        const float keep = float(1 - hyper.learning_rate * hyper.weight_decay), eps = float(hyper.eps);
        const float one_minus_beta1 = float(1 - hyper.beta1), one_minus_beta2 = float(1 - hyper.beta2);
        const float beta2 = float(hyper.beta2);
        // __fmul_rn is not fused with what follows, as on the CPU.
        const auto update = [=](float& p, float& m, float& v, float grad) {
            const float g = __fmul_rn(grad, grad_scale);
            m = fmaf(one_minus_beta1, g - m, m);
            v = fmaf(__fmul_rn(one_minus_beta2, g), g, __fmul_rn(beta2, v));
            p = fmaf(minus_rate, m / fmaf(sqrtf(v), v_scale, eps), __fmul_rn(p, keep));
        };
        W* weight;
        M *const m = tensor.m, *const v = tensor.v;
        if constexpr (kOwnMaster)
            weight = tensor.param;
        else
            weight = tensor.master;
        const auto weight_bits = [&](auto size, int64_t at) {  // none where W is float
            const MomentRounding rounding = other_rounding(tensor.rounding, Stream::rounded_weights);
            return MomentBits<W, decltype(size)::value>(moments_key_of(rounding.key, s->updates),
                                                        rounding.first + uint64_t(at));
        };
        const int64_t n = tensor.n;
        int64_t i = (int64_t(chunk - list.first[at]) * kAdamWThreads + threadIdx.x) * P;
        if (i + P <= n) {
            float weights[P], ms[P], vs[P], grads[P];
            load_floats(weights, weight + i);
            load_floats(ms, m + i);
            load_floats(vs, v + i);
            load_floats(grads, tensor.grad + i);
#pragma unroll
            for (int k = 0; k < P; k++) update(weights[k], ms[k], vs[k], grads[k]);
            const MomentBits<M, P> bits(moments_key_of(tensor.rounding.key, s->updates),
                                        tensor.rounding.first + uint64_t(i));
            store_moments(m + i, ms, bits, Moment::first);
            store_moments(v + i, vs, bits, Moment::second);
            store_moments(weight + i, weights, weight_bits(std::integral_constant<int, P>(), i), Moment::first);
            if constexpr (!kOwnMaster) {
                Pack<T> rounded;
                for (int k = 0; k < P; k++) rounded[k] = from_float<T>(weights[k]);
                store16(tensor.param + i, rounded);
            }
            continue;
        }
        for (; i < n; i++) {  // less than a pack, by one thread: i is beyond n in the others
            float new_weight = to_float(weight[i]), new_m = to_float(m[i]), new_v = to_float(v[i]);
            update(new_weight, new_m, new_v, tensor.grad[i]);
            const MomentBits<M, 1> bits(moments_key_of(tensor.rounding.key, s->updates),
                                        tensor.rounding.first + uint64_t(i));
            store_moment(m + i, new_m, bits.of(0, Moment::first));
            store_moment(v + i, new_v, bits.of(0, Moment::second));
            store_moment(weight + i, new_weight, weight_bits(std::integral_constant<int, 1>(), i).of(0, Moment::first));
            if constexpr (!kOwnMaster) tensor.param[i] = from_float<T>(new_weight);
        }
    }
}

template <class T, class M>
void adamw_update(Cuda& cuda, const AdamWTensor<T, M>* tensors, int64_t count, const StepScalars* s) {
    const bool has_masters = have_masters(tensors, count);
    const OpScope op(cuda, __func__, adamw_cost<T, M>(num_elements(tensors, count), has_masters));
    using OwnMaster = std::conditional_t<kNeedsNoMaster<T, M>, T, float>;
    for_tensor_lists(tensors, count, kAdamWThreads * kUpdatePack<T, M>, kAdamWBlocksPerSm * cuda.num_sms,
                     [&](const TensorList<AdamWTensor<T, M>>& list, unsigned blocks) {
                         const OpCost cost = adamw_cost<T, M>(num_elements(list.tensors, list.count), has_masters);
                         launch(cuda, {"adamw_update", cost},
                                has_masters ? adamw_kernel<T, M, float> : adamw_kernel<T, M, OwnMaster>, blocks,
                                kAdamWThreads, 0, list, s);
                     });
}

/*
AdamW on the CPU: llmc/ops/adamw.h.

One memory-bound pass: 28 bytes per element, 30 with a bf16 param, 8 fewer with bf16 moments, 16 without master weights.
Plain stores reach the limit: the cache lines that they write were just read (dev/log/cpu.md).
*/
#pragma once
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include "llmc/base/check.h"   // ensure
#include "llmc/cpu/device.h"   // Cpu, parallel_chunks
#include "llmc/cpu/moments.h"  // MomentStore
#include "llmc/cpu/simd.h"
#include "llmc/ops/adamw.h"         // AdamWHyper
#include "llmc/ops/op_cost.h"       // adamw_cost
#include "llmc/ops/step_scalars.h"  // StepScalars

struct AdamWStep {
    double learning_rate, beta1, beta2, eps, weight_decay;  // double: 1 - 0.999f has a relative error of 3e-5
    double grad_scale;                                      // what clipping multiplies the gradient by
    int64_t step;                                           // from 1
};

// W: float, or bf16 if the weights have no master weights: then `weight` is `param`.
template <class T, class M, class W>
void adamw_pass(Cpu& cpu, T* param, W* weight, M* m, M* v, const float* grad, int64_t n, const AdamWStep& s,
                const MomentRounding& rounding = {}) {
    const MomentStore<M> moments(rounding, s.step);
    const MomentStore<W> weights(other_rounding(rounding, Stream::rounded_weights), s.step);
    const auto rounded = [](double x) { return broadcast(float(x)); };
    const F32x16 keep = rounded(1 - s.learning_rate * s.weight_decay);
    const F32x16 minus_rate = rounded(-s.learning_rate / (1 - std::pow(s.beta1, double(s.step))));
    const F32x16 v_scale = rounded(1 / std::sqrt(1 - std::pow(s.beta2, double(s.step))));
    const F32x16 one_minus_beta1 = rounded(1 - s.beta1), one_minus_beta2 = rounded(1 - s.beta2);
    const F32x16 beta2 = rounded(s.beta2), eps = rounded(s.eps), grad_scale = rounded(s.grad_scale);
    parallel_chunks(cpu, n, 16384, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin, [=](int64_t offset, auto width) {
            const int64_t i = begin + offset;
            const F32x16 g = load_ahead(grad + i, width) * grad_scale;
            const F32x16 old_m = load_ahead(m + i, width);
            const F32x16 new_m = fma(one_minus_beta1, g - old_m, old_m);
            const F32x16 new_v = fma(one_minus_beta2 * g, g, beta2 * load_ahead(v + i, width));
            const F32x16 update = new_m / fma(sqrt(new_v), v_scale, eps);
            const F32x16 new_weight = fma(minus_rate, update, load_ahead(weight + i, width) * keep);
            moments.store_moments(i, m, new_m, v, new_v, width);
            weights.store_moment(i, weight, new_weight, width);
            if constexpr (!std::is_same_v<T, W>) store(param + i, new_weight, width);
        });
    });
}

inline void adamw_update(Cpu& cpu, float* param, float* m, float* v, const float* grad, int64_t n, const AdamWStep& s) {
    adamw_pass(cpu, param, param, m, v, grad, n, s);
}

// The same for a list of tensors, with the decisions of a training step: nothing changes unless s->applied.
template <class T, class M>
void adamw_update(Cpu& cpu, const AdamWTensor<T, M>* tensors, int64_t count, const StepScalars* s) {
    const bool has_masters = have_masters(tensors, count);
    const OpScope op(cpu, __func__, adamw_cost<T, M>(num_elements(tensors, count), has_masters));
    for (const AdamWTensor<T, M>& t : std::span(tensors, size_t(count))) {
        if (!s->applied) continue;
        const auto update = [&](auto* weight) {
            adamw_pass(cpu, t.param, weight, t.m, t.v, t.grad, t.n,
                       AdamWStep{t.hyper.learning_rate, t.hyper.beta1, t.hyper.beta2, t.hyper.eps, t.hyper.weight_decay,
                                 s->grad_scale, s->updates},
                       t.rounding);
        };
        if constexpr (kNeedsNoMaster<T, M>)
            has_masters ? update(t.master) : update(t.param);
        else
            update(t.master);
    }
}
template <class T>
void adamw_update(Cpu& cpu, T* param, float* master, float* m, float* v, const float* grad, int64_t n,
                  const AdamWHyper& hyper, const StepScalars* s) {
    const AdamWTensor<T> tensor{param, master, m, v, grad, n, hyper};
    adamw_update(cpu, &tensor, 1, s);
}

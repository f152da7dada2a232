/*
Muon on the CPU: llmc/ops/muon.h.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include "llmc/base/check.h"   // ensure
#include "llmc/cpu/device.h"   // Cpu, parallel_for
#include "llmc/cpu/moments.h"  // MomentStore
#include "llmc/cpu/reduce.h"   // add_partials
#include "llmc/cpu/simd.h"
#include "llmc/ops/muon.h"          // MuonStep
#include "llmc/ops/step_scalars.h"  // StepScalars

template <class T>
ANVIL_INLINE float sum_of_squares(const T* row, int64_t n) {
    F32x16 sum = zeros();
    for_lanes(n, [&](int64_t i, auto width) {
        const F32x16 x = load(row + i, width);
        sum = fma(x, x, sum);
    });
    return sum_lanes(sum);
}

template <class T>
int64_t muon_row(Cpu&, int64_t K) {
    return K;
}

template <class T, class M>
void muon_momentum_pass(Cpu& cpu, T* X, float* row_squares, M* momentum, const float* grad, int64_t R, int64_t K,
                        const MuonStep& step, const StepScalars* s, const MomentRounding& rounding) {
    const MomentStore<M> moments(rounding, s->updates);
    const float rest = float(1 - step.momentum), grad_scale = float(s->grad_scale);
    parallel_for(cpu, R, [=](int64_t r) {
        for_lanes(K, [=](int64_t k, auto width) {
            const int64_t i = r * K + k;
            const F32x16 g = load(grad + i, width) * grad_scale, old = load(momentum + i, width);
            const F32x16 m = fma(broadcast(rest), g - old, old);
            moments.store_moment(i, momentum, m, width);
            store(X + i, fma(broadcast(rest), g - m, m), width);
        });
        row_squares[r] = sum_of_squares(X + r * K, K);
    });
}

template <class T>
void muon_momentum(Cpu& cpu, T* X, float* row_squares, float* momentum, const float* grad, int64_t R, int64_t K,
                   const MuonStep& step, const StepScalars* s) {
    const OpScope op(cpu, __func__);
    if (s->applied) muon_momentum_pass(cpu, X, row_squares, momentum, grad, R, K, step, s, {});
}
template <class T>
void muon_momentum_bf16(Cpu& cpu, T* X, float* row_squares, bf16* momentum, const float* grad, int64_t R, int64_t K,
                        const MuonStep& step, const StepScalars* s, const MomentRounding& rounding) {
    const OpScope op(cpu, __func__);
    if (s->applied) muon_momentum_pass(cpu, X, row_squares, momentum, grad, R, K, step, s, rounding);
}

template <class T>
void muon_normalize(Cpu& cpu, T* X, const float* row_squares, int64_t R, int64_t K, const MuonStep& step) {
    const OpScope op(cpu, __func__);
    double squares = 0, equal_squares = 0;
    for (int64_t r = 0; r < R; r++) squares += double(row_squares[r]);
    const double row_norm = std::sqrt(squares / double(R));  // of every row after equalization
    const auto row_factor = [=](int64_t r) {
        return step.equal_rows ? row_norm / std::max(std::sqrt(double(row_squares[r])), 1e-6) : 1;
    };
    for (int64_t r = 0; r < R; r++) equal_squares += row_factor(r) * row_factor(r) * double(row_squares[r]);
    const double factor = 1 / (step.margin * std::sqrt(equal_squares) + 1e-6);
    parallel_for(cpu, R, [=](int64_t r) {
        const float scale = float(row_factor(r) * factor);
        for_lanes(K, [=](int64_t k, auto width) { store(X + r * K + k, load(X + r * K + k, width) * scale, width); });
    });
}

template <class T>
void muon_squares(Cpu& cpu, float* squares, const T* X, int64_t R, int64_t K) {
    const OpScope op(cpu, __func__);
    if (R >= K) return parallel_for(cpu, R, [=](int64_t r) { squares[r] = sum_of_squares(X + r * K, K); });
    float* partials = cpu.shared_scratch(num_row_chunks(R) * K);
    parallel_for(cpu, num_row_chunks(R), [=](int64_t chunk) {
        const int64_t begin = chunk * kRowsPerChunk, end = std::min(R, begin + kRowsPerChunk);
        for_lanes(K, [=](int64_t k, auto width) {
            F32x16 sum = zeros();
            for (int64_t r = begin; r < end; r++) {
                const F32x16 x = load(X + r * K + k, width);
                sum = fma(x, x, sum);
            }
            store(partials + chunk * K + k, sum, width);
        });
    });
    fill_zero(cpu, squares, K);
    add_partials(cpu, squares, partials, num_row_chunks(R), K, K);
}

inline void muon_scales(Cpu& cpu, float* scales, float* V, const float* squares, int64_t R, int64_t K,
                        const MuonStep& step, const StepScalars* s) {
    const OpScope op(cpu, __func__);
    if (!s->applied) return;
    const int64_t n = std::max(R, K), reduced = std::min(R, K);
    double all = 0;
    for (int64_t i = 0; i < n; i++) all += double(squares[i]);
    const double g_scale = step.fixed_norm ? std::sqrt(double(reduced)) / std::max(std::sqrt(all), 1e-6) : 1;
    if (!V) return std::fill_n(scales, n, float(g_scale)), void();
    double before = 0, after = 0;  // sums of v and of v s^2: squared norms over `reduced`
    for (int64_t i = 0; i < n; i++) {
        const double v = g_scale * g_scale * double(squares[i]) / double(reduced);
        V[i] = float(double(V[i]) + (1 - step.beta2) * (v - double(V[i])));
        const double s_i = 1 / std::sqrt(std::max(double(V[i]), 1e-10));
        before += v;
        after += v * s_i * s_i;
        scales[i] = float(g_scale * s_i);
    }
    const double norm = std::sqrt(before * double(reduced)) / std::max(std::sqrt(after * double(reduced)), 1e-10);
    for (int64_t i = 0; i < n; i++) scales[i] = float(double(scales[i]) * norm);
}

// X * scale, of a row
template <class T>
ANVIL_INLINE F32x16 muon_g(const T* X, const float* scales, int64_t r, int64_t k, int64_t R, int64_t K, auto width) {
    return load(X + r * K + k, width) * (R >= K ? broadcast(scales[r]) : load(scales + k, width));
}

// weight: what the update reads, the master if there is one
template <class T, class W>
void muon_lifts_of(Cpu& cpu, float* lifts, float* keep, float* radius, const W* weight, const T* X, const float* scales,
                   int64_t R, int64_t K, const MuonStep& step) {
    float *ww = cpu.shared_scratch(3 * R), *wg = ww + R, *gg = wg + R;
    parallel_for(cpu, R, [=](int64_t r) {
        F32x16 sums[3] = {zeros(), zeros(), zeros()};
        for_lanes(K, [&](int64_t k, auto width) {
            const F32x16 g = muon_g(X, scales, r, k, R, K, width), w = load(weight + r * K + k, width);
            sums[0] = fma(w, w, sums[0]), sums[1] = fma(w, g, sums[1]), sums[2] = fma(g, g, sums[2]);
        });
        ww[r] = sum_lanes(sums[0]), wg[r] = sum_lanes(sums[1]), gg[r] = sum_lanes(sums[2]);
    });
    const double shape = step.shape_factor(R, K), rate = step.rate(R, K);
    const auto lift_of = [=](double w, double g) { return w / std::max(shape * g, 1e-10); };
    double w = 0, products = 0, g = 0;
    for (int64_t r = 0; r < R; r++) w += double(ww[r]), products += double(wg[r]), g += double(gg[r]);
    *keep = 1;
    if (step.norms == MuonNorms::hyperball) {
        double now = *radius;
        if (now == 0) now = std::sqrt(w) >= step.least_radius(R) ? std::sqrt(w) : -step.least_radius(R);
        const double lift = lift_of(std::fabs(now), std::sqrt(g));
        const double next = std::sqrt(std::max(0., w - 2 * rate * lift * products + rate * lift * rate * lift * g));
        if (now > 0 || next >= -now) now = std::fabs(now), *keep = float(now / std::max(next, 1e-10));
        *radius = float(now);
        return std::fill_n(lifts, R, float(lift)), void();
    }
    for (int64_t r = 0; r < R; r++) {
        const bool own = step.norms == MuonNorms::row_floor;
        lifts[r] = float(std::max(1., lift_of(step.floor * std::sqrt(own ? ww[r] : w), std::sqrt(own ? gg[r] : g))));
    }
}

template <class T>
void muon_lifts(Cpu& cpu, float* lifts, float* keep, float* radius, const T* weight, const float* master,
                const std::type_identity_t<T>* X, const float* scales, int64_t R, int64_t K, const MuonStep& step,
                const StepScalars* s) {
    const OpScope op(cpu, __func__);
    if (!s->applied) return;
    if (master)
        muon_lifts_of(cpu, lifts, keep, radius, master, X, scales, R, K, step);
    else
        muon_lifts_of(cpu, lifts, keep, radius, weight, X, scales, R, K, step);
}

// x where `sign` is not negative, else 0
ANVIL_INLINE F32x16 where_not_negative(F32x16 sign, F32x16 x) {
    for (int i = 0; i < kRegisters; i++) x.part[i] = sign.part[i] >= 0 ? x.part[i] : FloatRegister{};
    return x;
}

// W: the type of the weights that are updated: the master's, or T if there is none.
template <class T, class W>
void muon_update_pass(Cpu& cpu, T* weight, W* master, const T* X, const float* scales, const float* lifts,
                      const float* keep, int64_t R, int64_t K, const MuonStep& step, const StepScalars* s,
                      const MomentRounding& rounding) {
    const MomentStore<W> weights(other_rounding(rounding, Stream::rounded_weights), s->updates);
    const float minus_rate = float(-step.rate(R, K)), decay = float(step.weight_decay);
    const bool cautious = step.cautious;
    parallel_for(cpu, R, [=, kept = lifts ? *keep : 1](int64_t r) {
        for_lanes(K, [=, lift = lifts ? lifts[r] : 1](int64_t k, auto width) {
            const int64_t i = r * K + k;
            const F32x16 g = muon_g(X, scales, r, k, R, K, width) * lift, w = load(master + i, width);
            const F32x16 decayed = cautious ? where_not_negative(g * w, w) : w;
            const F32x16 change = fma(broadcast(decay), decayed, g);
            const F32x16 new_weight = fma(broadcast(minus_rate), change, w) * kept;
            weights.store_moment(i, master, new_weight, width);
            if constexpr (!std::is_same_v<T, W>) store(weight + i, new_weight, width);
        });
    });
}

template <class T>
void muon_update(Cpu& cpu, T* weight, float* master, const std::type_identity_t<T>* X, const float* scales,
                 const float* lifts, const float* keep, int64_t R, int64_t K, const MuonStep& step,
                 const StepScalars* s, const MomentRounding& rounding = {}) {
    const OpScope op(cpu, __func__);
    constexpr bool kHasMaster = !std::is_same_v<T, float>;
    ensure(bool(master) == kHasMaster || (!master && rounding.key));
    if (!s->applied) return;
    if (master)
        muon_update_pass(cpu, weight, master, X, scales, lifts, keep, R, K, step, s, rounding);
    else
        muon_update_pass(cpu, weight, weight, X, scales, lifts, keep, R, K, step, s, rounding);
}

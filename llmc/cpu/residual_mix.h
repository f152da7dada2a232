/*
Residual mix on the CPU: llmc/ops/residual_mix.h.
*/
#pragma once
#include <cstdint>
#include "llmc/base/check.h"   // ensure
#include "llmc/cpu/device.h"   // Cpu, parallel_chunks
#include "llmc/cpu/rmsnorm.h"  // rmsnorm_row
#include "llmc/cpu/simd.h"

inline constexpr int64_t kMixChunk = 1 << 13;  // elements per partial sum

ANVIL_INLINE F32x16 mix(F32x16 inp, F32x16 inp0, float a, float b) { return fma(inp0, broadcast(b), inp * a); }

template <class T>
float mix_factor(const T* parameter) {
    return parameter ? to_float(*parameter) : 1;
}

template <class T>
void residual_mix_forward(Cpu& cpu, T* out, const T* inp, const T* inp0, std::type_identity_t<const T*> a, const T* b,
                          float b_sign, int64_t n) {
    const OpScope op(cpu, __func__);
    const float factor = mix_factor(a), factor0 = b_sign * mix_factor(b);
    parallel_chunks(cpu, n, kMixChunk, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin, [=](int64_t i, auto width) {
            const int64_t at = begin + i;
            prefetch_ahead(out + at, width);
            store(out + at, mix(load_ahead(inp + at, width), load_ahead(inp0 + at, width), factor, factor0), width);
        });
    });
}

template <class T>
void residual_mix_backward(Cpu& cpu, T* dinp, T* dinp0, float* da, float* db, const T* dout, const T* inp,
                           const T* inp0, std::type_identity_t<const T*> a, const T* b, float b_sign, bool add_to_dinp0,
                           int64_t n) {
    const OpScope op(cpu, __func__);
    ensure(!a == !da);
    const float factor = mix_factor(a), factor0 = b_sign * mix_factor(b);
    const int64_t chunks = (n + kMixChunk - 1) / kMixChunk;
    float* partials = cpu.shared_scratch(2 * chunks);  // (chunks, 2)
    parallel_chunks(cpu, n, kMixChunk, [=](int64_t begin, int64_t end) {
        F32x16 sum = zeros(), sum0 = zeros();
        for_lanes(end - begin, [&](int64_t i, auto width) {
            const int64_t at = begin + i;
            const F32x16 d = load_ahead(dout + at, width);
            if (a) sum = fma(d, load_ahead(inp + at, width), sum);
            sum0 = fma(d, load_ahead(inp0 + at, width), sum0);
            const F32x16 start = add_to_dinp0 ? load_ahead(dinp0 + at, width) : zeros();
            store(dinp0 + at, fma(d, broadcast(factor0), start), width);
            if (a || dinp != dout) store(dinp + at, d * factor, width);
        });
        float* own = partials + begin / kMixChunk * 2;
        own[0] = sum_lanes(sum);
        own[1] = sum_lanes(sum0);
    });
    double sum = 0, sum0 = 0;
    for (int64_t chunk = 0; chunk < chunks; chunk++) sum += partials[chunk * 2], sum0 += partials[chunk * 2 + 1];
    if (da) *da += float(sum);
    *db += b_sign * float(sum0);
}

// The bits are those of residual = inp1 + inp2, residual_mix_forward and rmsnorm_forward in sequence.
template <class T>
void residual_mix_rmsnorm_forward(Cpu& cpu, T* residual, T* mixed, T* out, float* rstd, const T* inp1, const T* inp2,
                                  const T* inp0, std::type_identity_t<const T*> a, const T* b, int64_t N, int64_t C,
                                  float eps) {
    const OpScope op(cpu, __func__);
    const float factor = mix_factor(a), factor0 = mix_factor(b);
    parallel_for(cpu, N, [=](int64_t n) {
        for_lanes(C, [=](int64_t c, auto width) {
            const int64_t i = n * C + c;
            store(residual + i, load_ahead(inp1 + i, width) + load_ahead(inp2 + i, width), width);
            store(mixed + i, mix(load(residual + i, width), load_ahead(inp0 + i, width), factor, factor0), width);
        });
        rmsnorm_row(out + n * C, rstd + n, mixed + n * C, nullptr, C, eps);
    });
}

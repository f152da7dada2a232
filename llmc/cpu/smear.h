/*
Smear on the CPU: llmc/ops/smear.h.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/gate.h"    // gate_of
#include "llmc/cpu/reduce.h"  // add_partials
#include "llmc/cpu/simd.h"

template <class T>
void smear_forward(Cpu& cpu, T* out, const T* inp, const T* gate_weight, const T* lambda, int64_t B, int64_t T_,
                   int64_t C, int64_t G) {
    const OpScope op(cpu, __func__);
    parallel_for(cpu, B * T_, [=](int64_t n) {
        const T* row = inp + n * C;
        const bool first = n % T_ == 0;
        const float factor = first ? 0 : to_float(*lambda) * gate_of(row, gate_weight, G).open;
        for_lanes(C, [=](int64_t c, auto width) {
            const F32x16 x = load(row + c, width);
            store(out + n * C + c, first ? x : fma(load(row - C + c, width), broadcast(factor), x), width);
        });
    });
}

template <class T>
void smear_backward(Cpu& cpu, T* dinp, float* dgate_weight, float* dlambda, const T* dout, const T* inp,
                    const T* gate_weight, const T* lambda, int64_t B, int64_t T_, int64_t C, int64_t G) {
    const OpScope op(cpu, __func__);
    const int64_t N = B * T_, chunks = num_row_chunks(N);
    float* partials = cpu.shared_scratch(chunks * (G + 1));  // (chunks, G + 1): dgate_weight, dlambda
    parallel_for(cpu, chunks, [=](int64_t chunk) {
        float* dweight = partials + chunk * (G + 1);
        std::memset(dweight, 0, size_t(G + 1) * sizeof(float));
        const int64_t end = std::min(N, (chunk + 1) * kRowsPerChunk);
        for (int64_t n = chunk * kRowsPerChunk; n < end; n++) {
            const bool first = n % T_ == 0, last = n % T_ == T_ - 1;
            const T *row = inp + n * C, *grad = dout + n * C;
            T* dx = dinp + n * C;
            const float next = last ? 0 : to_float(*lambda) * gate_of(row + C, gate_weight, G).open;
            const auto smeared = [=](int64_t c, auto width) {
                const F32x16 d = load(grad + c, width);
                return last ? d : fma(load(grad + C + c, width), broadcast(next), d);
            };
            F32x16 sum = zeros();
            for_lanes(C, [&](int64_t c, auto width) {
                if (!first) sum = fma(load(grad + c, width), load(row - C + c, width), sum);
                store(dx + c, smeared(c, width), width);
            });
            if (first) continue;
            const float dot = sum_lanes(sum);
            const GateOpening gate = gate_of(row, gate_weight, G);
            const float du = dot * to_float(*lambda) * gate.slope;
            dweight[G] += dot * gate.open;
            for_lanes(G, [=](int64_t g, auto width) {  // not from dx, which is already rounded
                const F32x16 factor = broadcast(du);
                store(dx + g, fma(load(gate_weight + g, width), factor, smeared(g, width)), width);
                store(dweight + g, fma(load(row + g, width), factor, load(dweight + g, width)), width);
            });
        }
    });
    add_partials(cpu, dgate_weight, partials, chunks, G, G + 1);
    add_partials(cpu, dlambda, partials + G, chunks, 1, G + 1);
}

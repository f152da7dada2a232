/*
Embedding on the CPU: llmc/ops/embedding.h.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/simd.h"
#include "llmc/ops/op_cost.h"  // embedding_backward_cost, embedding_forward_cost

template <class T>
void embedding_forward(Cpu& cpu, T* out, const int32_t* tokens, const T* wte, std::type_identity_t<const T*> wpe,
                       int64_t B, int64_t T_, int64_t C) {
    const OpScope op(cpu, __func__, embedding_forward_cost<T>(B * T_ * C));
    parallel_for(cpu, B * T_, [=](int64_t row) {
        const T* token = wte + int64_t(tokens[row]) * C;
        const T* position = wpe ? wpe + row % T_ * C : nullptr;
        for_lanes(C, [=](int64_t c, auto width) {
            const F32x16 x = load(token + c, width);
            store(out + row * C + c, position ? x + load(position + c, width) : x, width);
        });
    });
}

template <class T>
void embedding_backward(Cpu& cpu, float* dwte, float* dwpe, const T* dout, const int32_t* tokens, int64_t B, int64_t T_,
                        int64_t C) {
    const OpScope op(cpu, __func__, embedding_backward_cost<T>(B * T_ * C));
    parallel_chunks(cpu, C, 64, [=](int64_t begin, int64_t end) {
        for (int64_t row = 0; row < B * T_; row++) {
            float* dtoken = dwte + int64_t(tokens[row]) * C + begin;
            float* dposition = dwpe ? dwpe + row % T_ * C + begin : nullptr;
            const T* grad = dout + row * C + begin;
            for_lanes(end - begin, [=](int64_t c, auto width) {
                store(dtoken + c, load(dtoken + c, width) + load(grad + c, width), width);
                if (dposition) store(dposition + c, load(dposition + c, width) + load(grad + c, width), width);
            });
        }
    });
}

/*
Embedding:   out[b,t] = wte[tokens[b,t]] + wpe[t]

  tokens (B, T) int32, each in [0, rows of wte)
  wte    (V, C)     wpe (max T, C)     out (B, T, C)
Backward adds to dwte and dwpe. Threads share out the channels, so that each sum runs over the tokens in order.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/simd.h"

inline void embedding_forward(Cpu& cpu, float* out, const int32_t* tokens, const float* wte, const float* wpe,
                              int64_t B, int64_t T, int64_t C) {
    parallel_for(cpu, B * T, [=](int64_t row) {
        const float* token = wte + int64_t(tokens[row]) * C;
        const float* position = wpe + row % T * C;
        for_lanes(C, [=](int64_t c, auto width) {
            store(out + row * C + c, load(token + c, width) + load(position + c, width), width);
        });
    });
}

inline void embedding_backward(Cpu& cpu, float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t B,
                               int64_t T, int64_t C) {
    parallel_chunks(cpu, C, 64, [=](int64_t begin, int64_t end) {
        for (int64_t row = 0; row < B * T; row++) {
            float* dtoken = dwte + int64_t(tokens[row]) * C + begin;
            float* dposition = dwpe + row % T * C + begin;
            const float* grad = dout + row * C + begin;
            for_lanes(end - begin, [=](int64_t c, auto width) {
                store(dtoken + c, load(dtoken + c, width) + load(grad + c, width), width);
                store(dposition + c, load(dposition + c, width) + load(grad + c, width), width);
            });
        }
    });
}

/*
From one element type to another:   out[i] = inp[i]   over n elements; to bf16 rounded to nearest, ties to even
*/
#pragma once
#include <cstdint>
#include "llmc/base/bf16.h"   // bf16, to_bf16, to_float
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks

inline void cast(Cpu& cpu, bf16* out, const float* inp, int64_t n) {
    parallel_chunks(cpu, n, 16384, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) out[i] = to_bf16(inp[i]);
    });
}

inline void cast(Cpu& cpu, float* out, const bf16* inp, int64_t n) {
    parallel_chunks(cpu, n, 16384, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) out[i] = to_float(inp[i]);
    });
}

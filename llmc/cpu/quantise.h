/*
A tensor in eight bits under one scale, found from the tensor itself ("FP8 Formats for Deep Learning", Micikevicius et
al., 2022, arXiv:2209.05433, section 3.2):

  amax = max |inp|,   scale = MAX / max(amax, 1e-12),   out = inp * scale rounded (to_fp8),   inverse_scale = 1 / scale

  inp (rows, cols) float or bf16     out (rows, cols) e4m3 or e5m2     out_transposed (cols, rows), may be null
  amax, inverse_scale: one float each
MAX is the type's largest number. All is overwritten. A NaN in inp makes amax NaN and with it every number; an infinity
leaves inverse_scale infinite, so that what is multiplied with it is not finite either.
*/
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include "llmc/base/bf16.h"      // to_float
#include "llmc/base/fp8.h"       // to_fp8, fp8_scale
#include "llmc/cpu/device.h"     // Cpu, parallel_chunks
#include "llmc/cpu/transpose.h"  // transpose

inline namespace ANVIL_CPU_LEVEL {

// Of the bits of |x|, which are in the order of the numbers, with NaN above all of them.
template <class T>
void absmax(Cpu& cpu, float* amax, const T* inp, int64_t n) {
    const OpScope op(cpu, __func__);
    constexpr int64_t kChunk = 16384;
    const int64_t chunks = (n + kChunk - 1) / kChunk;
    float* largest = cpu.shared(chunks);
    parallel_chunks(cpu, n, kChunk, [=](int64_t begin, int64_t end) {
        uint32_t most = 0;
        for (int64_t i = begin; i < end; i++)
            most = std::max(most, std::bit_cast<uint32_t>(to_float(inp[i])) & 0x7FFFFFFF);
        largest[begin / kChunk] = std::bit_cast<float>(most);
    });
    uint32_t most = 0;
    for (int64_t i = 0; i < chunks; i++) most = std::max(most, std::bit_cast<uint32_t>(largest[i]));
    *amax = std::bit_cast<float>(most);
}

template <class Fp8, class T>
void quantise(Cpu& cpu, Fp8* out, Fp8* out_transposed, float* inverse_scale, const T* inp, const float* amax,
              int64_t rows, int64_t cols) {
    const OpScope op(cpu, __func__);
    const float scale = fp8_scale<Fp8>(*amax);
    parallel_chunks(cpu, rows * cols, 16384, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) out[i] = to_fp8<Fp8>(to_float(inp[i]) * scale);
    });
    if (out_transposed) transpose(cpu, out_transposed, out, rows, cols);
    *inverse_scale = 1 / scale;
}

}  // namespace ANVIL_CPU_LEVEL

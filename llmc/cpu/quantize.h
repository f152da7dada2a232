/*
Quantization to FP8 on the CPU: llmc/ops/quantize.h.
*/
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include "llmc/base/bf16.h"      // to_float
#include "llmc/base/fp8.h"       // to_fp8, fp8_scale
#include "llmc/cpu/device.h"     // Cpu, parallel_chunks
#include "llmc/cpu/reduce.h"     // add_column_sums
#include "llmc/cpu/transpose.h"  // transpose

// Compares the bits of |x| as integers: their order is that of the numbers, with NaN above all.
template <class T>
void absmax(Cpu& cpu, float* amax, const T* inp, int64_t n) {
    const OpScope op(cpu, __func__);
    constexpr int64_t kChunk = 16384;
    const int64_t chunks = (n + kChunk - 1) / kChunk;
    float* largest = cpu.shared_scratch(chunks);
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
void quantize(Cpu& cpu, Fp8* out, Fp8* out_transposed, float* inverse_scale, const T* inp, const float* amax,
              int64_t rows, int64_t cols, float* column_sums = nullptr) {
    const OpScope op(cpu, __func__);
    const float scale = fp8_scale<Fp8>(*amax);
    parallel_chunks(cpu, rows * cols, 16384, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) out[i] = to_fp8<Fp8>(to_float(inp[i]) * scale);
    });
    if (out_transposed) transpose(cpu, out_transposed, out, rows, cols);
    *inverse_scale = 1 / scale;
    if (column_sums) add_column_sums(cpu, column_sums, inp, rows, cols);
}

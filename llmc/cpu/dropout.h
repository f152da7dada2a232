/*
Dropout on the CPU: llmc/ops/dropout.h.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks
#include "llmc/cpu/simd.h"
#include "llmc/ops/dropout.h"  // DropoutMask
#include "llmc/ops/op_cost.h"  // kDropout

inline constexpr int64_t kDropoutChunk = 4096;  // elements: many enough to hide the loop overhead, few enough for L1

// The factors of elements e, e + 1, ...: mask.scale for those that are kept, 0 for the others.
inline void dropout_factors(float (&factors)[kLanes], const DropoutMask& mask, uint64_t e) {
    uint32_t bits[kLanes];
    element_bits(bits, mask.key, e);
    for (int k = 0; k < kLanes; k++) factors[k] = bits[k] >= mask.threshold ? mask.scale : 0.f;
}

template <class T>
void dropout(Cpu& cpu, T* out, const T* inp, DropoutMask mask, int64_t n) {
    const OpScope op(cpu, __func__, elements_cost<T>(kDropout, n));
    parallel_chunks(cpu, n, kDropoutChunk, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin, [=](int64_t i, auto width) {
            const int64_t at = begin + i;
            float factors[kLanes];
            dropout_factors(factors, mask, mask.first + uint64_t(at));
            store(out + at, load(inp + at, width) * load(factors), width);
        });
    });
}

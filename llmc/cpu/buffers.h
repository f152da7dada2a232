/*
Sums and casts of buffers on the CPU: llmc/ops/buffers.h.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks
#include "llmc/cpu/simd.h"
#include "llmc/ops/op_cost.h"  // accumulate_cost

inline void accumulate(Cpu& cpu, float* to, const float* from, int64_t n) {
    const OpScope op(cpu, __func__, accumulate_cost(n));
    parallel_chunks(cpu, n, 16384, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) to[i] += from[i];
    });
}

template <class To, class From>
void cast(Cpu& cpu, To* out, const From* inp, int64_t n) {
    const OpScope op(cpu, __func__);
    parallel_chunks(cpu, n, 16384, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin,
                  [=](int64_t i, auto width) { store(out + begin + i, load(inp + begin + i, width), width); });
    });
}

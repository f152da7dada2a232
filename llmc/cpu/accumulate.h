/*
Adds one buffer to another, on the CPU: llmc/ops/accumulate.h.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/cpu/device.h"   // Cpu, parallel_chunks
#include "llmc/ops/op_cost.h"  // accumulate_cost

inline void accumulate(Cpu& cpu, float* to, const float* from, int64_t n) {
    const OpScope op(cpu, __func__, accumulate_cost(n));
    parallel_chunks(cpu, n, 16384, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) to[i] += from[i];
    });
}

/*
Adding one buffer to another:   to[i] += from[i]   over n floats. Gradients of micro-batches, summed pairwise.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/base/op_cost.h"  // accumulate_cost
#include "llmc/cpu/device.h"    // Cpu, parallel_chunks

inline namespace ANVIL_CPU_LEVEL {

inline void accumulate(Cpu& cpu, float* to, const float* from, int64_t n) {
    const OpScope op(cpu, __func__, accumulate_cost(n));
    parallel_chunks(cpu, n, 16384, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) to[i] += from[i];
    });
}

}  // namespace ANVIL_CPU_LEVEL

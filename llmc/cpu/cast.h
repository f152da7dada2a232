/*
From one element type to another:   out[i] = inp[i]   over n elements; to bf16 rounded to nearest, ties to even
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks
#include "llmc/cpu/simd.h"

inline namespace ANVIL_CPU_LEVEL {

template <class To, class From>
void cast(Cpu& cpu, To* out, const From* inp, int64_t n) {
    const OpScope op(cpu, __func__);
    parallel_chunks(cpu, n, 16384, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin,
                  [=](int64_t i, auto width) { store(out + begin + i, load(inp + begin + i, width), width); });
    });
}

}  // namespace ANVIL_CPU_LEVEL

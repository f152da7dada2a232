/*
Casts on the CPU: llmc/ops/cast.h.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks
#include "llmc/cpu/simd.h"

template <class To, class From>
void cast(Cpu& cpu, To* out, const From* inp, int64_t n) {
    const OpScope op(cpu, __func__);
    parallel_chunks(cpu, n, 16384, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin,
                  [=](int64_t i, auto width) { store(out + begin + i, load(inp + begin + i, width), width); });
    });
}

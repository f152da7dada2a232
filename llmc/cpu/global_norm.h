/*
The squared L2 norm of a buffer, for gradient clipping:   out = sum of x[i]^2

  x (n)     out: one double; not finite if any element is not, or if a square overflows (|x| > 1e19)
Chunks of 4096 elements are summed in float lanes and added up in double, in order.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/simd.h"

inline void global_norm_squared(Cpu& cpu, double* out, const float* x, int64_t n) {
    constexpr int64_t kChunk = 4096;
    const int64_t chunks = (n + kChunk - 1) / kChunk;
    double* partials = reinterpret_cast<double*>(cpu.shared(2 * chunks));
    parallel_chunks(cpu, n, kChunk, [=](int64_t begin, int64_t end) {
        F32x16 sum = zeros();
        for_lanes(end - begin, [&](int64_t i, auto width) {
            const F32x16 value = load(x + begin + i, width);
            sum = fma(value, value, sum);
        });
        partials[begin / kChunk] = double(sum_lanes(sum));
    });
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks; chunk++) sum += partials[chunk];
    *out = sum;
}

/*
Sums over rows in one order on every machine: within chunks of kRowsPerChunk rows, row after row, then over the chunks
in order.

  float* partials = cpu.shared_scratch(num_row_chunks(N) * C);       // fill partials[chunk * C + c], then
  add_partials(cpu, out, partials, num_row_chunks(N), C, C);         // out[c] += the sum over chunks
*/
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks
#include "llmc/cpu/simd.h"

inline constexpr int64_t kRowsPerChunk = 32;

inline int64_t num_row_chunks(int64_t N) { return (N + kRowsPerChunk - 1) / kRowsPerChunk; }

// out (C) += sum over the first axis of partials (num_chunks, C), whose chunks lie `stride` floats apart
inline void add_partials(Cpu& cpu, float* out, const float* partials, int64_t num_chunks, int64_t C, int64_t stride) {
    parallel_chunks(cpu, C, 256, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin, [=](int64_t i, auto width) {
            F32x16 sum = load(partials + begin + i, width);
            for (int64_t chunk = 1; chunk < num_chunks; chunk++)
                sum += load(partials + chunk * stride + begin + i, width);
            store(out + begin + i, load(out + begin + i, width) + sum, width);
        });
    });
}

// out (C) += column sums of inp (N, C) T
template <class T>
void add_column_sums(Cpu& cpu, float* out, const T* inp, int64_t N, int64_t C) {
    const OpScope op(cpu, __func__);
    float* partials = cpu.shared_scratch(num_row_chunks(N) * C);
    parallel_for(cpu, num_row_chunks(N), [=](int64_t chunk) {
        const int64_t begin = chunk * kRowsPerChunk, end = std::min(N, begin + kRowsPerChunk);
        // Unrolled, to read several adjacent cache lines of each row
        for_lanes_unrolled(C, [=](int64_t c, auto width) {
            auto sum = load(inp + begin * C + c, width);
            for (int64_t n = begin + 1; n < end; n++) sum = sum + load(inp + n * C + c, width);
            store(partials + chunk * C + c, sum, width);
        });
    });
    add_partials(cpu, out, partials, num_row_chunks(N), C, C);
}

inline constexpr int64_t kMagnitudeChunk = 16384;

// *amax = the largest magnitude of n elements. values(begin, end, see) passes elements [begin, end) to
// see(numbers, count), in any number of parts. Magnitudes are compared as integers: the same order, with NaN largest.
template <class Values>
void largest_magnitude_of(Cpu& cpu, float* amax, int64_t n, Values values) {
    const int64_t chunks = (n + kMagnitudeChunk - 1) / kMagnitudeChunk;
    float* largest = cpu.shared_scratch(chunks);
    parallel_chunks(cpu, n, kMagnitudeChunk, [=](int64_t begin, int64_t end) {
        uint32_t most = 0;
        values(begin, end, [&](const auto* numbers, int64_t count) {
            for (int64_t i = 0; i < count; i++)
                most = std::max(most, std::bit_cast<uint32_t>(to_float(numbers[i])) & 0x7FFFFFFF);
        });
        largest[begin / kMagnitudeChunk] = std::bit_cast<float>(most);
    });
    uint32_t most = 0;
    for (int64_t i = 0; i < chunks; i++) most = std::max(most, std::bit_cast<uint32_t>(largest[i]));
    *amax = std::bit_cast<float>(most);
}
template <class T>
void largest_magnitude(Cpu& cpu, float* amax, const T* x, int64_t n) {
    largest_magnitude_of(cpu, amax, n, [=](int64_t begin, int64_t end, auto see) { see(x + begin, end - begin); });
}

/*
The CPU part of bench.h. Tensors that fit in a cache stay there from run to run, as they may in training. More than
100 % of the copy's rate shows that they did.
*/
#pragma once
#include <cmath>
#include <string>
#include <vector>
#include "llmc/cpu/buffers.h"  // cast
#include "llmc/cpu/device.h"   // Cpu
#include "llmc/cpu/peaks.h"    // CpuStopwatch, copy_peak

using Device = Cpu;

inline constexpr BenchShape kShapes[] = {
    {"small", 12, 64, 128, 4, 65, 128, 4, gpt2_params(4, 128, 128, 64)},
    {"124M", 4, 64, 768, 12, 50257, 50304, 12, 12 * 768 * 768 + 13 * 768},  // one layer's parameters
};

template <class T>
using Values = std::vector<T>;

// n random numbers in [-scale, scale).
template <class T>
Values<T> random_values(Cpu& cpu, int64_t n, float scale) {
    Rng rng(uint64_t(n), Stream::tests);
    std::vector<float> x(static_cast<size_t>(n));
    for (float& value : x) value = scale * (float(rng.next() >> 40) * 0x1p-23f - 1);
    Values<T> values(x.size());
    cast(cpu, values.data(), x.data(), n);
    return values;
}

template <class T>
Values<T> values_of(Cpu&, std::vector<T> values) {
    return values;
}

inline std::string device_text(Cpu& cpu) { return format("CPU, %d threads", cpu.num_threads); }

using Stopwatch = CpuStopwatch;

inline constexpr bool kHasCopyRival = false;
inline Timing copy_time(Cpu&, Stopwatch&, double) { return {}; }

inline constexpr const char *kCopyText = kCpuCopyText, *kComputeText = kCpuComputeText;
// The peak in float32 for all types: an op may exceed 100 % in bf16 if the processor multiplies bf16 faster.
inline double compute_peak(Cpu& cpu, Stopwatch& stopwatch, bool) { return multiply_add_peak(cpu, stopwatch); }

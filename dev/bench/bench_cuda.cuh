/*
The GPU part of bench.h. llmc/cuda/peaks.cuh times launches and measures a GPU's peaks.
*/
#pragma once
#include <cmath>
#include <string>
#include <utility>
#include <vector>
#include "llmc/cuda/cublaslt.h"     // CublasLt, MatmulCall
#include "llmc/cuda/cuda_device.h"  // Cuda, cuda_check
#include "llmc/cuda/device.cuh"     // launch, load16
#include "llmc/cuda/peaks.cuh"      // CudaStopwatch, CudaValues

using Device = Cuda;

// Each shape has 32768 tokens, which are enough rows for all SMs of the largest GPUs.
inline constexpr BenchShape kShapes[] = {
    {"small", 512, 64, 128, 4, 65, 128, 4, gpt2_params(4, 128, 128, 64)},  // the quickstart's model
    {"124M", 32, 1024, 768, 12, 50257, 50304, 12, gpt2_params(12, 768, 50304, 1024)},
    {"1558M", 32, 1024, 1600, 25, 50257, 50304, 48, gpt2_params(48, 1600, 50304, 1024)},
    {"d24", 16, 2048, 1536, 12, 32768, 32768, 24, gpt2_params(24, 1536, 32768, 2048)},
};

template <class T>
using Values = CudaValues<T>;

template <class T>
Values<T> values_of(Cuda& cuda, const std::vector<T>& values) {
    Values<T> copy(cuda, int64_t(values.size()));
    copy_to_device(cuda, copy.data(), values.data(), copy.n);
    return copy;
}

inline std::string device_text(Cuda& cuda) { return cuda.name; }

using Stopwatch = CudaStopwatch;

// The time to copy as many bytes as a memory-bound op moves. The time of bytes beyond 4 GiB is extrapolated.
inline constexpr bool kHasCopyRival = true;
inline Timing copy_time(Cuda& cuda, Stopwatch& stopwatch, double bytes) {
    const double copied = std::min(bytes, 4. * (1 << 30)), more = bytes / copied;
    const Timing timing = stopwatch.time(CopyOf(cuda, copied));
    return {more * timing.median, more * timing.fastest, more * timing.p90, timing.runs};
}

inline constexpr const char *kCopyText = kCudaCopyText, *kComputeText = kCudaComputeText;

// Peak rates of a GPU, for --profile and MFU.
#include "llmc/cuda/peaks.cuh"
#include "llmc/cuda/cuda_kernels.h"

namespace {
#ifdef ANVIL_EMULATED
constexpr bool kTiny = true;
#else
constexpr bool kTiny = false;
#endif
const char* text_of_rate(const char* text) { return kTiny ? "of an emulated device: it means nothing" : text; }
}  // namespace

PeakRates cuda_peak_rates(Cuda& cuda, bool fp32) {
    CudaStopwatch stopwatch(cuda, kTiny);
    return {copy_peak(cuda, stopwatch), compute_peak(cuda, stopwatch, fp32), text_of_rate(kCudaCopyText),
            text_of_rate(kCudaComputeText)};
}

PeakRates cuda_compute_rate(Cuda& cuda, bool fp32) {
    CudaStopwatch stopwatch(cuda, kTiny, 0.1);
    return {0, compute_peak(cuda, stopwatch, fp32, 4096), "",
            text_of_rate("a product of 4096 x 4096 matrices by cuBLASLt")};
}

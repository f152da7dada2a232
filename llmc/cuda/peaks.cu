// What a GPU does at most, for --profile.
#include "llmc/cuda/peaks.cuh"
#include "llmc/cuda/cuda_kernels.h"

PeakRates cuda_peak_rates(Cuda& cuda, bool fp32) {
#ifdef ANVIL_EMULATED
    constexpr bool kTiny = true;
#else
    constexpr bool kTiny = false;
#endif
    const char* nothing = "of an emulated device: it means nothing";
    CudaStopwatch stopwatch(cuda, kTiny);
    return {copy_peak(cuda, stopwatch), compute_peak(cuda, stopwatch, fp32), kTiny ? nothing : kCudaCopyText,
            kTiny ? nothing : kCudaComputeText};
}

// The GPU kernels of llmc/ops/quantize.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/quantize.cuh"

template <class T>
static QuantizeOps<Cuda, T> quantize_ops() {
    return {.absmax = absmax, .quantize_e4m3 = quantize, .quantize_e5m2 = quantize, .update_amax = update_amax};
}
template <>
QuantizeOps<Cuda, float> cuda_ops() {
    return quantize_ops<float>();
}
template <>
QuantizeOps<Cuda, bf16> cuda_ops() {
    return quantize_ops<bf16>();
}

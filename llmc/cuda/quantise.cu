// The GPU's kernels of llmc/ops/quantise.h, compiled by themselves.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/quantise.cuh"

template <class T>
static QuantiseOps<Cuda, T> quantise_ops() {
    return {.absmax = absmax, .quantise_e4m3 = quantise, .quantise_e5m2 = quantise};
}
template <>
QuantiseOps<Cuda, float> cuda_ops() {
    return quantise_ops<float>();
}
template <>
QuantiseOps<Cuda, bf16> cuda_ops() {
    return quantise_ops<bf16>();
}

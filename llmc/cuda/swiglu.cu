// The GPU kernels of llmc/ops/swiglu.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/swiglu.cuh"

template <class T>
static SwigluOps<Cuda, T> swiglu_ops() {
    return {.swiglu_forward = swiglu_forward, .swiglu_backward = swiglu_backward};
}
template <>
SwigluOps<Cuda, float> cuda_ops() {
    return swiglu_ops<float>();
}
template <>
SwigluOps<Cuda, bf16> cuda_ops() {
    return swiglu_ops<bf16>();
}

// The GPU kernels of llmc/ops/gelu.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/gelu.cuh"

template <class T>
static GeluOps<Cuda, T> gelu_ops() {
    return {.gelu_forward = gelu_forward, .gelu_backward = gelu_backward};
}
template <>
GeluOps<Cuda, float> cuda_ops() {
    return gelu_ops<float>();
}
template <>
GeluOps<Cuda, bf16> cuda_ops() {
    return gelu_ops<bf16>();
}

// The GPU kernels of llmc/ops/relu_squared.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/relu_squared.cuh"

template <class T>
static ReluSquaredOps<Cuda, T> relu_squared_ops() {
    return {.relu_squared_forward = relu_squared_forward, .relu_squared_backward = relu_squared_backward};
}
template <>
ReluSquaredOps<Cuda, float> cuda_ops() {
    return relu_squared_ops<float>();
}
template <>
ReluSquaredOps<Cuda, bf16> cuda_ops() {
    return relu_squared_ops<bf16>();
}

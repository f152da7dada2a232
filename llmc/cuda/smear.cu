// The GPU kernels of llmc/ops/smear.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/smear.cuh"

template <class T>
static SmearOps<Cuda, T> smear_ops() {
    return {.smear_forward = smear_forward, .smear_backward = smear_backward};
}
template <>
SmearOps<Cuda, float> cuda_ops() {
    return smear_ops<float>();
}
template <>
SmearOps<Cuda, bf16> cuda_ops() {
    return smear_ops<bf16>();
}

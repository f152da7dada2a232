// The GPU kernels of llmc/ops/rmsnorm.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/rmsnorm.cuh"

template <class T>
static RmsnormOps<Cuda, T> rmsnorm_ops() {
    return {.rmsnorm_forward = rmsnorm_forward,
            .residual_rmsnorm_forward = residual_rmsnorm_forward,
            .rmsnorm_backward = rmsnorm_backward};
}
template <>
RmsnormOps<Cuda, float> cuda_ops() {
    return rmsnorm_ops<float>();
}
template <>
RmsnormOps<Cuda, bf16> cuda_ops() {
    return rmsnorm_ops<bf16>();
}

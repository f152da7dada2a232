// The GPU kernels of llmc/ops/layernorm.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/layernorm.cuh"

template <class T>
static LayernormOps<Cuda, T> layernorm_ops() {
    return {.layernorm_forward = layernorm_forward,
            .residual_layernorm_forward = residual_layernorm_forward,
            .layernorm_backward = layernorm_backward};
}
template <>
LayernormOps<Cuda, float> cuda_ops() {
    return layernorm_ops<float>();
}
template <>
LayernormOps<Cuda, bf16> cuda_ops() {
    return layernorm_ops<bf16>();
}

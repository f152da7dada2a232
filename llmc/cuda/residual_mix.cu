// The GPU kernels of llmc/ops/residual_mix.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/residual_mix.cuh"

template <class T>
static ResidualMixOps<Cuda, T> residual_mix_ops() {
    return {.residual_mix_forward = residual_mix_forward,
            .residual_mix_backward = residual_mix_backward,
            .residual_mix_rmsnorm_forward = residual_mix_rmsnorm_forward};
}
template <>
ResidualMixOps<Cuda, float> cuda_ops() {
    return residual_mix_ops<float>();
}
template <>
ResidualMixOps<Cuda, bf16> cuda_ops() {
    return residual_mix_ops<bf16>();
}

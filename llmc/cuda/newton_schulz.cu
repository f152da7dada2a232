// The GPU kernels of llmc/ops/newton_schulz.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/newton_schulz.cuh"

template <class T>
static NewtonSchulzOps<Cuda, T> newton_schulz_ops() {
    return {.newton_schulz_workspace = newton_schulz_workspace<T>, .newton_schulz = newton_schulz};
}
template <>
NewtonSchulzOps<Cuda, float> cuda_ops() {
    return newton_schulz_ops<float>();
}
template <>
NewtonSchulzOps<Cuda, bf16> cuda_ops() {
    return newton_schulz_ops<bf16>();
}

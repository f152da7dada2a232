// The GPU kernels of llmc/ops/cross_entropy.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/cross_entropy.cuh"

template <class T>
static CrossEntropyOps<Cuda, T> cross_entropy_ops() {
    return {.cross_entropy_forward = cross_entropy_forward,
            .cross_entropy_forward_backward = cross_entropy_forward_backward};
}
template <>
CrossEntropyOps<Cuda, float> cuda_ops() {
    return cross_entropy_ops<float>();
}
template <>
CrossEntropyOps<Cuda, bf16> cuda_ops() {
    return cross_entropy_ops<bf16>();
}

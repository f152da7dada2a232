// The GPU kernels of llmc/ops/dropout.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/dropout.cuh"

template <class T>
static DropoutOps<Cuda, T> dropout_ops() {
    return {.dropout = dropout};
}
template <>
DropoutOps<Cuda, float> cuda_ops() {
    return dropout_ops<float>();
}
template <>
DropoutOps<Cuda, bf16> cuda_ops() {
    return dropout_ops<bf16>();
}

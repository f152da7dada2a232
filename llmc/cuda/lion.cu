// The GPU kernels of llmc/ops/lion.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/lion.cuh"

template <class T>
static LionOps<Cuda, T> lion_ops() {
    return {.lion_update = lion_update, .lion_update_bf16 = lion_update};
}
template <>
LionOps<Cuda, float> cuda_ops() {
    return lion_ops<float>();
}
template <>
LionOps<Cuda, bf16> cuda_ops() {
    return lion_ops<bf16>();
}

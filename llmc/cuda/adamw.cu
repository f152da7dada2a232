// The GPU kernels of llmc/ops/adamw.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/adamw.cuh"

template <class T>
static AdamwOps<Cuda, T> adamw_ops() {
    return {.adamw_update = adamw_update, .adamw_update_bf16 = adamw_update};
}
template <>
AdamwOps<Cuda, float> cuda_ops() {
    return adamw_ops<float>();
}
template <>
AdamwOps<Cuda, bf16> cuda_ops() {
    return adamw_ops<bf16>();
}

// The GPU kernels of llmc/ops/qk_rmsnorm.h, in a translation unit of their own.
#include "llmc/cuda/qk_rmsnorm.cuh"
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops

template <class T>
static QkRmsnormOps<Cuda, T> qk_rmsnorm_ops() {
    return {.qk_rmsnorm_forward = qk_rmsnorm_forward, .qk_rmsnorm_backward = qk_rmsnorm_backward};
}
template <>
QkRmsnormOps<Cuda, float> cuda_ops() {
    return qk_rmsnorm_ops<float>();
}
template <>
QkRmsnormOps<Cuda, bf16> cuda_ops() {
    return qk_rmsnorm_ops<bf16>();
}

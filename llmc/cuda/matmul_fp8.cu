// The GPU kernels of llmc/ops/matmul_fp8.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/matmul_fp8.cuh"

template <class T>
static MatmulFp8Ops<Cuda, T> matmul_fp8_ops() {
    return {.matmul_fp8_forward = matmul_fp8_forward, .matmul_fp8_backward = matmul_fp8_backward};
}
template <>
MatmulFp8Ops<Cuda, float> cuda_ops() {
    return matmul_fp8_ops<float>();
}
template <>
MatmulFp8Ops<Cuda, bf16> cuda_ops() {
    return matmul_fp8_ops<bf16>();
}

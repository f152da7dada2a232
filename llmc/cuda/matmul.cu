// The GPU kernels of llmc/ops/matmul.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/matmul.cuh"

template <class T>
static MatmulOps<Cuda, T> matmul_ops() {
    return {.matmul_forward = matmul_forward,
            .matmul_backward = matmul_backward,
            .matmul_gelu_forward = matmul_gelu_forward,
            .matmul_gelu_backward = matmul_gelu_backward,
            .matmul_relu_squared_forward = matmul_relu_squared_forward,
            .matmul_relu_squared_backward = matmul_relu_squared_backward,
            .add_column_sums = add_column_sums};
}
template <>
MatmulOps<Cuda, float> cuda_ops() {
    return matmul_ops<float>();
}
template <>
MatmulOps<Cuda, bf16> cuda_ops() {
    return matmul_ops<bf16>();
}

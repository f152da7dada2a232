// The GPU kernels of llmc/ops/embedding_rmsnorm.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/embedding_rmsnorm.cuh"

template <class T>
static EmbeddingRmsnormOps<Cuda, T> embedding_rmsnorm_ops() {
    return {.embedding_rmsnorm_forward = embedding_rmsnorm_forward,
            .embedding_rmsnorm_backward = embedding_rmsnorm_backward};
}
template <>
EmbeddingRmsnormOps<Cuda, float> cuda_ops() {
    return embedding_rmsnorm_ops<float>();
}
template <>
EmbeddingRmsnormOps<Cuda, bf16> cuda_ops() {
    return embedding_rmsnorm_ops<bf16>();
}

// The GPU kernels of llmc/ops/embedding.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/embedding.cuh"

template <class T>
static EmbeddingOps<Cuda, T> embedding_ops() {
    return {.embedding_forward = embedding_forward, .embedding_backward = embedding_backward};
}
template <>
EmbeddingOps<Cuda, float> cuda_ops() {
    return embedding_ops<float>();
}
template <>
EmbeddingOps<Cuda, bf16> cuda_ops() {
    return embedding_ops<bf16>();
}

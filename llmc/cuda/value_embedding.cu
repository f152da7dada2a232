// The GPU kernels of llmc/ops/value_embedding.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/value_embedding.cuh"

template <class T>
static ValueEmbeddingOps<Cuda, T> value_embedding_ops() {
    return {.value_embedding_forward = value_embedding_forward, .value_embedding_backward = value_embedding_backward};
}
template <>
ValueEmbeddingOps<Cuda, float> cuda_ops() {
    return value_embedding_ops<float>();
}
template <>
ValueEmbeddingOps<Cuda, bf16> cuda_ops() {
    return value_embedding_ops<bf16>();
}

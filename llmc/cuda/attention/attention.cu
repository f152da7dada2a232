// The GPU kernels of llmc/ops/attention.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/attention/attention.cuh"

template <class T>
static AttentionOps<Cuda, T> attention_ops() {
    return {.attention_forward = attention_forward, .attention_backward = attention_backward};
}
template <>
AttentionOps<Cuda, float> cuda_ops() {
    return attention_ops<float>();
}
template <>
AttentionOps<Cuda, bf16> cuda_ops() {
    return attention_ops<bf16>();
}

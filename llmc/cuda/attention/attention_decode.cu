// The GPU kernels of llmc/ops/attention_decode.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/attention/attention_decode.cuh"

template <class T>
static AttentionDecodeOps<Cuda, T> attention_decode_ops() {
    return {.attention_remember = attention_remember, .attention_decode = attention_decode};
}
template <>
AttentionDecodeOps<Cuda, float> cuda_ops() {
    return attention_decode_ops<float>();
}
template <>
AttentionDecodeOps<Cuda, bf16> cuda_ops() {
    return attention_decode_ops<bf16>();
}

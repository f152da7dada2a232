// The GPU kernels of llmc/ops/rotary.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/rotary.cuh"

template <class T>
static RotaryOps<Cuda, T> rotary_ops() {
    return {.rotary_forward = rotary_forward, .rotary_backward = rotary_backward};
}
template <>
RotaryOps<Cuda, float> cuda_ops() {
    return rotary_ops<float>();
}
template <>
RotaryOps<Cuda, bf16> cuda_ops() {
    return rotary_ops<bf16>();
}

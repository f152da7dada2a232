// The GPU kernels of llmc/ops/weight_hash.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/weight_hash.cuh"

template <class T>
static WeightHashOps<Cuda, T> weight_hash_ops() {
    return {.add_hash = add_hash};
}
template <>
WeightHashOps<Cuda, float> cuda_ops() {
    return weight_hash_ops<float>();
}
template <>
WeightHashOps<Cuda, bf16> cuda_ops() {
    return weight_hash_ops<bf16>();
}

// The GPU kernels of llmc/ops/muon.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/muon.cuh"

template <class T>
static MuonOps<Cuda, T> muon_ops() {
    return {.muon_row = muon_row<T>,
            .muon_momentum = muon_momentum,
            .muon_momentum_bf16 = muon_momentum_bf16,
            .muon_normalize = muon_normalize,
            .muon_squares = muon_squares,
            .muon_scales = muon_scales,
            .muon_update = muon_update};
}
template <>
MuonOps<Cuda, float> cuda_ops() {
    return muon_ops<float>();
}
template <>
MuonOps<Cuda, bf16> cuda_ops() {
    return muon_ops<bf16>();
}

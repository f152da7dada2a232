// The GPU's kernels of llmc/ops/accumulate.h, compiled by themselves.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/accumulate.cuh"

template <>
AccumulateOps<Cuda> cuda_ops() {
    return {.accumulate = accumulate};
}

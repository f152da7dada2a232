// The GPU kernels of llmc/ops/accumulate.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/accumulate.cuh"

template <>
AccumulateOps<Cuda> cuda_ops() {
    return {.accumulate = accumulate};
}

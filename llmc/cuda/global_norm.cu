// The GPU kernels of llmc/ops/global_norm.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/global_norm.cuh"

template <>
GlobalNormOps<Cuda> cuda_ops() {
    return {.add_squares = add_squares};
}

// The GPU kernels of llmc/ops/cast.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/cast.cuh"

template <>
CastOps<Cuda> cuda_ops() {
    return {.cast_to_bf16 = cast, .cast_to_float = cast};
}

// The GPU kernels of llmc/ops/step_scalars.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/step_scalars.cuh"

template <>
StepScalarsOps<Cuda> cuda_ops() {
    return {.add_mean_loss = add_mean_loss, .decide_step = decide_step};
}

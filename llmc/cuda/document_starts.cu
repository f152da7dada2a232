// The GPU kernels of llmc/ops/document_starts.h, in a translation unit of their own.
#include "llmc/cuda/cuda_kernels.h"  // cuda_ops
#include "llmc/cuda/document_starts.cuh"

template <>
DocumentStartsOps<Cuda> cuda_ops() {
    return {.document_starts = document_starts};
}

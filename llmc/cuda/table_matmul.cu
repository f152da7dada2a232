// The entries of the table of kernels (cuda_kernels.h): matrix products.
#include "llmc/cuda/cuda_kernels.h"  // CUDA_OPS
#include "llmc/cuda/matmul.cuh"
#include "llmc/cuda/matmul_fp8.cuh"
#include "llmc/cuda/newton_schulz.cuh"

CUDA_OPS(MatmulOps, .matmul_forward = matmul_forward, .matmul_backward = matmul_backward,
         .matmul_gelu_forward = matmul_gelu_forward, .matmul_gelu_backward = matmul_gelu_backward,
         .low_rank_forward = low_rank_forward, .low_rank_backward = low_rank_backward)
CUDA_OPS(MatmulFp8Ops, .matmul_fp8_forward = matmul_fp8_forward, .matmul_fp8_backward = matmul_fp8_backward,
         .matmul_mx_forward = matmul_mx_forward, .matmul_mx_backward = matmul_mx_backward)
CUDA_OPS(NewtonSchulzOps, .newton_schulz_workspace = newton_schulz_workspace<T>, .newton_schulz = newton_schulz)

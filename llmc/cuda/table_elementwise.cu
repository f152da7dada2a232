// The entries of the table of kernels (cuda_kernels.h): ops that compute each element alone, or few together.
#include "llmc/cuda/buffers.cuh"
#include "llmc/cuda/cuda_kernels.h"  // CUDA_OPS
#include "llmc/cuda/dropout.cuh"
#include "llmc/cuda/gelu.cuh"
#include "llmc/cuda/quantize.cuh"
#include "llmc/cuda/relu_squared.cuh"
#include "llmc/cuda/residual_mix.cuh"
#include "llmc/cuda/smear.cuh"
#include "llmc/cuda/swiglu.cuh"
#include "llmc/cuda/value_embedding.cuh"

CUDA_OPS_OF(BufferOps<Cuda>, .accumulate = accumulate, .accumulate_rounded = accumulate_rounded, .cast_to_bf16 = cast,
            .cast_to_float = cast)
CUDA_OPS(DropoutOps, .dropout = dropout)
CUDA_OPS(GeluOps, .gelu_forward = gelu_forward, .gelu_backward = gelu_backward)
CUDA_OPS(QuantizeOps, .absmax = absmax, .quantize_e4m3 = quantize, .quantize_e5m2 = quantize,
         .quantize_mx = quantize_mx, .transpose_codes = transpose_codes, .update_amax = update_amax)
CUDA_OPS(ReluSquaredOps, .relu_squared_forward = relu_squared_forward, .relu_squared_backward = relu_squared_backward)
CUDA_OPS(ResidualMixOps, .residual_mix_forward = residual_mix_forward, .residual_mix_backward = residual_mix_backward,
         .residual_mix_rmsnorm_forward = residual_mix_rmsnorm_forward)
CUDA_OPS(SmearOps, .smear_forward = smear_forward, .smear_backward = smear_backward)
CUDA_OPS(SwigluOps, .swiglu_forward = swiglu_forward, .swiglu_backward = swiglu_backward)
CUDA_OPS(ValueEmbeddingOps, .value_embedding_forward = value_embedding_forward,
         .value_embedding_backward = value_embedding_backward)

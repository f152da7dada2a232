// The entries of the table of kernels (cuda_kernels.h): ops on the tokens' rows: embeddings, norms, positions, loss.
#include "llmc/cuda/cross_entropy.cuh"
#include "llmc/cuda/cuda_kernels.h"  // CUDA_OPS
#include "llmc/cuda/document_starts.cuh"
#include "llmc/cuda/embedding.cuh"
#include "llmc/cuda/layernorm.cuh"
#include "llmc/cuda/qk_rmsnorm.cuh"
#include "llmc/cuda/rmsnorm.cuh"
#include "llmc/cuda/rotary.cuh"

CUDA_OPS(CrossEntropyOps, .cross_entropy_forward = cross_entropy_forward,
         .cross_entropy_forward_backward = cross_entropy_forward_backward)
CUDA_OPS_OF(DocumentStartsOps<Cuda>, .document_starts = document_starts)
CUDA_OPS(EmbeddingOps, .embedding_forward = embedding_forward, .embedding_backward = embedding_backward,
         .embedding_rmsnorm_forward = embedding_rmsnorm_forward,
         .embedding_rmsnorm_backward = embedding_rmsnorm_backward)
CUDA_OPS(LayernormOps, .layernorm_forward = layernorm_forward, .residual_layernorm_forward = residual_layernorm_forward,
         .layernorm_backward = layernorm_backward)
CUDA_OPS(QkRmsnormOps, .qk_rmsnorm_forward = qk_rmsnorm_forward, .qk_rmsnorm_backward = qk_rmsnorm_backward)
CUDA_OPS(RmsnormOps, .rmsnorm_forward = rmsnorm_forward, .residual_rmsnorm_forward = residual_rmsnorm_forward,
         .rmsnorm_backward = rmsnorm_backward)
CUDA_OPS(RotaryOps, .rotary_forward = rotary_forward, .rotary_backward = rotary_backward)

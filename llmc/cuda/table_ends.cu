// The entries of the table of kernels (cuda_kernels.h): the model's two ends: embedding and loss.
#include "llmc/cuda/cross_entropy.cuh"
#include "llmc/cuda/cuda_kernels.h"  // CUDA_OPS
#include "llmc/cuda/document_starts.cuh"
#include "llmc/cuda/embedding.cuh"

CUDA_OPS(CrossEntropyOps, .cross_entropy_forward = cross_entropy_forward,
         .cross_entropy_forward_backward = cross_entropy_forward_backward)
CUDA_OPS_OF(DocumentStartsOps<Cuda>, .document_starts = document_starts)
CUDA_OPS(EmbeddingOps, .embedding_forward = embedding_forward, .embedding_backward = embedding_backward)

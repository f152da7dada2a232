// The entries of the table of kernels (cuda_kernels.h): attention.
#include "llmc/cuda/attention/attention.cuh"
#include "llmc/cuda/attention/attention_decode.cuh"
#include "llmc/cuda/cuda_kernels.h"  // CUDA_OPS

CUDA_OPS(AttentionOps, .attention_forward = attention_forward, .attention_backward = attention_backward)
CUDA_OPS(AttentionDecodeOps, .attention_remember = attention_remember, .attention_decode = attention_decode)

// Every op on the GPU, for code that is written for any device: include this one and instantiate with Cuda.
#pragma once
#include <algorithm>
#include "llmc/base/op_types.h"
#include "llmc/cuda/accumulate.cuh"
#include "llmc/cuda/adamw.cuh"
#include "llmc/cuda/attention.cuh"
#include "llmc/cuda/attention_decode.cuh"
#include "llmc/cuda/cast.cuh"
#include "llmc/cuda/cross_entropy.cuh"
#include "llmc/cuda/document_starts.cuh"
#include "llmc/cuda/embedding.cuh"
#include "llmc/cuda/embedding_rmsnorm.cuh"
#include "llmc/cuda/gelu.cuh"
#include "llmc/cuda/global_norm.cuh"
#include "llmc/cuda/layernorm.cuh"
#include "llmc/cuda/matmul.cuh"
#include "llmc/cuda/matmul_fp8.cuh"
#include "llmc/cuda/muon.cuh"
#include "llmc/cuda/newton_schulz.cuh"
#include "llmc/cuda/quantise.cuh"
#include "llmc/cuda/relu_squared.cuh"
#include "llmc/cuda/residual_mix.cuh"
#include "llmc/cuda/rmsnorm.cuh"
#include "llmc/cuda/rotary.cuh"
#include "llmc/cuda/smear.cuh"
#include "llmc/cuda/step_scalars.cuh"
#include "llmc/cuda/sum_ranks.cuh"
#include "llmc/cuda/symmetric_matmul.cuh"
#include "llmc/cuda/swiglu.cuh"
#include "llmc/cuda/transpose.cuh"
#include "llmc/cuda/value_embedding.cuh"
#include "llmc/cuda/weight_hash.cuh"

// Workspace of a training step of N = B*T tokens in C channels, with layers up to `widest` wide: the largest of any
// op's.
template <class T>
size_t training_workspace(Cuda& cuda, int64_t N, int64_t C, int64_t widest, const AttentionShape& attention,
                          bool learns = true) {
    const int64_t norm_partials = int64_t(cuda.num_sms) * 32 * 2 * C;  // at most 32 blocks an SM: layernorm_backward
    const int64_t column_sums = ceil_div(N, int64_t(kColumnRows)) * widest;
    return std::max({CublasLt::kWorkspaceBytes, attention_workspace<T>(cuda, attention, learns),
                     scatter_rows_workspace(N, C), value_embedding_backward_workspace(attention, kWarp),
                     size_t(std::max(norm_partials, column_sums)) * sizeof(float)});
}

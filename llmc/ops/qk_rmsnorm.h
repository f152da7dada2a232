/*
RMSNorm of each head's query and key with weights (Henry et al., 2020, arXiv:2010.04245, as in Qwen3), in place; values
are unchanged. For each head of each token, x of HS elements:

  out = x * rstd * weight,   rstd = 1 / sqrt(mean(x^2) + eps)          weight: q_weight for queries, k_weight for keys

  qkv, dqkv (B, T, NH + 2 NKV, HS) T     saved (B, T, NH + NKV, HS) T: the queries and keys as they were
  rstd (B, T, NH + NKV) float            q_weight, k_weight (HS) T       dq_weight, dk_weight (HS) float
Both passes overwrite their buffer; backward adds to dq_weight and dk_weight. Backward needs the saved inputs: they
could be recovered from the outputs only where no weight is 0.
*/
#pragma once
#include "llmc/ops/attention.h"  // AttentionShape

template <class Device, class T>
struct QkRmsnormOps {
    void (*qk_rmsnorm_forward)(Device&, T* qkv, T* saved, float* rstd, const T* q_weight, const T* k_weight,
                               AttentionShape shape, float eps);
    void (*qk_rmsnorm_backward)(Device&, T* dqkv, float* dq_weight, float* dk_weight, const T* saved, const float* rstd,
                                const T* q_weight, const T* k_weight, AttentionShape shape);
};

/*
Value embeddings: a learned vector per token and head, gated per head, is added to attention's values (nanochat; after
the value residual of Zhou et al., 2024, arXiv:2410.17897):

  v[n,h] += gate_scale s[n,h] table[tokens[n],h],   s[n,h] = sigmoid(gate_weight[h] . inp[n,0:G])

  qkv, dqkv (N, NH + 2 NKV, HS) T: v comes after the queries and keys (AttentionShape), N = B*T     inp, dinp (N, C) T
  tokens (N) int32, each in [0, V)     table (V, NKV, HS) T     gate_weight (NKV, G) T, G <= C
  dtable, dgate_weight float
Forward changes only the values in qkv, and backward leaves dqkv unchanged. With d = dv[n,h] . table[tokens[n],h] and
u = d gate_scale s (1 - s), it adds:

  dtable[tokens[n],h] += gate_scale s dv[n,h],   dgate_weight[h] += sum of u inp[n,0:G]
  dinp[n,0:G] += sum over h of u gate_weight[h]
*/
#pragma once
#include <cstdint>
#include "llmc/ops/attention.h"  // AttentionShape

template <class Device, class T>
struct ValueEmbeddingOps {
    void (*value_embedding_forward)(Device&, T* qkv, const T* inp, const int32_t* tokens, const T* table,
                                    const T* gate_weight, const AttentionShape& shape, int64_t C, int64_t G,
                                    float gate_scale);
    void (*value_embedding_backward)(Device&, T* dinp, float* dtable, float* dgate_weight, const T* dqkv, const T* inp,
                                     const int32_t* tokens, const T* table, const T* gate_weight,
                                     const AttentionShape& shape, int64_t C, int64_t G, float gate_scale);
};

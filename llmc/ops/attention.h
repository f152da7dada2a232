/*
Causal self-attention without a T x T matrix (online softmax: Milakov and Gimelshein, 2018, arXiv:1805.02867; tiles: Dao
et al., 2022, arXiv:2205.14135), with a sliding window (Beltagy et al., 2020, arXiv:2004.05150), with several documents
in a row, none of which sees another (Krell et al., 2021, arXiv:2107.02027), and with keys and values shared by groups
of heads (Ainslie et al., 2023, arXiv:2305.13245):

  out[t] = sum over first[t] <= s <= t of softmax_s(scale q[t] . k[s]) v[s]    for each of B sequences and NH heads
  first[t] = max(t - window, starts[t], 0)

  starts (B, T) int32, or null for zeros: where the document of t begins in its row (document_starts.h)
  qkv (B, T, NH + 2 NKV, HS): queries, keys, values; query head h has key head h / (NH / NKV)    out (B, T, NH, HS)
  lse (B, NH, T): natural log of the softmax's denominator, scores scaled; all that backward needs to make it again
Backward overwrites dqkv, shaped as qkv. HS <= 256, and even in bf16.

qkv, out and their gradients are float or bf16; sums, weights and lse are float. What is multiplied in bf16 is rounded
to it first: weights and, in backward, dS, before their products with v, dout, k and q.
*/
#pragma once
#include <cstdint>
#include "llmc/base/op_types.h"  // AttentionShape

template <class Device, class T>
struct AttentionOps {
    void (*attention_forward)(Device&, T* out, float* lse, const T* qkv, const AttentionShape& shape);
    void (*attention_backward)(Device&, T* dqkv, const T* dout, const T* out, const float* lse, const T* qkv,
                               const AttentionShape& shape);
};

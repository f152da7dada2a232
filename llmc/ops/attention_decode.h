/*
Attention of tokens that come one by one, as a text is continued: the newest token of each row against the keys and
values of those before it, which are kept (Shazeer, 2019, arXiv:1911.02150, has the sums). With t = positions[b]:

  attention_remember   keys[b], values[b] at t, t+1, ..., t+tokens-1  =  k, v in qkv[b]
  attention_decode     out[b] = sum over first <= s <= t of softmax_s(scale q[b] . keys[b,s]) values[b,s]
                       for each of NH heads;   first = max(t - window, starts[b], 0)

  qkv (B, tokens, NH + 2 NKV, HS) T, in attention_decode one token: the row's at t     out (B, NH, HS) T
  positions (B) int32, null for zeros     starts (B) int32, null for zeros: where the row's document begins
  keys, values T: rings of slots, see KeyValueShape. What a slot held `capacity` positions ago is forgotten.
Remember a token before its own query: it sees itself. HS <= 256.

The sums are those of attention_forward, tile by tile in the same order, so that a token's row has the bits that it has
in a pass over the whole text. In bf16 the weights are not rounded here, as they are there for the sake of products.
*/
#pragma once
#include <cstdint>
#include "llmc/base/op_types.h"  // KeyValueShape

template <class Device, class T>
struct AttentionDecodeOps {
    void (*attention_remember)(Device&, T* keys, T* values, const T* qkv, const int32_t* positions, int64_t tokens,
                               const KeyValueShape& shape);
    void (*attention_decode)(Device&, T* out, const T* qkv, const T* keys, const T* values, const int32_t* positions,
                             const int32_t* starts, const KeyValueShape& shape);
};

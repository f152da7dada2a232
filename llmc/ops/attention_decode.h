/*
Attention with a KV cache, for generation: the newest token of each row attends to the cached keys and values of the
tokens before it and to its own (cost: Shazeer, 2019, arXiv:1911.02150). With t = positions[b]:

  attention_remember   keys[b], values[b] at t, t+1, ..., t+tokens-1  =  k, v in qkv[b]
  attention_decode     out[b] = sum over first <= s <= t of softmax_s(scale q[b] . keys[b,s]) values[b,s]
                       for each of NH heads;   first = max(t - window, starts[b], 0)

  qkv (B, tokens, NH + 2 NKV, HS) T; for attention_decode tokens = 1, the token at t     out (B, NH, HS) T
  positions (B) int32, null for zeros     starts (B) int32, null for zeros: where the row's document begins
  keys, values T: ring buffers, see KeyValueShape. A slot is overwritten after `capacity` positions.
Call attention_remember before attention_decode: a token attends to itself. HS <= 256.

The order of sums is that of attention_forward, tile by tile, so in fp32 a token gets the same bits as in a pass over
the whole text. In bf16 the bits differ: attention_forward rounds the weights for its GEMM, attention_decode does not.
*/
#pragma once
#include <cmath>
#include <cstdint>

// A KV cache: a ring buffer with the keys and values of at least the last `capacity` tokens of each of B sequences.
// Position p is in slot p % capacity. In memory:
//   keys (B, NKV, capacity / kCacheTile, HS, kCacheTile)     values (B, NKV, capacity, HS)
// A tile of keys is transposed, so that the scores of neighboring keys are summed in neighboring lanes.
inline constexpr int64_t kCacheTile = 64;
struct KeyValueShape {
    int64_t B, NH, NKV, HS;
    int64_t window;   // as AttentionShape::window, but never negative: the cache is finite
    float scale = 0;  // of the scores; 0: 1 / sqrt(HS)

    // At least the window + 1 keys that a query sees.
    int64_t capacity() const { return (window / kCacheTile + 1) * kCacheTile; }
    int64_t row_size() const { return NKV * capacity() * HS; }  // elements per row of keys, and of values
    int64_t qkv_row() const { return (NH + 2 * NKV) * HS; }
    float score_scale() const { return scale != 0 ? scale : 1 / std::sqrt(float(HS)); }
};

template <class Device, class T>
struct AttentionDecodeOps {
    void (*attention_remember)(Device&, T* keys, T* values, const T* qkv, const int32_t* positions, int64_t tokens,
                               const KeyValueShape& shape);
    void (*attention_decode)(Device&, T* out, const T* qkv, const T* keys, const T* values, const int32_t* positions,
                             const int32_t* starts, const KeyValueShape& shape);
};

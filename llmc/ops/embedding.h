/*
Embedding:   out[b,t] = wte[tokens[b,t]] + wpe[t];   without learned positions (wpe null)   out[b,t] = wte[tokens[b,t]]

  tokens (B, T) int32, each in [0, rows of wte)
  wte    (V, C) T     wpe (max T, C) T     out (B, T, C) T
Backward adds to dwte and dwpe, both float; dwpe may be null. Threads divide the channels, so each sum runs over the
tokens in order.
*/
#pragma once
#include <cstdint>

template <class Device, class T>
struct EmbeddingOps {
    void (*embedding_forward)(Device&, T* out, const int32_t* tokens, const T* wte, const T* wpe, int64_t B, int64_t T_,
                              int64_t C);
    void (*embedding_backward)(Device&, float* dwte, float* dwpe, const T* dout, const int32_t* tokens, int64_t B,
                               int64_t T_, int64_t C);
};

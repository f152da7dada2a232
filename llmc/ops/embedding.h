/*
Embedding:   out[b,t] = wte[tokens[b,t]] + wpe[t];   without learned positions (wpe null)   out[b,t] = wte[tokens[b,t]]

  tokens (B, T) int32, each in [0, rows of wte)
  wte    (V, C) T     wpe (max T, C) T     out (B, T, C) T
Backward adds to dwte and dwpe, both float; dwpe may be null. Threads divide the channels, so each sum runs over the
tokens in order.

The fused form is the embedding and RMSNorm without weight, the first ops of nanochat and modded-nanogpt, for N = B T
rows:   out[n] = x[n] * rstd[n],   x[n] = wte[tokens[n]],   rstd[n] = 1 / sqrt(mean(x[n]^2) + eps)

  rstd (N) float: saved for backward
Bit-identical to embedding_forward without positions followed by rmsnorm_forward without weight. Its backward adds to
dwte, and overwrites dout with the gradient of x, which saves a buffer (N, C).
*/
#pragma once
#include <cstdint>

template <class Device, class T>
struct EmbeddingOps {
    void (*embedding_forward)(Device&, T* out, const int32_t* tokens, const T* wte, const T* wpe, int64_t B, int64_t T_,
                              int64_t C);
    void (*embedding_backward)(Device&, float* dwte, float* dwpe, const T* dout, const int32_t* tokens, int64_t B,
                               int64_t T_, int64_t C);
    void (*embedding_rmsnorm_forward)(Device&, T* out, float* rstd, const int32_t* tokens, const T* wte, int64_t N,
                                      int64_t C, float eps);
    void (*embedding_rmsnorm_backward)(Device&, float* dwte, T* dout, const int32_t* tokens, const T* wte,
                                       const float* rstd, int64_t B, int64_t T_, int64_t C);
};

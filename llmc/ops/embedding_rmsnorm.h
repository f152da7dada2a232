/*
Embedding and RMSNorm without weight in one pass, the first ops of nanochat and modded-nanogpt:

  out[n] = x[n] * rstd[n],   x[n] = wte[tokens[n]],   rstd[n] = 1 / sqrt(mean(x[n]^2) + eps)

  tokens (N) int32, each in [0, rows of wte)     wte (V, C) T     out (N, C) T     rstd (N) float: saved for backward
Bit-identical to embedding_forward without positions followed by rmsnorm_forward without weight. Backward adds to dwte,
float, and overwrites dout with the gradient of x, which saves a buffer (N, C).
*/
#pragma once
#include <cstdint>

template <class Device, class T>
struct EmbeddingRmsnormOps {
    void (*embedding_rmsnorm_forward)(Device&, T* out, float* rstd, const int32_t* tokens, const T* wte, int64_t N,
                                      int64_t C, float eps);
    void (*embedding_rmsnorm_backward)(Device&, float* dwte, T* dout, const int32_t* tokens, const T* wte,
                                       const float* rstd, int64_t B, int64_t T_, int64_t C);
};

/*
The embedding and the norm without gain right behind it, in one pass, as nanochat and modded-nanogpt begin:

  out[n] = x[n] * rstd[n],   x[n] = wte[tokens[n]],   rstd[n] = 1 / sqrt(mean(x[n]^2) + eps)

  tokens (N) int32, each in [0, rows of wte)     wte (V, C) T     out (N, C) T     rstd (N) float: saved for backward
The bits are those of embedding_forward without positions and rmsnorm_forward without gain. Backward adds to dwte,
float, and overwrites dout with the gradient of x on the way there: another (N, C) would be read and written for
nothing.
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

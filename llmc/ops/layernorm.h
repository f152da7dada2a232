/*
LayerNorm (Ba et al., 2016, arXiv:1607.06450):   out = (inp - mean) * rstd * weight + bias,   one row of C at a time

  inp, out (N, C) T     weight, bias (C) T     mean, rstd (N) float: saved for backward     dweight, dbias (C) float
Forward computes the mean first, then the variance of the centered row, so a large mean causes no cancellation. The
fused form adds the two branches of a residual stream:   residual = inp1 + inp2,   out = layernorm(residual).

Backward adds to dweight and dbias, and overwrites dinp or adds to it, depending on `write`.

out is the input of a linear layer, and dinp, the gradient of the residual stream, that of the output of the layer that
was added last. They are stored as its GEMM wants them (GemmInput): out with amax or as codes, dinp with amax and column
sums.
*/
#pragma once
#include <cstdint>
#include "llmc/ops/quantize.h"  // GemmInput, Write

template <class Device, class T>
struct LayernormOps {
    void (*layernorm_forward)(Device&, const GemmInput<T>& out, float* mean, float* rstd, const T* inp, const T* weight,
                              const T* bias, int64_t N, int64_t C, float eps);
    void (*residual_layernorm_forward)(Device&, T* residual, const GemmInput<T>& out, float* mean, float* rstd,
                                       const T* inp1, const T* inp2, const T* weight, const T* bias, int64_t N,
                                       int64_t C, float eps);
    void (*layernorm_backward)(Device&, const GemmInput<T>& dinp, float* dweight, float* dbias, const T* dout,
                               const T* inp, const T* weight, const float* mean, const float* rstd, int64_t N,
                               int64_t C, Write write);
};

/*
LayerNorm (Ba et al., 2016, arXiv:1607.06450):   out = (inp - mean) * rstd * weight + bias,   one row of C at a time

  inp, out (N, C) T     weight, bias (C) T     mean, rstd (N) float: saved for backward     dweight, dbias (C) float
Forward computes the mean first, then the variance of the centered row, so a large mean causes no cancellation. The
fused form adds the two branches of a residual stream:   residual = inp1 + inp2,   out = layernorm(residual).

Backward adds to dweight and dbias, and overwrites dinp or adds to it, depending on `write`. It adds the column sums of
dinp, as stored, to dinp_sums (C) float, which may be null: dinp is the gradient of the residual stream, and its column
sums are the gradient of the bias of the linear layer whose output was added last.

amax, which may be null, is overwritten with the largest magnitude of out, in backward of dinp, as stored: what absmax
(quantize.h) would compute, without reading the tensor again.

With `codes`, out is only scratch: the output is quantized as by quantize, without being stored. N and C must then be
multiples of 16, and amax null.
*/
#pragma once
#include <cstdint>
#include "llmc/ops/quantize.h"  // DelayedCodes
#include "llmc/ops/write.h"     // Write

template <class Device, class T>
struct LayernormOps {
    void (*layernorm_forward)(Device&, T* out, float* mean, float* rstd, const T* inp, const T* weight, const T* bias,
                              int64_t N, int64_t C, float eps, float* amax, const DelayedCodes& codes);
    void (*residual_layernorm_forward)(Device&, T* residual, T* out, float* mean, float* rstd, const T* inp1,
                                       const T* inp2, const T* weight, const T* bias, int64_t N, int64_t C, float eps,
                                       float* amax, const DelayedCodes& codes);
    void (*layernorm_backward)(Device&, T* dinp, float* dweight, float* dbias, const T* dout, const T* inp,
                               const T* weight, const float* mean, const float* rstd, int64_t N, int64_t C, Write write,
                               float* dinp_sums, float* amax);
};

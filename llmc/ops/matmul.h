/*
A linear layer:   out = inp weight^T + bias

  inp (N, C)     weight (OC, C)     bias (OC), may be null     out (N, OC), of float or bf16; sums and the gradients of
  parameters are float
Backward:  dinp = dout weight (overwritten; may be null),  dweight = or += dout^T inp, depending on `write`,
dbias += column sums of dout (may be null).

Overwriting dweight gives the same bits as adding to zeros, except that a sum of -0 stays -0, where 0 + -0 is 0. No use
of gradients in a training step distinguishes them.

matmul_gelu_forward applies GELU to the output:  hidden (N, OC) = inp weight^T + bias,  out = gelu(hidden).
matmul_gelu_backward is for a layer whose inp = gelu(hidden), hidden (N, C):  instead of dinp it overwrites
dhidden = (dout weight) * gelu'(hidden). A device may fuse them.
*/
#pragma once
#include <cstdint>
#include "llmc/ops/quantize.h"  // Write

template <class Device, class T>
struct MatmulOps {
    void (*matmul_forward)(Device&, T* out, const T* inp, const T* weight, const T* bias, int64_t N, int64_t C,
                           int64_t OC);
    void (*matmul_backward)(Device&, T* dinp, float* dweight, float* dbias, const T* dout, const T* inp,
                            const T* weight, int64_t N, int64_t C, int64_t OC, Write write);
    void (*matmul_gelu_forward)(Device&, T* out, T* hidden, const T* inp, const T* weight, const T* bias, int64_t N,
                                int64_t C, int64_t OC);
    void (*matmul_gelu_backward)(Device&, T* dhidden, float* dweight, float* dbias, const T* dout, const T* inp,
                                 const T* hidden, const T* weight, int64_t N, int64_t C, int64_t OC, Write write);
};

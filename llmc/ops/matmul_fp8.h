/*
A linear layer in eight bits:   out = inp weight^T + bias   (scales and types: llmc/base/fp8.h, quantise.h)

  inp (N, C) and weight (OC, C) in e4m3     bias (OC) T, may be null     out (N, OC) T
Backward, with dout (N, OC) in e5m2:  dinp = dout weight (overwritten; may be null),  dweight = or += dout^T inp, as
`write` says. The bias's gradient is that of any linear layer, from dout before it is rounded.

Every product runs along rows of both operands, which is all that a GPU before Blackwell can do: forward takes `data`,
backward dout.data, weight.transposed, dout.transposed and inp.transposed. N, C and OC are multiples of 16.
*/
#pragma once
#include <cstdint>
#include "llmc/base/fp8.h"    // Quantised, e4m3, e5m2
#include "llmc/ops/matmul.h"  // Write

template <class Device, class T>
struct MatmulFp8Ops {
    void (*matmul_fp8_forward)(Device&, T* out, const Quantised<e4m3>& inp, const Quantised<e4m3>& weight,
                               const T* bias);
    void (*matmul_fp8_backward)(Device&, T* dinp, float* dweight, const Quantised<e5m2>& dout,
                                const Quantised<e4m3>& inp, const Quantised<e4m3>& weight, Write write);
};

/*
A linear layer in FP8:   out = inp weight^T + bias   (scales and types: llmc/base/fp8.h, quantize.h)

  inp (N, C) and weight (OC, C) in e4m3     bias (OC) T, may be null     out (N, OC) T
Backward, with dout (N, OC) in e5m2:  dinp = dout weight (overwritten; may be null),  dweight = or += dout^T inp (null
only without MX), as `write` says. The gradient of the bias is computed from dout before quantization, as in any layer.

Every GEMM has both operands with rows along k, the only layout that GPUs before Blackwell support in FP8: forward reads
`data`, backward dout.data, weight.transposed, dout.transposed and inp.transposed. N, C and OC are multiples of 16.

In MX all operands are e4m3 with scales of blocks (llmc/base/fp8.h), and N, C and OC are multiples of 32.
*/
#pragma once
#include <cstdint>
#include "llmc/base/fp8.h"    // Quantized, MxTensor, e4m3, e5m2
#include "llmc/ops/matmul.h"  // Write

template <class Device, class T>
struct MatmulFp8Ops {
    void (*matmul_fp8_forward)(Device&, T* out, const Quantized<e4m3>& inp, const Quantized<e4m3>& weight,
                               const T* bias);
    void (*matmul_fp8_backward)(Device&, T* dinp, float* dweight, const Quantized<e5m2>& dout,
                                const Quantized<e4m3>& inp, const Quantized<e4m3>& weight, Write write);
    void (*matmul_mx_forward)(Device&, T* out, const MxTensor& inp, const MxTensor& weight, const T* bias);
    void (*matmul_mx_backward)(Device&, T* dinp, float* dweight, const MxTensor& dout, const MxTensor& inp,
                               const MxTensor& weight, Write write);
};

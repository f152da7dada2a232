/*
A linear layer:   out = inp weight^T + bias

  inp (N, C)     weight (OC, C)     bias (OC), may be null     out (N, OC)
Backward:  dinp = dout weight (overwritten; may be null),  dweight += dout^T inp,  dbias += column sums of dout (may be
null). matmul_gelu_forward and _backward are the same with a GELU behind the layer and before it: a device may fuse
them. The only door to matrix products outside attention.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu
#include "llmc/cpu/gelu.h"    // gelu_forward, gelu_backward
#include "llmc/cpu/gemm.h"    // gemm, Strided
#include "llmc/cpu/reduce.h"  // add_column_sums

inline void matmul_forward(Cpu& cpu, float* out, const float* inp, const float* weight, const float* bias, int64_t N,
                           int64_t C, int64_t OC) {
    gemm(cpu, out, OC, N, OC, C, {inp, C, 1}, {weight, 1, C}, bias, Write::set);
}

inline void matmul_backward(Cpu& cpu, float* dinp, float* dweight, float* dbias, const float* dout, const float* inp,
                            const float* weight, int64_t N, int64_t C, int64_t OC) {
    if (dinp) gemm(cpu, dinp, C, N, C, OC, {dout, OC, 1}, {weight, C, 1}, nullptr, Write::set);
    gemm(cpu, dweight, C, OC, C, N, {dout, 1, OC}, {inp, C, 1}, nullptr, Write::add);
    if (dbias) add_column_sums(cpu, dbias, dout, N, OC);
}

// hidden = inp weight^T + bias,   out = gelu(hidden)
inline void matmul_gelu_forward(Cpu& cpu, float* out, float* hidden, const float* inp, const float* weight,
                                const float* bias, int64_t N, int64_t C, int64_t OC) {
    matmul_forward(cpu, hidden, inp, weight, bias, N, C, OC);
    gelu_forward(cpu, out, hidden, N * OC);
}

// Where inp = gelu(hidden):   dhidden (N, C) = (dout weight) * gelu'(hidden),   overwritten
inline void matmul_gelu_backward(Cpu& cpu, float* dhidden, float* dweight, float* dbias, const float* dout,
                                 const float* inp, const float* hidden, const float* weight, int64_t N, int64_t C,
                                 int64_t OC) {
    matmul_backward(cpu, dhidden, dweight, dbias, dout, inp, weight, N, C, OC);
    gelu_backward(cpu, dhidden, dhidden, hidden, N * C);
}

/*
A linear layer:   out = inp weight^T + bias

  inp (N, C)     weight (OC, C)     bias (OC), may be null     out (N, OC), of float or bf16; sums and the gradients of
  parameters are float
Backward:  dinp = dout weight (overwritten; may be null),  dweight = or += dout^T inp (may be null), depending on
`write`,  dbias += column sums of dout (may be null).

Overwriting dweight gives the same bits as adding to zeros, except that a sum of -0 stays -0, where 0 + -0 is 0. No use
of gradients in a training step distinguishes them.

matmul_gelu_forward applies GELU to the output:  hidden (N, OC) = inp weight^T + bias,  out = gelu(hidden).
matmul_gelu_backward is for a layer whose inp = gelu(hidden), hidden (N, C):  instead of dinp it overwrites
dhidden = (dout weight) * gelu'(hidden). A device may fuse them.

A low-rank adapter (LoRA: Hu et al., 2021, arXiv:2106.09685) of a layer whose rows are those of P matrices, stacked;
each has an A and a B of its own:

  low_i = scale inp A_i^T     out_i += low_i B_i^T     for the columns out_i of matrix i

  a (P r, C)     b (OC, r)     low, dlow (N, P r): scratch, overwritten     da, db float = or +=, as `write` says
Backward:  dB_i = dout_i^T low_i,  dlow_i = scale dout_i B_i,  dA = dlow^T inp,  dinp = or += dlow A, as dinp_write
says; dinp may be inp. It computes low again, so that no layer keeps it.
*/
#pragma once
#include <cstdint>
#include "llmc/ops/quantize.h"  // Write

struct LowRankShape {
    static constexpr int kMostParts = 3;

    int64_t N = 0, C = 0, rank = 0;
    float scale = 1;
    int parts = 1;                  // P
    int64_t rows[kMostParts] = {};  // of each matrix

    int64_t OC() const { return rows[0] + rows[1] + rows[2]; }
    int64_t width() const { return parts * rank; }
};

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
    void (*low_rank_forward)(Device&, T* out, T* low, const T* inp, const T* a, const T* b, const LowRankShape& shape);
    void (*low_rank_backward)(Device&, T* dinp, float* da, float* db, T* low, T* dlow, const T* dout, const T* inp,
                              const T* a, const T* b, const LowRankShape& shape, Write write, Write dinp_write);
};

/*
SwiGLU, the activation of Llama's MLP (Shazeer, 2020, arXiv:2002.05202):

  out = silu(gate) * up,   silu(x) = x sigmoid(x)
  dgate = dout * up * s (1 + gate (1 - s)),   dup = dout * silu(gate)          with s = sigmoid(gate)

  inp, dinp (N, 2C) T: each row the C gates, then the C ups     out, dout (N, C) T
One GEMM with both weights computes inp. Nothing else is saved: backward recomputes the sigmoid. It overwrites dinp,
which may be inp. It is stored as the next GEMM wants it (GemmInput), with amax.
*/
#pragma once
#include <cstdint>
#include "llmc/ops/quantize.h"  // GemmInput

template <class Device, class T>
struct SwigluOps {
    void (*swiglu_forward)(Device&, T* out, const T* inp, int64_t N, int64_t C);
    void (*swiglu_backward)(Device&, const GemmInput<T>& dinp, const T* dout, const T* inp, int64_t N, int64_t C);
};

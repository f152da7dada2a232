/*
SwiGLU, the MLP's activation of Llama (Shazeer, 2020, arXiv:2002.05202):

  out = silu(gate) * up,   silu(x) = x sigmoid(x)
  dgate = dout * up * s (1 + gate (1 - s)),   dup = dout * silu(gate)          with s = sigmoid(gate)

  inp, dinp (N, 2C) T: each row the C gates, then the C ups     out, dout (N, C) T
One product with both matrices makes inp. Nothing else is saved: backward computes the sigmoid again, and overwrites
dinp, which may be inp itself.
*/
#pragma once
#include <cstdint>

template <class Device, class T>
struct SwigluOps {
    void (*swiglu_forward)(Device&, T* out, const T* inp, int64_t N, int64_t C);
    void (*swiglu_backward)(Device&, T* dinp, const T* dout, const T* inp, int64_t N, int64_t C);
};

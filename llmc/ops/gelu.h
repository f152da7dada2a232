/*
GELU, tanh approximation, as in GPT-2 (Hendrycks and Gimpel, 2016, arXiv:1606.08415):

  out = x/2 * (1 + tanh(u)),  u = sqrt(2/pi) * (x + 0.044715 x^3)       = x * sigmoid(2u)

Computed by the sigmoid: one exponential, and no cancellation where tanh(u) is near -1. Elementwise over n values of T.
Backward overwrites dinp, which may be dout. It is stored as the next GEMM wants it (GemmInput), with amax.
*/
#pragma once
#include <cstdint>
#include "llmc/ops/quantize.h"  // GemmInput

template <class Device, class T>
struct GeluOps {
    void (*gelu_forward)(Device&, T* out, const T* inp, int64_t n);
    void (*gelu_backward)(Device&, const GemmInput<T>& dinp, const T* dout, const T* inp, int64_t n);
};

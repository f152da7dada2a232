/*
Quantizes a tensor to FP8 with one scale, computed from the tensor itself ("FP8 Formats for Deep Learning", Micikevicius
et al., 2022, arXiv:2209.05433, section 3.2):

  amax = max |inp|,   scale = MAX / max(amax, 1e-12),   out = inp * scale rounded (to_fp8),   inverse_scale = 1 / scale

  inp (rows, cols) float or bf16     out (rows, cols) e4m3 or e5m2     out_transposed (cols, rows), may be null
  amax, inverse_scale: one float each     column_sums (cols) float +=, may be null: those of inp before it is quantized,
                                          which are a bias's gradient where inp is that of a linear layer's output
What is quantized may be an activation of inp, which is then stored nowhere: gelu(inp) or max(inp, 0)^2, rounded to T
first, so that the bits are those of the activation's own op. column_sums are without an activation.

MAX is the type's largest number. All else is overwritten. A NaN in inp makes amax NaN and with it every number; an
infinity leaves inverse_scale infinite, so that what is multiplied with it is not finite either.
*/
#pragma once
#include <cstdint>
#include "llmc/base/fp8.h"  // e4m3, e5m2

// What an op does to each number before it uses it.
enum class Activation { none, gelu, relu_squared };

template <class Device, class T>
struct QuantizeOps {
    void (*absmax)(Device&, float* amax, const T* inp, int64_t n, Activation activation);
    void (*quantize_e4m3)(Device&, e4m3* out, e4m3* out_transposed, float* inverse_scale, const T* inp,
                          const float* amax, int64_t rows, int64_t cols, float* column_sums, Activation activation);
    void (*quantize_e5m2)(Device&, e5m2* out, e5m2* out_transposed, float* inverse_scale, const T* inp,
                          const float* amax, int64_t rows, int64_t cols, float* column_sums, Activation activation);
};

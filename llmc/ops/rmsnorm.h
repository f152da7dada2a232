/*
RMSNorm (Zhang and Sennrich, 2019, arXiv:1910.07467):   out = inp * rstd * weight,   rstd = 1 / sqrt(mean(inp^2) + eps)

  inp, out (N, C) T     weight (C) T, or null for all ones     rstd (N) float: saved for backward
  dweight (C) float
One row of C at a time. The fused form adds the two branches of a residual stream:   residual = inp1 + inp2,
out = rmsnorm(residual). Backward overwrites dinp or, depending on `write`, adds to it: dinp then already holds the
gradient of the residual stream. It adds to dweight, which may be null.

out is stored as the next GEMM wants it (GemmInput): its values or its codes.
*/
#pragma once
#include <cstdint>
#include "llmc/ops/quantize.h"  // GemmInput, Write

template <class Device, class T>
struct RmsnormOps {
    void (*rmsnorm_forward)(Device&, const GemmInput<T>& out, float* rstd, const T* inp, const T* weight, int64_t N,
                            int64_t C, float eps);
    void (*residual_rmsnorm_forward)(Device&, T* residual, const GemmInput<T>& out, float* rstd, const T* inp1,
                                     const T* inp2, const T* weight, int64_t N, int64_t C, float eps);
    void (*rmsnorm_backward)(Device&, T* dinp, float* dweight, const T* dout, const T* inp, const T* weight,
                             const float* rstd, int64_t N, int64_t C, Write write);
};

/*
A norm of the model, of its architecture's kind.
*/
#pragma once
#include <cstdint>
#include "llmc/base/check.h"          // ensure
#include "llmc/model/architecture.h"  // NormKind
#include "llmc/ops/ops.h"             // Ops
#include "llmc/ops/quantize.h"        // GemmInput, Write

// residual (N, C) -> out (N, C). weight, bias and mean are null where the kind has none.
template <class T>
struct NormLayer {
    T* residual;
    GemmInput<T> out;
    float *mean, *rstd;
    const T *weight, *bias;
};

// Whether the norm finds the largest magnitude of out, and in backward that of dresidual and its column sums.
inline bool norm_finds_amax_and_sums(const Architecture& a) { return a.norm == NormKind::layernorm; }

template <class Device, class T>
void norm_forward(Device& device, const Architecture& a, const NormLayer<T>& norm, int64_t N, int64_t C) {
    const auto eps = float(a.norm_eps);
    if (a.norm == NormKind::layernorm)
        ops<T>(device).layernorm_forward(device, norm.out, norm.mean, norm.rstd, norm.residual, norm.weight, norm.bias,
                                         N, C, eps);
    else
        ops<T>(device).rmsnorm_forward(device, norm.out, norm.rstd, norm.residual, norm.weight, N, C, eps);
}

// The same for residual = inp1 + inp2, which it also writes.
template <class Device, class T>
void residual_norm_forward(Device& device, const Architecture& a, const NormLayer<T>& norm, const T* inp1,
                           const T* inp2, int64_t N, int64_t C) {
    const auto eps = float(a.norm_eps);
    if (a.norm == NormKind::layernorm)
        ops<T>(device).residual_layernorm_forward(device, norm.residual, norm.out, norm.mean, norm.rstd, inp1, inp2,
                                                  norm.weight, norm.bias, N, C, eps);
    else
        ops<T>(device).residual_rmsnorm_forward(device, norm.residual, norm.out, norm.rstd, inp1, inp2, norm.weight, N,
                                                C, eps);
}

// Adds to dweight and dbias, and adds to or sets dresidual, as `write` says.
template <class Device, class T>
void norm_backward(Device& device, const Architecture& a, const NormLayer<T>& norm, const GemmInput<T>& dresidual,
                   float* dweight, float* dbias, const T* dout, int64_t N, int64_t C, Write write = Write::add) {
    ensure(norm_finds_amax_and_sums(a) || (!dresidual.amax && !dresidual.column_sums));
    if (a.norm == NormKind::layernorm)
        ops<T>(device).layernorm_backward(device, dresidual, dweight, dbias, dout, norm.residual, norm.weight,
                                          norm.mean, norm.rstd, N, C, write);
    else
        ops<T>(device).rmsnorm_backward(device, dresidual.values, dweight, dout, norm.residual, norm.weight, norm.rstd,
                                        N, C, write);
}

/*
A norm of the model, of its architecture's kind.
*/
#pragma once
#include <cstdint>
#include "llmc/base/check.h"          // ensure
#include "llmc/model/architecture.h"  // NormKind
#include "llmc/ops/ops.h"             // Ops
#include "llmc/ops/quantize.h"        // DelayedCodes
#include "llmc/ops/write.h"           // Write

// residual (N, C) -> out (N, C). weight, bias and mean are null where the kind has none. amax, if it is not null, gets
// the largest magnitude of out; norm_gives_amax() says which kinds can.
template <class T>
struct NormLayer {
    T *residual, *out;
    float *mean, *rstd;
    const T *weight, *bias;
    float* amax = nullptr;
    DelayedCodes codes = {};  // where to write the codes of out instead of out; null codes: write out
};

template <class Device, class T>
void norm_forward(Device& device, const Architecture& a, const NormLayer<T>& norm, int64_t N, int64_t C) {
    const auto eps = float(a.norm_eps);
    if (a.norm == NormKind::layernorm)
        ops<T>(device).layernorm_forward(device, norm.out, norm.mean, norm.rstd, norm.residual, norm.weight, norm.bias,
                                         N, C, eps, norm.amax, norm.codes);
    else
        ops<T>(device).rmsnorm_forward(device, norm.out, norm.rstd, norm.residual, norm.weight, N, C, eps, norm.codes);
}

// The same for residual = inp1 + inp2, which it also writes.
template <class Device, class T>
void residual_norm_forward(Device& device, const Architecture& a, const NormLayer<T>& norm, const T* inp1,
                           const T* inp2, int64_t N, int64_t C) {
    const auto eps = float(a.norm_eps);
    if (a.norm == NormKind::layernorm)
        ops<T>(device).residual_layernorm_forward(device, norm.residual, norm.out, norm.mean, norm.rstd, inp1, inp2,
                                                  norm.weight, norm.bias, N, C, eps, norm.amax, norm.codes);
    else
        ops<T>(device).residual_rmsnorm_forward(device, norm.residual, norm.out, norm.rstd, inp1, inp2, norm.weight, N,
                                                C, eps, norm.codes);
}

// Whether the backward pass can sum the columns of dresidual, and whether both passes can find largest magnitudes.
inline bool norm_sums_columns(const Architecture& a) { return a.norm == NormKind::layernorm; }
inline bool norm_gives_amax(const Architecture& a) { return a.norm == NormKind::layernorm; }

// Adds to dweight and dbias, and adds to or sets dresidual, as `write` says. Also adds the column sums of the resulting
// dresidual to residual_sums, and stores its largest magnitude in residual_amax; both may be null.
template <class Device, class T>
void norm_backward(Device& device, const Architecture& a, const NormLayer<T>& norm, T* dresidual, float* dweight,
                   float* dbias, const T* dout, int64_t N, int64_t C, Write write = Write::add,
                   float* residual_sums = nullptr, float* residual_amax = nullptr) {
    if (a.norm == NormKind::layernorm)
        ops<T>(device).layernorm_backward(device, dresidual, dweight, dbias, dout, norm.residual, norm.weight,
                                          norm.mean, norm.rstd, N, C, write, residual_sums, residual_amax);
    else
        ops<T>(device).rmsnorm_backward(device, dresidual, dweight, dout, norm.residual, norm.weight, norm.rstd, N, C,
                                        write);
}

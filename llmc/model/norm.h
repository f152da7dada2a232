/*
The norm at one place of the model, whichever kind the architecture has.
*/
#pragma once
#include <cstdint>
#include "llmc/base/check.h"          // ensure
#include "llmc/model/architecture.h"  // NormKind
#include "llmc/ops/ops.h"             // Ops

// residual (N, C) -> out (N, C); weight, bias and mean are null where the kind has none.
template <class T>
struct NormSite {
    T *residual, *out;
    float *mean, *rstd;
    const T *weight, *bias;
};

template <class Device, class T>
void norm_forward(Device& device, const Architecture& a, const NormSite<T>& site, int64_t N, int64_t C) {
    const auto eps = float(a.norm_eps);
    if (a.norm == NormKind::layernorm)
        ops<T>(device).layernorm_forward(device, site.out, site.mean, site.rstd, site.residual, site.weight, site.bias,
                                         N, C, eps);
    else
        ops<T>(device).rmsnorm_forward(device, site.out, site.rstd, site.residual, site.weight, N, C, eps);
}

// residual = inp1 + inp2 on the way.
template <class Device, class T>
void residual_norm_forward(Device& device, const Architecture& a, const NormSite<T>& site, const T* inp1, const T* inp2,
                           int64_t N, int64_t C) {
    const auto eps = float(a.norm_eps);
    if (a.norm == NormKind::layernorm)
        ops<T>(device).residual_layernorm_forward(device, site.residual, site.out, site.mean, site.rstd, inp1, inp2,
                                                  site.weight, site.bias, N, C, eps);
    else
        ops<T>(device).residual_rmsnorm_forward(device, site.residual, site.out, site.rstd, inp1, inp2, site.weight, N,
                                                C, eps);
}

// Adds to dresidual, dweight and dbias.
template <class Device, class T>
void norm_backward(Device& device, const Architecture& a, const NormSite<T>& site, T* dresidual, float* dweight,
                   float* dbias, const T* dout, int64_t N, int64_t C) {
    if (a.norm == NormKind::layernorm)
        ops<T>(device).layernorm_backward(device, dresidual, dweight, dbias, dout, site.residual, site.weight,
                                          site.mean, site.rstd, N, C);
    else
        ops<T>(device).rmsnorm_backward(device, dresidual, dweight, dout, site.residual, site.weight, site.rstd, N, C);
}

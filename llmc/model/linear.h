/*
A linear layer of the model, in the type of its weights or in FP8:   out = inp weight^T + bias

  inp (N, C)     weight (OC, C)     bias (OC), may be null     out (N, OC)

In FP8 ("FP8 Formats for Deep Learning", Micikevicius et al., 2022, arXiv:2209.05433; one scale per tensor, from its own
largest magnitude: llmc/ops/quantize.h), with x8 for x quantized to e4m3 and dout8 for dout quantized to e5m2:

  out = inp8 weight8^T + bias     dinp = dout8 weight8     dweight = or += dout8^T inp8     dbias += column sums of dout

The weights keep their type. They are quantized once per step, as they are and transposed, because the matmuls read rows
of both operands. For the same reason forward saves inp8 transposed for backward, which then does not read inp.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/base/check.h"    // ensure, require
#include "llmc/base/fp8.h"      // e4m3, e5m2, Quantized, suits_fp8
#include "llmc/model/shape.h"   // GptShape
#include "llmc/ops/matmul.h"    // Write
#include "llmc/ops/ops.h"       // Ops
#include "llmc/ops/quantize.h"  // Activation

// The linear layers of a block: c_attn, c_proj, and c_fc and c_proj of the MLP.
enum LinearKind { kQkv, kProjection, kUp, kDown };
inline constexpr LinearKind kLinearKinds[] = {kQkv, kProjection, kUp, kDown};

struct LinearSize {
    int64_t C, OC;  // input and output channels
};
inline LinearSize linear_size(const GptShape& s, LinearKind kind) {
    switch (kind) {
        case kQkv:
            return {s.channels, s.qkv_rows()};
        case kProjection:
            return {s.query_channels(), s.channels};
        case kUp:
            return {s.channels, s.hidden_rows()};
        case kDown:
            return {s.hidden(), s.channels};
    }
    return {};
}

// Whether a layer is large enough to gain by FP8. Smaller ones, lm_head, embeddings and gates are never in FP8.
inline bool suits_fp8(const GptShape& s, LinearKind kind) {
    const auto [C, OC] = linear_size(s, kind);
    return suits_fp8(C, OC);
}
inline void check_fp8_model(const GptShape& s, int64_t B, int64_t T) {
    const bool any = std::any_of(std::begin(kLinearKinds), std::end(kLinearKinds),
                                 [&](LinearKind kind) { return suits_fp8(s, kind); });
    require(any,
            "--dtype fp8: this model has no linear layer of 128 channels or more on both sides, and smaller ones gain "
            "nothing by it: leave --dtype away");
    require(B * T % kFp8Multiple == 0,
            "--dtype fp8: a micro-batch of %ld x %ld tokens: their product must be a multiple of %ld; change "
            "--batch-size",
            B, T, kFp8Multiple);
}

// The quantized tensors of a layer in FP8. Null: it is not in FP8.
struct Fp8LinearState {
    e4m3 *weight = nullptr, *weight_t = nullptr;  // (OC, C), (C, OC): of this step
    e4m3* inp_t = nullptr;                        // (C, N): saved by forward for backward
    float *weight_inverse_scale = nullptr, *inp_inverse_scale = nullptr;
};

// The other operands of the matmul under way.
struct Fp8Scratch {
    uint8_t *rows = nullptr, *columns = nullptr;  // (N, widest layer), (widest layer, N)
    float *amax = nullptr, *inverse_scale = nullptr;
    float *inp_amax = nullptr, *dout_amax = nullptr;  // as the kernels have left them that wrote inp and dout
};

template <class T>
struct LinearLayer {
    int64_t N, C, OC;
    const Fp8LinearState* fp8;  // null: in T
    Fp8Scratch scratch = {};
    const T *weight = nullptr, *bias = nullptr;
    float *dweight = nullptr, *dbias = nullptr;
    Write write = Write::add;                          // of dweight
    bool inp_has_amax = false, dout_has_amax = false;  // in FP8: they are in the scratch

    Quantized<e4m3> quantized_inp() const {
        return {reinterpret_cast<const e4m3*>(scratch.rows), fp8->inp_t, fp8->inp_inverse_scale, N, C};
    }
    Quantized<e4m3> quantized_weight() const { return {fp8->weight, fp8->weight_t, fp8->weight_inverse_scale, OC, C}; }
};

// Quantizes a weight that has changed. Does nothing for a layer in T, and so the next.
template <class Device, class T>
void linear_quantize_weight(Device& device, const LinearLayer<T>& s) {
    if (!s.fp8) return;
    ops<T>(device).absmax(device, s.scratch.amax, s.weight, s.OC * s.C, Activation::none);
    ops<T>(device).quantize_e4m3(device, s.fp8->weight, s.fp8->weight_t, s.fp8->weight_inverse_scale, s.weight,
                                 s.scratch.amax, s.OC, s.C, nullptr, Activation::none);
}

// Quantizes an input, or its activation, as forward does, for a backward pass whose saved one was overwritten.
template <class Device, class T>
void linear_quantize_input(Device& device, const T* inp, const LinearLayer<T>& s,
                           Activation activation = Activation::none) {
    if (!s.fp8) return;
    ensure(!s.inp_has_amax || activation == Activation::none);
    float* const amax = s.inp_has_amax ? s.scratch.inp_amax : s.scratch.amax;
    if (!s.inp_has_amax) ops<T>(device).absmax(device, amax, inp, s.N * s.C, activation);
    ops<T>(device).quantize_e4m3(device, reinterpret_cast<e4m3*>(s.scratch.rows), s.fp8->inp_t,
                                 s.fp8->inp_inverse_scale, inp, amax, s.N, s.C, nullptr, activation);
}

// An activation only in FP8.
template <class Device, class T>
void linear_forward(Device& device, T* out, const T* inp, const LinearLayer<T>& s,
                    Activation activation = Activation::none) {
    if (!s.fp8) {
        ensure(activation == Activation::none);
        return ops<T>(device).matmul_forward(device, out, inp, s.weight, s.bias, s.N, s.C, s.OC);
    }
    linear_quantize_input(device, inp, s, activation);
    ops<T>(device).matmul_fp8_forward(device, out, s.quantized_inp(), s.quantized_weight(), s.bias);
}

// Adds to the gradient of the bias; s.write says whether that of the weight is overwritten or added to. FP8 does not
// read inp.
template <class Device, class T>
void linear_backward(Device& device, T* dinp, const T* dout, const T* inp, const LinearLayer<T>& s) {
    if (!s.fp8)
        return ops<T>(device).matmul_backward(device, dinp, s.dweight, s.dbias, dout, inp, s.weight, s.N, s.C, s.OC,
                                              s.write);
    auto *rows = reinterpret_cast<e5m2*>(s.scratch.rows), *columns = reinterpret_cast<e5m2*>(s.scratch.columns);
    float* const amax = s.dout_has_amax ? s.scratch.dout_amax : s.scratch.amax;
    if (!s.dout_has_amax) ops<T>(device).absmax(device, amax, dout, s.N * s.OC, Activation::none);
    ops<T>(device).quantize_e5m2(device, rows, columns, s.scratch.inverse_scale, dout, amax, s.N, s.OC, s.dbias,
                                 Activation::none);
    ops<T>(device).matmul_fp8_backward(device, dinp, s.dweight, {rows, columns, s.scratch.inverse_scale, s.N, s.OC},
                                       s.quantized_inp(), s.quantized_weight(), s.write);
}

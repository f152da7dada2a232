/*
A linear layer of the model, in the type of its weights or in eight bits:   out = inp weight^T + bias

  inp (N, C)     weight (OC, C)     bias (OC), may be null     out (N, OC)

In eight bits ("FP8 Formats for Deep Learning", Micikevicius et al., 2022, arXiv:2209.05433; one scale a tensor, found
from the tensor itself: llmc/cpu/quantise.h), with x8 what is left of x in e4m3 and dout8 of dout in e5m2:

  out = inp8 weight8^T + bias     dinp = dout8 weight8     dweight = or += dout8^T inp8     dbias += column sums of dout

Weights stay what they are. Their codes are made once a step, both ways round, because products run along rows of both
operands; for the same reason forward leaves inp8 turned for backward, which then needs inp no more.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/base/check.h"     // require
#include "llmc/base/fp8.h"       // e4m3, e5m2, Quantised, suits_fp8
#include "llmc/base/op_types.h"  // Write
#include "llmc/model/shape.h"    // GptShape
#include "llmc/ops/ops.h"        // Ops

// The linear layers of a block.
enum LinearKind { kQkv, kProjection, kUp, kDown };
inline constexpr LinearKind kLinearKinds[] = {kQkv, kProjection, kUp, kDown};

struct LinearSize {
    int64_t C, OC;  // channels that go in and come out
};
inline LinearSize linear_size(const GptShape& s, LinearKind kind) {
    switch (kind) {
        case kQkv:
            return {s.channels, s.qkv_rows()};
        case kProjection:
            return {s.channels, s.channels};
        case kUp:
            return {s.channels, s.hidden_rows()};
        case kDown:
            return {s.hidden(), s.channels};
    }
    return {};
}

// Layers too small for it stay in the type of the weights, and so do the head, the embeddings and the gates.
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

// What a layer in eight bits has beside its weights. Null: it is not computed in them.
struct LinearCodes {
    e4m3 *weight = nullptr, *weight_turned = nullptr;  // (OC, C), (C, OC): of this step
    e4m3* inp_turned = nullptr;                        // (C, N): from forward to backward
    float *weight_inverse_scale = nullptr, *inp_inverse_scale = nullptr;
};

// Of one product at a time: what is converted for it.
struct CodeScratch {
    uint8_t *rows = nullptr, *columns = nullptr;  // (N, widest layer), (widest layer, N)
    float *amax = nullptr, *inverse_scale = nullptr;
};

template <class T>
struct LinearSite {
    int64_t N, C, OC;
    const LinearCodes* codes;  // null: in T
    CodeScratch scratch = {};
    const T *weight = nullptr, *bias = nullptr;
    float *dweight = nullptr, *dbias = nullptr;
    Write write = Write::add;  // of dweight

    Quantised<e4m3> quantised_inp() const {
        return {reinterpret_cast<const e4m3*>(scratch.rows), codes->inp_turned, codes->inp_inverse_scale, N, C};
    }
    Quantised<e4m3> quantised_weight() const {
        return {codes->weight, codes->weight_turned, codes->weight_inverse_scale, OC, C};
    }
};

// The codes of a weight that has changed.
template <class Device, class T>
void linear_convert_weight(Device& device, const LinearSite<T>& s) {
    if (!s.codes) return;
    ops<T>(device).absmax(device, s.scratch.amax, s.weight, s.OC * s.C);
    ops<T>(device).quantise_e4m3(device, s.codes->weight, s.codes->weight_turned, s.codes->weight_inverse_scale,
                                 s.weight, s.scratch.amax, s.OC, s.C);
}

// What forward leaves for backward, and nothing else.
template <class Device, class T>
void linear_convert_input(Device& device, const T* inp, const LinearSite<T>& s) {
    if (!s.codes) return;
    ops<T>(device).absmax(device, s.scratch.amax, inp, s.N * s.C);
    ops<T>(device).quantise_e4m3(device, reinterpret_cast<e4m3*>(s.scratch.rows), s.codes->inp_turned,
                                 s.codes->inp_inverse_scale, inp, s.scratch.amax, s.N, s.C);
}

template <class Device, class T>
void linear_forward(Device& device, T* out, const T* inp, const LinearSite<T>& s) {
    if (!s.codes) return ops<T>(device).matmul_forward(device, out, inp, s.weight, s.bias, s.N, s.C, s.OC);
    linear_convert_input(device, inp, s);
    ops<T>(device).matmul_fp8_forward(device, out, s.quantised_inp(), s.quantised_weight(), s.bias);
}

// In eight bits inp is not read. Adds to the gradient of the bias; s.write says what becomes of the weight's.
template <class Device, class T>
void linear_backward(Device& device, T* dinp, const T* dout, const T* inp, const LinearSite<T>& s) {
    if (!s.codes)
        return ops<T>(device).matmul_backward(device, dinp, s.dweight, s.dbias, dout, inp, s.weight, s.N, s.C, s.OC,
                                              s.write);
    auto *rows = reinterpret_cast<e5m2*>(s.scratch.rows), *columns = reinterpret_cast<e5m2*>(s.scratch.columns);
    ops<T>(device).absmax(device, s.scratch.amax, dout, s.N * s.OC);
    ops<T>(device).quantise_e5m2(device, rows, columns, s.scratch.inverse_scale, dout, s.scratch.amax, s.N, s.OC);
    ops<T>(device).matmul_fp8_backward(device, dinp, s.dweight, {rows, columns, s.scratch.inverse_scale, s.N, s.OC},
                                       s.quantised_inp(), s.quantised_weight(), s.write);
    if (s.dbias) ops<T>(device).add_column_sums(device, s.dbias, dout, s.N, s.OC);
}

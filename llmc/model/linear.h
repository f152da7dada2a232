/*
A linear layer of the model, in the type of its weights or in FP8:   out = inp weight^T + bias

  inp (N, C)     weight (OC, C)     bias (OC), may be null     out (N, OC)

In FP8 ("FP8 Formats for Deep Learning", Micikevicius et al., 2022, arXiv:2209.05433; one scale per tensor, from its own
largest magnitude: llmc/ops/quantize.h), with x8 for x quantized to e4m3 and dout8 for dout quantized to e5m2:

  out = inp8 weight8^T + bias     dinp = dout8 weight8     dweight = or += dout8^T inp8     dbias += column sums of dout

The weights keep their type. They are quantized once per step, both directly and transposed, because the matmuls read
rows of both operands. For the same reason the forward pass saves inp8 transposed, and the backward pass does not read
inp.

Beside adapters (lora.h) the weights never change: they are there in FP8 alone, a byte each, from the start. There is no
dweight, so the backward pass transposes the weight's codes into memory that all layers share, and reads inp as it was.
Adapters are computed in the type of activations, from inp and dout before quantization.

Delayed scaling: the scales of inp and dout come from the largest magnitudes of earlier steps. They are constant in a
step, so recomputation has the scales of the forward pass. A single pass then quantizes a tensor and records its largest
magnitude, for which current scaling reads the tensor twice. The pass for up's dout also computes the activation's
gradient, and norms, which know the scale in advance, write the codes directly. Until the history is full or has
kAmaxWarmup steps, scales are current: from the tensor's own largest magnitude. Those of weights always are, since they
are quantized once per step.

MX ("Recipes for Pre-training LLMs with MXFP8", arXiv:2506.08027): all operands are e4m3, with a scale for each 32
elements along the sum. A tensor is read once, and quantized along its rows and along its columns.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include "llmc/base/check.h"    // ensure, require
#include "llmc/base/fp8.h"      // e4m3, e5m2, Quantized, MxTensor, suits_fp8
#include "llmc/model/lora.h"    // LoraLayer
#include "llmc/model/shape.h"   // GptShape, LinearKind
#include "llmc/ops/matmul.h"    // Write
#include "llmc/ops/ops.h"       // Ops
#include "llmc/ops/quantize.h"  // Activation, GemmInput

// Tensors with delayed scales: each layer's input and the gradient of its output.
inline constexpr int64_t kDelayedPerBlock = 2 * int64_t(std::size(kLinearKinds));
inline int64_t delayed_tensor(size_t layer, LinearKind kind, bool is_gradient) {
    return int64_t(layer) * kDelayedPerBlock + 2 * int64_t(kind) + int64_t(is_gradient);
}
// In the first steps magnitudes change a lot: the learning rate warms up, and weights leave their initial zeros.
inline constexpr int64_t kAmaxWarmup = 16;

// Whether a layer is large enough to be faster in FP8. Smaller ones, lm_head, embeddings and gates never use FP8.
inline bool suits_fp8(const GptShape& s, LinearKind kind) {
    const auto [C, OC] = linear_size(s, kind);
    return suits_fp8(C, OC);
}
// Codes of the largest matrix in FP8.
inline int64_t most_fp8_codes(const GptShape& s) {
    int64_t most = 0;
    for (const LinearKind kind : kLinearKinds)
        if (const auto [C, OC] = linear_size(s, kind); suits_fp8(C, OC)) most = std::max(most, C * OC);
    return most;
}
inline void check_fp8_model(const GptShape& s, int64_t B, int64_t T, bool mx = false) {
    require(most_fp8_codes(s) > 0,
            "--dtype fp8: this model has no linear layer of 128 channels or more on both sides, and smaller ones gain "
            "nothing by it: leave --dtype away");
    require(B * T % kFp8Multiple == 0,
            "--dtype fp8: a micro-batch of %ld x %ld tokens: their product must be a multiple of %ld; change "
            "--batch-size",
            B, T, kFp8Multiple);
    if (!mx) return;
    require(B * T % kMxBlock == 0,
            "--fp8-scaling mx: a micro-batch of %ld x %ld tokens: their product must be a multiple of %ld; change "
            "--batch-size",
            B, T, kMxBlock);
    for (const LinearKind kind : kLinearKinds) {
        const auto [C, OC] = linear_size(s, kind);
        require(
            !suits_fp8(C, OC) || (C % kMxBlock == 0 && OC % kMxBlock == 0),
            "--fp8-scaling mx: a linear layer of %ld by %ld channels: both must be multiples of %ld; choose another "
            "--fp8-scaling",
            C, OC, kMxBlock);
    }
}

// The quantized tensors of an FP8 layer. Null: the layer does not use FP8.
struct Fp8LinearState {
    e4m3 *weight = nullptr, *weight_t = nullptr;  // (OC, C), (C, OC): of this step
    e4m3* inp_t = nullptr;                        // (C, N): saved by forward for backward
    float *weight_inverse_scale = nullptr, *inp_inverse_scale = nullptr;
    e8m0 *weight_scales = nullptr, *weight_t_scales = nullptr, *inp_t_scales = nullptr;  // in MX, instead of one each
};

// The other operands of the current matmul, shared by all layers.
struct Fp8Scratch {
    uint8_t *rows = nullptr, *columns = nullptr;  // (N, widest layer), (widest layer, N)
    float *amax = nullptr, *inverse_scale = nullptr;
    float *inp_amax = nullptr, *dout_amax = nullptr;       // stored by the kernels that wrote inp and dout
    e8m0 *row_scales = nullptr, *column_scales = nullptr;  // in MX
    e4m3* weight_t = nullptr;                              // beside adapters: of one layer at a time
};

// An FP8 layer's input, or the gradient of its output: the largest magnitude from which its scale is computed.
struct Fp8Operand {
    const float* delayed_amax = nullptr;  // in earlier steps; null: the scale is current
    QuantizeNotes notes = {};             // with delayed scaling, where to record this step's
    float* amax = nullptr;  // with a current scale, where the op that computes the tensor stores it; null: absmax does
    // Computed while the tensor is quantized: inp is activation(what is given). In backward, which then requires a
    // delayed scale, what is given as dout is the gradient of activation(hidden), where `hidden` is the layer's output.
    Activation activation = Activation::none;
};

template <class T>
struct LinearLayer {
    int64_t N, C, OC;
    LoraLayer<T> lora = {};
    const Fp8LinearState* fp8 = nullptr;  // null: in T
    Fp8Scratch scratch = {};
    const T *weight = nullptr, *bias = nullptr;
    float *dweight = nullptr, *dbias = nullptr;  // null: it does not learn
    Write write = Write::add;                    // of dweight
    float* dout_sums = nullptr;  // where the op that computes dout adds the gradient of the bias; dbias is null then
    Fp8Operand fp8_inp = {}, fp8_dout = {};
    bool inp_is_quantized = false;  // the op that computes inp stores only its codes

    // For the ops that compute inp and dout: how to store them.
    GemmInput<T> inp(T* values) const {
        if (!inp_is_quantized) return {values, fp8_inp.amax};
        return {values,
                nullptr,
                nullptr,
                {reinterpret_cast<e4m3*>(scratch.rows), fp8->inp_t, fp8->inp_inverse_scale, fp8_inp.delayed_amax,
                 fp8_inp.notes}};
    }
    GemmInput<T> dout(T* values) const { return {values, fp8_dout.amax, dout_sums}; }
    // Whether backward reads a copy of inp that the layer has kept, not inp itself.
    bool keeps_inp() const { return fp8 && fp8->inp_t; }

    // Outside of steps N is any number: GEMMs compute some rows more, for which there is memory (check_fp8_model).
    Quantized<e4m3> quantized_inp() const {
        const int64_t rows = (N + kFp8Multiple - 1) / kFp8Multiple * kFp8Multiple;
        return {reinterpret_cast<const e4m3*>(scratch.rows), fp8->inp_t, fp8->inp_inverse_scale, rows, C};
    }
    Quantized<e4m3> quantized_weight() const {
        return {fp8->weight, fp8->weight_t ? fp8->weight_t : scratch.weight_t, fp8->weight_inverse_scale, OC, C};
    }

    bool is_mx() const { return fp8 && fp8->weight_scales; }
    MxTensor mx_inp() const {
        return {reinterpret_cast<e4m3*>(scratch.rows), scratch.row_scales, fp8->inp_t, fp8->inp_t_scales, N, C};
    }
    MxTensor mx_dout() const {
        return {reinterpret_cast<e4m3*>(scratch.rows),
                scratch.row_scales,
                reinterpret_cast<e4m3*>(scratch.columns),
                scratch.column_scales,
                N,
                OC};
    }
    MxTensor mx_weight() const { return {fp8->weight, fp8->weight_scales, fp8->weight_t, fp8->weight_t_scales, OC, C}; }
};

// Quantizes the weight after it has changed. Does nothing for a layer in T.
template <class Device, class T>
void linear_quantize_weight(Device& device, const LinearLayer<T>& s) {
    if (!s.fp8) return;
    if (s.is_mx()) return ops<T>(device).quantize_mx(device, s.mx_weight(), s.weight, nullptr, Activation::none);
    ops<T>(device).absmax(device, s.scratch.amax, s.weight, s.OC * s.C, Activation::none, s.C);
    ops<T>(device).quantize_e4m3(device, s.fp8->weight, s.fp8->weight_t, s.fp8->weight_inverse_scale, s.weight,
                                 s.scratch.amax, s.OC, s.C, nullptr, Activation::none, nullptr, {});
}

// The largest magnitude from which a tensor's scale is computed.
template <class Device, class T>
const float* amax_for_scale(Device& device, const T* x, int64_t n, const Fp8Operand& of, const LinearLayer<T>& s) {
    if (of.delayed_amax) return of.delayed_amax;
    if (of.amax) return of.amax;
    ops<T>(device).absmax(device, s.scratch.amax, x, n, of.activation, s.C);
    return s.scratch.amax;
}

template <class Device, class T>
void linear_quantize_input(Device& device, const T* inp, const LinearLayer<T>& s) {
    if (s.inp_is_quantized) return;
    if (s.is_mx()) return ops<T>(device).quantize_mx(device, s.mx_inp(), inp, nullptr, s.fp8_inp.activation);
    const float* const amax = amax_for_scale(device, inp, s.N * s.C, s.fp8_inp, s);
    ops<T>(device).quantize_e4m3(device, reinterpret_cast<e4m3*>(s.scratch.rows), s.fp8->inp_t,
                                 s.fp8->inp_inverse_scale, inp, amax, s.N, s.C, nullptr, s.fp8_inp.activation, nullptr,
                                 s.fp8_inp.notes);
}

// Keeps the input for the backward pass, as linear_forward does.
template <class Device, class T>
void linear_keep_input(Device& device, const T* inp, const LinearLayer<T>& s) {
    if (s.keeps_inp()) linear_quantize_input(device, inp, s);
}

template <class Device, class T>
void linear_forward(Device& device, T* out, const T* inp, const LinearLayer<T>& s) {
    if (!s.fp8) {
        ops<T>(device).matmul_forward(device, out, inp, s.weight, s.bias, s.N, s.C, s.OC);
        return lora_forward(device, out, inp, s.lora);
    }
    linear_quantize_input(device, inp, s);
    if (s.is_mx()) return ops<T>(device).matmul_mx_forward(device, out, s.mx_inp(), s.mx_weight(), s.bias);
    ops<T>(device).matmul_fp8_forward(device, out, s.quantized_inp(), s.quantized_weight(), s.bias);
    lora_forward(device, out, inp, s.lora);
}

// Adds to the gradient of the bias; s.write says whether that of the weight is overwritten or added to. FP8 reads inp
// only for an adapter, and `hidden` only with an activation.
template <class Device, class T>
void linear_backward(Device& device, T* dinp, const T* dout, const T* inp, const LinearLayer<T>& s,
                     const std::type_identity_t<T>* hidden = nullptr) {
    if (!s.fp8) {
        ops<T>(device).matmul_backward(device, dinp, s.dweight, s.dbias, dout, inp, s.weight, s.N, s.C, s.OC, s.write);
        return lora_backward(device, dinp, dout, inp, s.lora, s.write);
    }
    if (s.is_mx()) {
        ops<T>(device).quantize_mx(device, s.mx_dout(), dout, s.dbias, Activation::none);
        return ops<T>(device).matmul_mx_backward(device, dinp, s.dweight, s.mx_dout(), s.mx_inp(), s.mx_weight(),
                                                 s.write);
    }
    auto *rows = reinterpret_cast<e5m2*>(s.scratch.rows), *columns = reinterpret_cast<e5m2*>(s.scratch.columns);
    const Activation activation = s.fp8_dout.activation;
    ensure(activation == Activation::none || s.fp8_dout.delayed_amax);
    const float* const amax = amax_for_scale(device, dout, s.N * s.OC, s.fp8_dout, s);
    ops<T>(device).quantize_e5m2(device, rows, columns, s.scratch.inverse_scale, dout, amax, s.N, s.OC, s.dbias,
                                 activation, activation == Activation::none ? nullptr : hidden, s.fp8_dout.notes);
    if (!s.fp8->weight_t) ops<T>(device).transpose_codes(device, s.scratch.weight_t, s.fp8->weight, s.OC, s.C);
    ops<T>(device).matmul_fp8_backward(device, dinp, s.dweight, {rows, columns, s.scratch.inverse_scale, s.N, s.OC},
                                       s.quantized_inp(), s.quantized_weight(), s.write);
    lora_backward(device, dinp, dout, inp, s.lora, s.write);
}

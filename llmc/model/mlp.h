/*
The MLP of a block, with the architecture's activation:   out = down(act(up(inp)))

  inp, out (N, C)     hidden (N, up's rows): what goes into the activation, with SwiGLU (N, 2F): gates, then ups
  activated (N, F)
*/
#pragma once
#include <cstdint>
#include "llmc/model/architecture.h"  // MlpKind
#include "llmc/model/linear.h"        // LinearLayer
#include "llmc/ops/ops.h"             // Ops

// hidden -> activated
template <class Device, class T>
void mlp_activate(Device& device, T* activated, const T* hidden, int64_t N, int64_t F, MlpKind kind) {
    switch (kind) {
        case MlpKind::gelu:
            return ops<T>(device).gelu_forward(device, activated, hidden, N * F);
        case MlpKind::relu_squared:
            return ops<T>(device).relu_squared_forward(device, activated, hidden, N * F);
        case MlpKind::swiglu:
            return ops<T>(device).swiglu_forward(device, activated, hidden, N, F);
    }
}

// The activation that down applies while it quantizes `hidden` in FP8; `activated` is not written then. `none`: down is
// not in FP8 and reads `activated`.
template <class T>
Activation mlp_fused_activation(const LinearLayer<T>& up, const LinearLayer<T>& down, MlpKind kind) {
    if (!up.fp8 || !down.fp8) return Activation::none;
    return kind == MlpKind::gelu           ? Activation::gelu
           : kind == MlpKind::relu_squared ? Activation::relu_squared
                                           : Activation::swiglu;
}

// In FP8: quantizes down's input, from `hidden` or from `activated`.
template <class Device, class T>
void mlp_quantize_activated(Device& device, const T* activated, const T* hidden, const LinearLayer<T>& up,
                            const LinearLayer<T>& down, MlpKind kind) {
    const Activation fused = mlp_fused_activation(up, down, kind);
    linear_quantize_input(device, fused == Activation::none ? activated : hidden, down, fused);
}

// activated, or hidden -> out
template <class Device, class T>
void mlp_down(Device& device, T* out, const T* activated, const T* hidden, const LinearLayer<T>& up,
              const LinearLayer<T>& down, MlpKind kind) {
    const Activation fused = mlp_fused_activation(up, down, kind);
    linear_forward(device, out, fused == Activation::none ? activated : hidden, down, fused);
}

// inp -> hidden, and -> activated unless down computes that while quantizing
template <class Device, class T>
void mlp_up(Device& device, T* activated, T* hidden, const T* inp, const LinearLayer<T>& up, const LinearLayer<T>& down,
            MlpKind kind) {
    const int64_t F = kind == MlpKind::swiglu ? up.OC / 2 : up.OC;
    if (!up.fp8 && kind == MlpKind::gelu)
        return ops<T>(device).matmul_gelu_forward(device, activated, hidden, inp, up.weight, up.bias, up.N, up.C, F);
    if (!up.fp8 && kind == MlpKind::relu_squared)
        return ops<T>(device).matmul_relu_squared_forward(device, activated, hidden, inp, up.weight, up.bias, up.N,
                                                          up.C, F);
    linear_forward(device, hidden, inp, up);
    if (mlp_fused_activation(up, down, kind) == Activation::none)
        mlp_activate(device, activated, hidden, up.N, F, kind);
}

// With delayed scaling, the activation whose gradient up's backward pass computes while it quantizes. For SwiGLU that
// pass does not compute column sums, so up must have no bias.
template <class T>
Activation mlp_fused_gradient(const LinearLayer<T>& up, const LinearLayer<T>& down, MlpKind kind) {
    if (kind == MlpKind::swiglu && up.dbias) return Activation::none;
    return up.dout_delayed.notes.amax && up.dout_delayed.amax ? mlp_fused_activation(up, down, kind) : Activation::none;
}

// If both layers are in FP8, whether down's backward pass stores the largest magnitude of its result for up's.
inline bool mlp_gives_amax(MlpKind kind) { return kind == MlpKind::gelu || kind == MlpKind::swiglu; }

// From dout, the gradient of down's output, computes and returns that of `hidden`: in `scratch` (N, F), or with SwiGLU
// in place of `hidden`. If up's backward pass computes the activation's gradient, returns that of `activated`. The
// gradients of down's weight and bias are as in linear_backward.
template <class Device, class T>
T* mlp_down_backward(Device& device, T* scratch, const T* dout, const T* activated, T* hidden, const LinearLayer<T>& up,
                     const LinearLayer<T>& down, MlpKind kind) {
    const int64_t N = down.N, F = down.C, OC = down.OC;
    if (!down.fp8 && kind == MlpKind::gelu) {
        ops<T>(device).matmul_gelu_backward(device, scratch, down.dweight, down.dbias, dout, activated, hidden,
                                            down.weight, N, F, OC, down.write);
        return scratch;
    }
    if (!down.fp8 && kind == MlpKind::relu_squared) {
        ops<T>(device).matmul_relu_squared_backward(device, scratch, down.dweight, down.dbias, dout, activated, hidden,
                                                    down.weight, N, F, OC, down.write);
        return scratch;
    }
    linear_backward(device, scratch, dout, activated, down);
    if (mlp_fused_gradient(up, down, kind) != Activation::none) return scratch;
    switch (kind) {
        case MlpKind::gelu:
            ops<T>(device).gelu_backward(device, scratch, scratch, hidden, N * F,
                                         up.dout_has_amax ? up.scratch.dout_amax : nullptr);
            return scratch;
        case MlpKind::relu_squared:
            ops<T>(device).relu_squared_backward(device, scratch, scratch, hidden, N * F);
            return scratch;
        case MlpKind::swiglu:
            ops<T>(device).swiglu_backward(device, hidden, scratch, hidden, N, F,
                                           up.dout_has_amax ? up.scratch.dout_amax : nullptr);
            return hidden;
    }
    return nullptr;
}

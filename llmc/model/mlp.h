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

// hidden -> activated, unless down computes that while it quantizes
template <class Device, class T>
void mlp_activate(Device& device, T* activated, const T* hidden, const LinearLayer<T>& down, MlpKind kind) {
    if (down.fp8_inp.activation != Activation::none) return;
    switch (kind) {
        case MlpKind::gelu:
            return ops<T>(device).gelu_forward(device, activated, hidden, down.N * down.C);
        case MlpKind::relu_squared:
            return ops<T>(device).relu_squared_forward(device, activated, hidden, down.N * down.C);
        case MlpKind::swiglu:
            return ops<T>(device).swiglu_forward(device, activated, hidden, down.N, down.C);
    }
}

// inp -> hidden -> activated
template <class Device, class T>
void mlp_up(Device& device, T* activated, T* hidden, const T* inp, const LinearLayer<T>& up, const LinearLayer<T>& down,
            MlpKind kind) {
    if (!up.fp8 && !up.lora.a && kind == MlpKind::gelu)
        return ops<T>(device).matmul_gelu_forward(device, activated, hidden, inp, up.weight, up.bias, up.N, up.C,
                                                  up.OC);
    linear_forward(device, hidden, inp, up);
    mlp_activate(device, activated, hidden, down, kind);
}

// activated -> out
template <class Device, class T>
void mlp_down(Device& device, T* out, const T* activated, const T* hidden, const LinearLayer<T>& down) {
    linear_forward(device, out, down.fp8_inp.activation == Activation::none ? activated : hidden, down);
}
// Keeps down's input for the backward pass, as mlp_down does.
template <class Device, class T>
void mlp_keep_activated(Device& device, const T* activated, const T* hidden, const LinearLayer<T>& down) {
    linear_keep_input(device, down.fp8_inp.activation == Activation::none ? activated : hidden, down);
}

// From dout, the gradient of down's output, computes dinp, and the gradients of both layers as in linear_backward.
// d_activated (N, F) is scratch. With SwiGLU overwrites `hidden`.
template <class Device, class T>
void mlp_backward(Device& device, T* dinp, T* d_activated, const T* dout, const T* inp, const T* activated, T* hidden,
                  const LinearLayer<T>& up, const LinearLayer<T>& down, MlpKind kind) {
    const int64_t N = down.N, F = down.C, OC = down.OC;
    const bool is_apart = up.fp8_dout.activation == Activation::none;
    T* const d_hidden = kind == MlpKind::swiglu && is_apart ? hidden : d_activated;
    if (!down.fp8 && !down.lora.a && kind == MlpKind::gelu) {
        ops<T>(device).matmul_gelu_backward(device, d_hidden, down.dweight, down.dbias, dout, activated, hidden,
                                            down.weight, N, F, OC, down.write);
    } else {
        linear_backward(device, d_activated, dout, activated, down);
        if (is_apart && kind == MlpKind::gelu)
            ops<T>(device).gelu_backward(device, up.dout(d_hidden), d_activated, hidden, N * F);
        if (is_apart && kind == MlpKind::relu_squared)
            ops<T>(device).relu_squared_backward(device, d_hidden, d_activated, hidden, N * F);
        if (is_apart && kind == MlpKind::swiglu)
            ops<T>(device).swiglu_backward(device, up.dout(d_hidden), d_activated, hidden, N, F);
    }
    linear_backward(device, dinp, d_hidden, inp, up, hidden);
}

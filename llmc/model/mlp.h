/*
The MLP of a block, whichever activation the architecture has:   out = down(act(up(inp)))

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

// In FP8, down quantizes the activation of `hidden` without storing it, and `activated` stays as it was. `none`: it
// reads `activated`, because it is not in FP8.
template <class T>
Activation mlp_fused_activation(const LinearLayer<T>& up, const LinearLayer<T>& down, MlpKind kind) {
    if (!up.fp8 || !down.fp8) return Activation::none;
    return kind == MlpKind::gelu           ? Activation::gelu
           : kind == MlpKind::relu_squared ? Activation::relu_squared
                                           : Activation::swiglu;
}

// What down's input is quantized from, and made of it, in FP8.
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

// inp -> hidden, and unless down's quantization does it, activated
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

// The activation whose gradient up's backward pass computes while it quantizes: with delayed scaling. SwiGLU's is not
// summed over columns on the way, so up has no bias then.
template <class T>
Activation mlp_fused_gradient(const LinearLayer<T>& up, const LinearLayer<T>& down, MlpKind kind) {
    if (kind == MlpKind::swiglu && up.dbias) return Activation::none;
    return up.dout_delayed.notes.amax && up.dout_delayed.amax ? mlp_fused_activation(up, down, kind) : Activation::none;
}

// Where both layers are in FP8, whether down's backward pass leaves the largest magnitude of what it returns for up's.
inline bool mlp_gives_amax(MlpKind kind) { return kind == MlpKind::gelu || kind == MlpKind::swiglu; }

// dout, the gradient of down's output -> that of `hidden`, which is returned: in `scratch` (N, F), or with SwiGLU in
// place of `hidden`. Where up's backward pass has the activation's gradient to do, that of `activated`. The gradients
// of down's weight and bias are as in linear_backward.
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

/*
GELU in its tanh form, GPT-2's (Hendrycks and Gimpel, 2016, arXiv:1606.08415):

  out = x/2 * (1 + tanh(u)),  u = sqrt(2/pi) * (x + 0.044715 x^3)       = x * sigmoid(2u), which is how it is computed:
one exponential, and no cancellation where tanh(u) is near -1.
Element by element over n; `backward` overwrites dinp, which may be dout itself.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks
#include "llmc/cpu/simd.h"

inline constexpr float kGeluMinus2Scale = -1.5957691216f;  // -2 sqrt(2/pi)
inline constexpr float kGeluCube = 0.044715f;
inline constexpr int64_t kGeluChunk = 4096;  // elements: large enough to hide the loop, small enough to stay in L1

// sigmoid(2u)
ANVIL_INLINE F32x16 gelu_sigmoid(F32x16 x) {
    const F32x16 minus_2u = x * fma(x * x, broadcast(kGeluCube), broadcast(1)) * kGeluMinus2Scale;
    return broadcast(1) / (exp(minus_2u) + 1);
}

inline void gelu_forward(Cpu& cpu, float* out, const float* inp, int64_t n) {
    parallel_chunks(cpu, n, kGeluChunk, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin, [=](int64_t i, auto width) {
            const F32x16 x = load(inp + begin + i, width);
            store(out + begin + i, x * gelu_sigmoid(x), width);
        });
    });
}

// d out / dx = s + x s (1 - s) d(2u)/dx  with  s = sigmoid(2u),  d(2u)/dx = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
inline void gelu_backward(Cpu& cpu, float* dinp, const float* dout, const float* inp, int64_t n) {
    parallel_chunks(cpu, n, kGeluChunk, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin, [=](int64_t i, auto width) {
            const F32x16 x = load(inp + begin + i, width), s = gelu_sigmoid(x);
            const F32x16 slope = fma(x * x, broadcast(3 * kGeluCube), broadcast(1)) * -kGeluMinus2Scale;
            const F32x16 derivative = fma(x * (s * (broadcast(1) - s)), slope, s);
            store(dinp + begin + i, load(dout + begin + i, width) * derivative, width);
        });
    });
}

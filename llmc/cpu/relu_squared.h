/*
ReLU squared, the activation of nanochat and modded-nanogpt (So et al., 2021, arXiv:2109.08668):

  out = max(inp, 0)^2          dinp = 2 max(inp, 0) dout
Element by element over n values of T; `backward` overwrites dinp, which may be dout itself. One rounding each: the
doubling is exact.
*/
#pragma once
#include <cstdint>
#include "llmc/base/op_cost.h"  // relu_squared_backward_cost, relu_squared_forward_cost
#include "llmc/cpu/device.h"    // Cpu, parallel_chunks
#include "llmc/cpu/simd.h"

inline namespace ANVIL_CPU_LEVEL {

inline constexpr int64_t kReluSquaredChunk = 4096;  // elements: large enough to hide the loop, few enough for L1

template <class T>
void relu_squared_forward(Cpu& cpu, T* out, const T* inp, int64_t n) {
    const OpScope op(cpu, __func__, relu_squared_forward_cost<T>(n));
    parallel_chunks(cpu, n, kReluSquaredChunk, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin, [=](int64_t i, auto width) {
            const F32x16 x = max(load(inp + begin + i, width), zeros());
            store(out + begin + i, x * x, width);
        });
    });
}

template <class T>
void relu_squared_backward(Cpu& cpu, T* dinp, const T* dout, const T* inp, int64_t n) {
    const OpScope op(cpu, __func__, relu_squared_backward_cost<T>(n));
    parallel_chunks(cpu, n, kReluSquaredChunk, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin, [=](int64_t i, auto width) {
            const F32x16 x = max(load(inp + begin + i, width), zeros());
            store(dinp + begin + i, load(dout + begin + i, width) * (x * 2), width);
        });
    });
}

}  // namespace ANVIL_CPU_LEVEL

/*
Squared ReLU on the CPU: llmc/ops/relu_squared.h.
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks
#include "llmc/cpu/simd.h"
#include "llmc/ops/op_cost.h"  // kReluSquaredBackward, kReluSquaredForward

inline constexpr int64_t kReluSquaredChunk =
    4096;  // elements: many enough to hide the loop overhead, few enough for L1

// Runs on the calling thread alone.
template <class T>
void relu_squared_values(T* out, const T* inp, int64_t n) {
    for_lanes(n, [=](int64_t i, auto width) {
        const F32x16 x = max(load_ahead(inp + i, width), zeros());
        prefetch_ahead(out + i, width);
        store(out + i, x * x, width);
    });
}

template <class T>
void relu_squared_forward(Cpu& cpu, T* out, const T* inp, int64_t n) {
    const OpScope op(cpu, __func__, elements_cost<T>(kReluSquaredForward, n));
    parallel_chunks(cpu, n, kReluSquaredChunk,
                    [=](int64_t begin, int64_t end) { relu_squared_values(out + begin, inp + begin, end - begin); });
}

template <class T>
void relu_squared_backward(Cpu& cpu, T* dinp, const T* dout, const T* inp, int64_t n) {
    const OpScope op(cpu, __func__, elements_cost<T>(kReluSquaredBackward, n));
    parallel_chunks(cpu, n, kReluSquaredChunk, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin, [=](int64_t i, auto width) {
            const F32x16 x = max(load(inp + begin + i, width), zeros());
            store(dinp + begin + i, load(dout + begin + i, width) * (x * 2), width);
        });
    });
}

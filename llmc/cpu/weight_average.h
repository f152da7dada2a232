/*
A running average of weights on the CPU: llmc/ops/weight_average.h.
*/
#pragma once
#include <cstdint>
#include <span>
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks
#include "llmc/cpu/simd.h"
#include "llmc/ops/op_cost.h"         // elements_cost, num_elements
#include "llmc/ops/weight_average.h"  // WeightAverage

inline void average_weights(Cpu& cpu, const WeightAverage* tensors, int64_t count, double rate) {
    const OpScope op(cpu, __func__, elements_cost<float>(3, 3, num_elements(tensors, count)));
    for (const WeightAverage& t : std::span(tensors, size_t(count)))
        parallel_chunks(cpu, t.n, 16384, [=, of = broadcast(float(rate))](int64_t begin, int64_t end) {
            for_lanes(end - begin, [=](int64_t offset, auto width) {
                const int64_t i = begin + offset;
                const F32x16 old = load(t.average + i, width);
                store(t.average + i, fma(of, load(t.weight + i, width) - old, old), width);
            });
        });
}

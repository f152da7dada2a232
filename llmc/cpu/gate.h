/*
A learned gate, computed from the first G channels of a row:   sigmoid(weight . inp[0:G])

  const GateOpening gate = gate_of(inp + n * C, weight, G);
*/
#pragma once
#include <cmath>
#include <cstdint>
#include "llmc/cpu/simd.h"
#include "llmc/ops/smear.h"  // GateOpening

// e^-|x| cannot overflow, and keeps the slope accurate where the sigmoid is near one.
template <class T>
GateOpening gate_of(const T* inp, const T* weight, int64_t G) {
    F32x16 sum = zeros();
    for_lanes(G, [&](int64_t g, auto width) { sum = fma(load(inp + g, width), load(weight + g, width), sum); });
    const float x = sum_lanes(sum);
    float lanes[kLanes];
    store(lanes, exp(broadcast(-std::fabs(x))));
    const float e = lanes[0], s = 1 / (1 + e);
    return {x < 0 ? e * s : s, e * s * s};
}

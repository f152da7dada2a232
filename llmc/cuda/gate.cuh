/*
A learned gate, computed from the first G channels of a row:   sigmoid(weight . inp[0:G])

  const GateOpening gate = gate_of(lane < G ? to_float(inp[n * C + lane]) : 0, lane < G ? to_float(weight[lane]) : 0);

A warp computes one gate, with one channel per lane: G <= kWarp.
*/
#pragma once
#include "llmc/base/check.h"     // require
#include "llmc/cuda/device.cuh"  // warp_sum
#include "llmc/ops/smear.h"      // GateOpening

// e^-|x| cannot overflow, and keeps the slope accurate where the sigmoid is near one.
DEVICE GateOpening gate_of(float inp, float weight) {
    const float x = warp_sum(inp * weight), e = expf(-fabsf(x)), s = 1 / (1 + e);
    return {x < 0 ? e * s : s, e * s * s};
}

// This lane's channel of the first G in a row; 0 in lanes beyond them.
template <class T>
DEVICE float gate_channel(const T* row, int G) {
    const int lane = threadIdx.x % kWarp;
    return lane < G ? to_float(row[lane]) : 0;
}

inline void check_gate(const char* op, int64_t G, int64_t C) {
    require(G >= 1 && G <= kWarp && G <= C, "%s: a gate of %ld channels: expected at most %d and at most the row's %ld",
            op, G, kWarp, C);
}

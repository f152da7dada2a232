/*
Linear layers on the CPU: llmc/ops/matmul.h.

A separate pass for the activation is faster here than fusing it (dev/log/cpu.md).
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"   // Cpu
#include "llmc/cpu/gelu.h"     // gelu_forward, gelu_backward
#include "llmc/cpu/gemm.h"     // gemm, Strided
#include "llmc/cpu/reduce.h"   // add_column_sums
#include "llmc/ops/matmul.h"   // Write
#include "llmc/ops/op_cost.h"  // matmul_backward_cost, matmul_forward_cost

template <class T>
void matmul_forward(Cpu& cpu, T* out, const T* inp, const T* weight, const T* bias, int64_t N, int64_t C, int64_t OC) {
    const OpScope op(cpu, __func__, matmul_forward_cost<T>(N, C, OC));
    gemm(cpu, out, OC, N, OC, C, Strided{inp, C, 1}, Strided{weight, 1, C}, bias, Write::set);
}

template <class T>
void matmul_backward(Cpu& cpu, T* dinp, float* dweight, float* dbias, const T* dout, const T* inp, const T* weight,
                     int64_t N, int64_t C, int64_t OC, Write write = Write::add) {
    const OpScope op(cpu, __func__, matmul_backward_cost<T>(N, C, OC, write));
    if (dinp) gemm(cpu, dinp, C, N, C, OC, Strided{dout, OC, 1}, Strided{weight, C, 1}, nullptr, Write::set);
    gemm(cpu, dweight, C, OC, C, N, Strided{dout, 1, OC}, Strided{inp, C, 1}, nullptr, write);
    if (dbias) add_column_sums(cpu, dbias, dout, N, OC);
}

// hidden = inp weight^T + bias,   out = gelu(hidden)
template <class T>
void matmul_gelu_forward(Cpu& cpu, T* out, T* hidden, const T* inp, const T* weight, const T* bias, int64_t N,
                         int64_t C, int64_t OC) {
    const OpScope op(cpu, __func__, matmul_forward_cost<T>(N, C, OC, 2));
    matmul_forward(cpu, hidden, inp, weight, bias, N, C, OC);
    gelu_forward(cpu, out, hidden, N * OC);
}

// With inp = gelu(hidden):   dhidden (N, C) = (dout weight) * gelu'(hidden),   overwritten
template <class T>
void matmul_gelu_backward(Cpu& cpu, T* dhidden, float* dweight, float* dbias, const T* dout, const T* inp,
                          const T* hidden, const T* weight, int64_t N, int64_t C, int64_t OC,
                          Write write = Write::add) {
    const OpScope op(cpu, __func__, matmul_backward_cost<T>(N, C, OC, write, 3));
    matmul_backward(cpu, dhidden, dweight, dbias, dout, inp, weight, N, C, OC, write);
    gelu_backward(cpu, dhidden, dhidden, hidden, N * C);
}

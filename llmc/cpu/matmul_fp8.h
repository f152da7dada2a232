/*
Linear layers in FP8 on the CPU: llmc/ops/matmul_fp8.h.

Operands are converted to float and multiplied by gemm(): a reference for the arithmetic of a GPU, not a fast path.
*/
#pragma once
#include <cstdint>
#include "llmc/base/fp8.h"    // Quantized, check_fp8_layer
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks
#include "llmc/cpu/gemm.h"    // gemm, Strided
#include "llmc/cpu/simd.h"

// out (m, n) = or += a (m, k) b (n, k)^T * scale + bias (n), which may be null
template <class T, class A, class B>
void multiply_fp8(Cpu& cpu, T* out, const A* a, const B* b, std::type_identity_t<const T*> bias, int64_t m, int64_t n,
                  int64_t k, float scale, Write write) {
    float* wide_a = cpu.outer_scratch(m * k + n * k + m * n);
    float *wide_b = wide_a + m * k, *product = wide_b + n * k;
    constexpr int64_t kChunk = 16384;
    parallel_chunks(cpu, m * k, kChunk, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) wide_a[i] = to_float(a[i]);
    });
    parallel_chunks(cpu, n * k, kChunk, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) wide_b[i] = to_float(b[i]);
    });
    gemm(cpu, product, n, m, n, k, Strided<float>{wide_a, k, 1}, Strided<float>{wide_b, 1, k}, nullptr, Write::set);
    parallel_for(cpu, m, [=](int64_t row) {
        for_lanes(n, [=](int64_t col, auto width) {
            const int64_t i = row * n + col;
            const F32x16 start = write == Write::add ? load(out + i, width) : zeros();
            store(out + i, start + load(product + i, width) * scale + (bias ? load(bias + col, width) : zeros()),
                  width);
        });
    });
}

template <class T>
void matmul_fp8_forward(Cpu& cpu, T* out, const Quantized<e4m3>& inp, const Quantized<e4m3>& weight, const T* bias) {
    const OpScope op(cpu, __func__);
    const int64_t N = inp.rows, C = inp.cols, OC = weight.rows;
    check_fp8_layer("matmul_fp8_forward", N, C, OC);
    ensure(weight.cols == C);
    multiply_fp8(cpu, out, inp.data, weight.data, bias, N, OC, C, *inp.inverse_scale * *weight.inverse_scale,
                 Write::set);
}

template <class T>
void matmul_fp8_backward(Cpu& cpu, T* dinp, float* dweight, const Quantized<e5m2>& dout, const Quantized<e4m3>& inp,
                         const Quantized<e4m3>& weight, Write write = Write::add) {
    const OpScope op(cpu, __func__);
    const int64_t N = inp.rows, C = inp.cols, OC = weight.rows;
    check_fp8_layer("matmul_fp8_backward", N, C, OC);
    ensure(weight.cols == C && dout.rows == N && dout.cols == OC);
    if (dinp)
        multiply_fp8(cpu, dinp, dout.data, weight.transposed, nullptr, N, C, OC,
                     *dout.inverse_scale * *weight.inverse_scale, Write::set);
    multiply_fp8(cpu, dweight, dout.transposed, inp.transposed, nullptr, OC, C, N,
                 *dout.inverse_scale * *inp.inverse_scale, write);
}

/*
Linear layers in FP8 on the CPU: llmc/ops/matmul_fp8.h.

Operands are converted to float and multiplied by gemm(): a reference for the arithmetic of a GPU, not a fast path.
*/
#pragma once
#include <cstdint>
#include "llmc/base/fp8.h"    // Quantized, MxTensor, check_fp8_layer, mx_scale_at
#include "llmc/cpu/device.h"  // Cpu, parallel_for
#include "llmc/cpu/gemm.h"    // gemm, Strided
#include "llmc/cpu/simd.h"

// out (m, n) = or += a (m, k) b (n, k)^T * scale + bias (n), which may be null. In MX a and b have block scales, too.
template <class T, class A, class B>
void multiply_fp8(Cpu& cpu, T* out, const A* a, const B* b, std::type_identity_t<const T*> bias, int64_t m, int64_t n,
                  int64_t k, float scale, Write write, const e8m0* a_scales = nullptr, const e8m0* b_scales = nullptr) {
    float* wide_a = cpu.outer_scratch(m * k + n * k + m * n);
    float *wide_b = wide_a + m * k, *product = wide_b + n * k;
    const auto widen = [&](float* wide, const auto* codes, const e8m0* scales, int64_t rows) {
        parallel_for(cpu, rows, [=](int64_t row) {
            float* const to = wide + row * k;
            for (int64_t col = 0; col < k; col++) to[col] = to_float(codes[row * k + col]);
            for (int64_t col = 0; scales && col < k; col += kMxBlock)
                for (int64_t i = 0; i < kMxBlock; i++) to[col + i] *= to_float(scales[mx_scale_at(row, col, k)]);
        });
    };
    widen(wide_a, a, a_scales, m), widen(wide_b, b, b_scales, n);
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
    if (dweight)
        multiply_fp8(cpu, dweight, dout.transposed, inp.transposed, nullptr, OC, C, N,
                     *dout.inverse_scale * *inp.inverse_scale, write);
}

template <class T>
void matmul_mx_forward(Cpu& cpu, T* out, const MxTensor& inp, const MxTensor& weight, const T* bias) {
    const OpScope op(cpu, __func__);
    const int64_t N = inp.rows, C = inp.cols, OC = weight.rows;
    check_mx_layer("matmul_mx_forward", inp, weight);
    multiply_fp8(cpu, out, inp.data, weight.data, bias, N, OC, C, 1, Write::set, inp.scales, weight.scales);
}

template <class T>
void matmul_mx_backward(Cpu& cpu, T* dinp, float* dweight, const MxTensor& dout, const MxTensor& inp,
                        const MxTensor& weight, Write write = Write::add) {
    const OpScope op(cpu, __func__);
    const int64_t N = inp.rows, C = inp.cols, OC = weight.rows;
    check_mx_layer("matmul_mx_backward", inp, weight);
    ensure(dout.rows == N && dout.cols == OC);
    if (dinp)
        multiply_fp8(cpu, dinp, dout.data, weight.transposed, nullptr, N, C, OC, 1, Write::set, dout.scales,
                     weight.transposed_scales);
    multiply_fp8(cpu, dweight, dout.transposed, inp.transposed, nullptr, OC, C, N, 1, write, dout.transposed_scales,
                 inp.transposed_scales);
}

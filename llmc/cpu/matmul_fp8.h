/*
A linear layer in eight bits:   out = inp weight^T + bias   (scales and types: llmc/base/fp8.h, quantise.h)

  inp (N, C) and weight (OC, C) in e4m3     bias (OC) T, may be null     out (N, OC) T
Backward, with dout (N, OC) in e5m2:  dinp = dout weight (overwritten; may be null),  dweight = or += dout^T inp, as
`write` says. The bias's gradient is that of any linear layer, from dout before it is rounded.

Every product runs along rows of both operands, which is all that a GPU before Blackwell can do: forward takes `data`,
backward dout.data, weight.transposed, dout.transposed and inp.transposed. N, C and OC are multiples of 16. Here the
numbers are widened to float and multiplied like others: the arithmetic of a GPU, not its speed.
*/
#pragma once
#include <cstdint>
#include "llmc/base/fp8.h"    // Quantised, check_fp8_layer
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks
#include "llmc/cpu/gemm.h"    // gemm, Strided
#include "llmc/cpu/simd.h"

inline namespace ANVIL_CPU_LEVEL {

// out (m, n) = or += a (m, k) b (n, k)^T * scale + bias (n), which may be null
template <class T, class A, class B>
void multiply_fp8(Cpu& cpu, T* out, const A* a, const B* b, std::type_identity_t<const T*> bias, int64_t m, int64_t n,
                  int64_t k, float scale, Write write) {
    float* wide_a = cpu.outer(m * k + n * k + m * n);
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
void matmul_fp8_forward(Cpu& cpu, T* out, const Quantised<e4m3>& inp, const Quantised<e4m3>& weight, const T* bias) {
    const OpScope op(cpu, __func__);
    const int64_t N = inp.rows, C = inp.cols, OC = weight.rows;
    check_fp8_layer("matmul_fp8_forward", N, C, OC);
    ensure(weight.cols == C);
    multiply_fp8(cpu, out, inp.data, weight.data, bias, N, OC, C, *inp.inverse_scale * *weight.inverse_scale,
                 Write::set);
}

template <class T>
void matmul_fp8_backward(Cpu& cpu, T* dinp, float* dweight, const Quantised<e5m2>& dout, const Quantised<e4m3>& inp,
                         const Quantised<e4m3>& weight, Write write = Write::add) {
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

}  // namespace ANVIL_CPU_LEVEL

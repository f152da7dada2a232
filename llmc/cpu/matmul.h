/*
Linear layers on the CPU: llmc/ops/matmul.h.

A separate pass for the activation is faster here than fusing it (dev/log/cpu.md).
*/
#pragma once
#include <cstdint>
#include "llmc/cpu/device.h"  // Cpu
#include "llmc/cpu/gelu.h"    // gelu_forward, gelu_backward
#include "llmc/cpu/gemm.h"    // gemm, Strided
#include "llmc/cpu/reduce.h"  // add_column_sums
#include "llmc/cpu/simd.h"
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
    const OpScope op(cpu, __func__, matmul_backward_cost<T>(N, C, OC, write, 2, dweight));
    if (dinp) gemm(cpu, dinp, C, N, C, OC, Strided{dout, OC, 1}, Strided{weight, C, 1}, nullptr, Write::set);
    if (dweight) gemm(cpu, dweight, C, OC, C, N, Strided{dout, 1, OC}, Strided{inp, C, 1}, nullptr, write);
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
    const OpScope op(cpu, __func__, matmul_backward_cost<T>(N, C, OC, write, 3, dweight));
    matmul_backward(cpu, dhidden, dweight, dbias, dout, inp, weight, N, C, OC, write);
    gelu_backward(cpu, dhidden, dhidden, hidden, N * C);
}

// c (M, N) += a (M, K) b (K, N). A bf16 c is rounded once more, from the complete sums and what it was.
template <class T>
void gemm_onto(Cpu& cpu, T* c, int64_t c_row, int64_t M, int64_t N, int64_t K, Strided<T> a, Strided<T> b) {
    if constexpr (std::is_same_v<T, float>) {
        gemm(cpu, c, c_row, M, N, K, a, b, nullptr, Write::add);
    } else {
        constexpr int64_t kRows = 1024;  // at a time, which bounds the scratch memory
        float* const sums = cpu.outer_scratch(std::min(M, kRows) * N);
        for (int64_t i = 0; i < M; i += kRows) {
            const int64_t rows = std::min(kRows, M - i);
            gemm(cpu, sums, N, rows, N, K, a.at(i, 0), b, nullptr, Write::set);
            parallel_for(cpu, rows, [=](int64_t r) {
                T* const row = c + (i + r) * c_row;
                for_lanes(N, [=](int64_t j, auto width) {
                    store(row + j, load(row + j, width) + load(sums + r * N + j, width), width);
                });
            });
        }
    }
}

template <class T>
void scale_by(Cpu& cpu, T* x, float scale, int64_t n) {
    if (scale == 1) return;
    parallel_chunks(cpu, n, 1 << 13, [=](int64_t begin, int64_t end) {
        for_lanes(end - begin,
                  [=](int64_t i, auto width) { store(x + begin + i, load(x + begin + i, width) * scale, width); });
    });
}

template <class T>
void low_rank_input(Cpu& cpu, T* low, const T* inp, const T* a, const LowRankShape& s) {
    const int64_t W = s.width();
    gemm(cpu, low, W, s.N, W, s.C, Strided{inp, s.C, 1}, Strided{a, 1, s.C}, nullptr, Write::set);
    scale_by(cpu, low, s.scale, s.N * W);
}

template <class T>
void low_rank_forward(Cpu& cpu, T* out, T* low, const T* inp, const T* a, const T* b, const LowRankShape& s) {
    const OpScope op(cpu, __func__, low_rank_forward_cost<T>(s));
    const int64_t r = s.rank, W = s.width(), OC = s.OC();
    low_rank_input(cpu, low, inp, a, s);
    for (int64_t i = 0, at = 0; i < s.parts; at += s.rows[i++])
        gemm_onto(cpu, out + at, OC, s.N, s.rows[i], r, Strided<T>{low + i * r, W, 1}, Strided<T>{b + at * r, 1, r});
}

template <class T>
void low_rank_backward(Cpu& cpu, T* dinp, float* da, float* db, T* low, T* dlow, const T* dout, const T* inp,
                       const T* a, const T* b, const LowRankShape& s, Write write, Write dinp_write) {
    const OpScope op(cpu, __func__, low_rank_backward_cost<T>(s));
    const int64_t r = s.rank, W = s.width(), OC = s.OC();
    low_rank_input(cpu, low, inp, a, s);
    for (int64_t i = 0, at = 0; i < s.parts; at += s.rows[i++]) {
        gemm(cpu, db + at * r, r, s.rows[i], r, s.N, Strided<T>{dout + at, 1, OC}, Strided<T>{low + i * r, W, 1},
             nullptr, write);
        gemm(cpu, dlow + i * r, W, s.N, r, s.rows[i], Strided<T>{dout + at, OC, 1}, Strided<T>{b + at * r, r, 1},
             nullptr, Write::set);
    }
    scale_by(cpu, dlow, s.scale, s.N * W);
    const Strided<T> dlow_rows{dlow, W, 1}, a_rows{a, s.C, 1};
    gemm(cpu, da, s.C, W, s.C, s.N, Strided<T>{dlow, 1, W}, Strided<T>{inp, s.C, 1}, nullptr, write);
    if (dinp_write == Write::set)
        gemm(cpu, dinp, s.C, s.N, s.C, W, dlow_rows, a_rows, nullptr, Write::set);
    else
        gemm_onto(cpu, dinp, s.C, s.N, s.C, W, dlow_rows, a_rows);
}

/*
Newton-Schulz iterations on the CPU: llmc/ops/newton_schulz.h.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include "llmc/base/bf16.h"   // bf16
#include "llmc/cpu/device.h"  // Cpu, parallel_chunks
#include "llmc/cpu/gemm.h"    // gemm
#include "llmc/cpu/simd.h"
#include "llmc/cpu/symmetric_matmul.h"  // symmetric_matmul
#include "llmc/ops/matmul.h"            // Write
#include "llmc/ops/newton_schulz.h"     // Gram, NewtonSchulzOptions
#include "llmc/ops/op_cost.h"           // newton_schulz_cost

// Bytes for A, b A + c A^2 and the next X of one matrix; the next X is float even for a bf16 X. Matrices are processed
// one at a time: each keeps all threads busy.
template <class T>
size_t newton_schulz_workspace(Cpu&, int64_t, int64_t R, int64_t K) {
    const int64_t n = std::min(R, K);
    return size_t(2 * n * n) * sizeof(T) + size_t(R * K) * sizeof(float);
}

inline void newton_schulz(Cpu& cpu, float* X, int64_t batch, int64_t R, int64_t K, const NewtonSchulzOptions& options) {
    const OpScope op(cpu, __func__, newton_schulz_cost<float>(batch, R, K, options.iterations));
    const int64_t n = std::min(R, K), size = R * K;
    float* A = cpu.outer_scratch(int64_t(newton_schulz_workspace<float>(cpu, batch, R, K) / sizeof(float)));
    float* B = A + n * n;
    for (int64_t i = 0; i < batch; i++, X += size) {
        float *from = X, *to = B + n * n;
        for (int iteration = 0; iteration < options.iterations; iteration++) {
            const auto& [a, b, c] = options.of_iteration(iteration);
            symmetric_matmul(cpu, A, from, nullptr, 1, R, K, R <= K ? Gram::rows : Gram::columns, 1, 0);
            symmetric_matmul(cpu, B, A, A, 1, n, n, Gram::rows, float(c), float(b));
            parallel_chunks(cpu, size, 1 << 14, [=, scale = float(a)](int64_t begin, int64_t end) {
                for_lanes(end - begin, [=](int64_t j, auto width) {
                    store(to + begin + j, load(from + begin + j, width) * scale, width);
                });
            });
            if (R <= K)
                gemm(cpu, to, K, R, K, R, Strided<float>{B, R, 1}, Strided<float>{from, K, 1}, nullptr, Write::add);
            else
                gemm(cpu, to, K, R, K, K, Strided<float>{from, K, 1}, Strided<float>{B, K, 1}, nullptr, Write::add);
            std::swap(from, to);
        }
        if (from != X) std::memcpy(X, from, size_t(size) * sizeof(float));
    }
}

inline void newton_schulz(Cpu& cpu, bf16* X, int64_t batch, int64_t R, int64_t K, const NewtonSchulzOptions& options) {
    const OpScope op(cpu, __func__, newton_schulz_cost<bf16>(batch, R, K, options.iterations));
    const int64_t n = std::min(R, K), size = R * K;
    float* sums = cpu.outer_scratch(int64_t(newton_schulz_workspace<bf16>(cpu, batch, R, K) / sizeof(float)));
    bf16 *A = reinterpret_cast<bf16*>(sums + size), *B = A + n * n;
    // to[j] = from[j] * scale, rounded to the type of `to`
    const auto convert = [&cpu](auto* to, const auto* from, int64_t elements, float scale = 1) {
        parallel_chunks(cpu, elements, 1 << 14, [=](int64_t begin, int64_t end) {
            for_lanes(end - begin, [=](int64_t j, auto width) {
                store(to + begin + j, load(from + begin + j, width) * scale, width);
            });
        });
    };
    for (int64_t i = 0; i < batch; i++, X += size)
        for (int iteration = 0; iteration < options.iterations; iteration++) {
            const auto& [a, b, c] = options.of_iteration(iteration);
            symmetric_matmul(cpu, A, X, nullptr, 1, R, K, R <= K ? Gram::rows : Gram::columns, 1, 0);
            symmetric_matmul(cpu, sums, A, A, 1, n, n, Gram::rows, float(c), float(b));
            convert(B, sums, n * n);
            convert(sums, X, size, float(a));
            if (R <= K)
                gemm(cpu, sums, K, R, K, R, Strided<bf16>{B, R, 1}, Strided<bf16>{X, K, 1}, nullptr, Write::add);
            else
                gemm(cpu, sums, K, R, K, K, Strided<bf16>{X, K, 1}, Strided<bf16>{B, K, 1}, nullptr, Write::add);
            convert(X, sums, size);
        }
}

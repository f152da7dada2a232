/*
Measures the rates of GEMMs in fp32 and bf16 on this processor, for --dtype auto. A GEMM in bf16 takes half the time of
fp32 if there is a fast instruction for it, and about the same time if it is widened (bf16_pairs.h).

  const MatmulRates rates = matmul_rates();        a few milliseconds on one core
*/
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>
#include "llmc/base/bf16.h"    // bf16, to_bf16
#include "llmc/cpu/device.h"   // Cpu
#include "llmc/cpu/kernels.h"  // MatmulRates
#include "llmc/cpu/matmul.h"   // matmul_forward

// A linear layer of 256 channels and 192 rows, in cache. The two types alternate and the fastest of eight runs counts,
// so that other load slows down both or is ignored.
inline MatmulRates matmul_rates() {
    constexpr int64_t N = 192, C = 256;
    const std::vector<float> floats(size_t(C * C), 0.5f);
    const std::vector<bf16> halves(size_t(C * C), to_bf16(0.5f));
    std::vector<float> out(size_t(N * C));
    std::vector<bf16> rounded_out(size_t(N * C));
    Cpu cpu(1);
    const auto seconds = [&]<class T>(T* to, const T* from) {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point start = Clock::now();
        matmul_forward(cpu, to, from, from, static_cast<const T*>(nullptr), N, C, C);
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    double fp32_s = 1, bf16_s = 1;
    for (int round = 0; round < 8; round++) {
        fp32_s = std::min(fp32_s, seconds(out.data(), floats.data()));
        bf16_s = std::min(bf16_s, seconds(rounded_out.data(), halves.data()));
    }
    constexpr double kFlops = 2. * N * C * C;
    return {kFlops / fp32_s, kFlops / bf16_s};
}

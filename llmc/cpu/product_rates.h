/*
How fast this processor multiplies matrices of either type, as measured now, for --dtype auto: a product in bf16 costs
half of one in fp32 where there is an instruction for it and it is not a slow one, and twice as much elsewhere, and no
list of processors would be complete.

  const ProductRates rates = product_rates();        a few milliseconds on one core
*/
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>
#include "llmc/base/bf16.h"    // bf16, to_bf16
#include "llmc/cpu/device.h"   // Cpu
#include "llmc/cpu/kernels.h"  // ProductRates
#include "llmc/cpu/matmul.h"   // matmul_forward

// A layer of 256 channels and 192 rows, out of the cache. The fastest of eight rounds counts, and the two types take
// turns: what else the machine does meanwhile slows down both or is passed over.
inline ProductRates product_rates() {
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

/*
The CPU's kernels: one table of functions per instruction-set level. Only kernels are compiled per level, and the object
of a level exports only its table (KERNELS in make/rules.mk), so the linker cannot pick an inline function that was
compiled for another level.

  ops<float>(cpu).gelu_forward(cpu, out, inp, n);     calls the best kernel that this processor can run
*/
#pragma once
#include <cstdint>
#include <string>
#include <type_traits>
#include "llmc/base/bf16.h"       // bf16
#include "llmc/base/check.h"      // format
#include "llmc/base/processor.h"  // CpuLevel
#include "llmc/base/profile.h"    // PeakRates
#include "llmc/cpu/device.h"      // Cpu
#include "llmc/ops/ops.h"         // Ops

// The rates of GEMMs in either type on one core (peaks.h).
struct MatmulRates {
    double fp32, bf16;  // FLOP/s of one core

    // bf16 rounds more often, so it must be clearly faster.
    const char* faster() const { return bf16 >= 1.3 * fp32 ? "bf16" : "fp32"; }
    std::string text() const {
        return format("%s (GEMMs on one core: %.0f GFLOP/s in fp32, %.0f in bf16)", faster(), fp32 * 1e-9, bf16 * 1e-9);
    }
};

// Sums one buffer per rank into one or more outputs (sum_ranks.h).
template <class T, class Out = T>
using SumRanks = void (*)(Cpu&, Out* const* out, const T* const* inp, int num_outs, int num_ranks, int64_t n);

// What multiplies bf16 in AMX tiles; null where there are none (gemm_tiles.h).
struct TileFunctions;
using TileKernel = const TileFunctions*;

struct CpuKernels {
    CpuLevel level;
    Ops<Cpu, float> fp32_ops;
    Ops<Cpu, bf16> bf16_ops;
    SumRanks<float> sum_ranks_fp32;
    SumRanks<bf16> sum_ranks_bf16;
    SumRanks<bf16, float> sum_ranks_bf16_to_fp32;
    SumRanks<uint64_t> sum_ranks_uint64;
    MatmulRates (*matmul_rates)();
    PeakRates (*peak_rates_fp32)(Cpu&);
    PeakRates (*peak_rates_bf16)(Cpu&);
    PeakRates (*compute_rate_fp32)(Cpu&);
    PeakRates (*compute_rate_bf16)(Cpu&);
    // How this table's ops multiply bf16: gemm_tiles.h, bf16_pairs.h. Tests replace them.
    TileKernel& (*tile_kernel)();
    bool& (*multiplies_pairs)();
};

// The best table that this processor can run, or the one that ANVIL_CPU_ISA names. Throws an Error if there is none.
const CpuKernels& cpu_kernels();

template <class T>
const Ops<Cpu, T>& ops(Cpu&) {
    if constexpr (std::is_same_v<T, float>)
        return cpu_kernels().fp32_ops;
    else
        return cpu_kernels().bf16_ops;
}

template <class T, class Out = T>
SumRanks<T, Out> sum_ranks_kernel() {
    const CpuKernels& kernels = cpu_kernels();
    if constexpr (!std::is_same_v<T, Out>)
        return kernels.sum_ranks_bf16_to_fp32;
    else if constexpr (std::is_same_v<T, float>)
        return kernels.sum_ranks_fp32;
    else if constexpr (std::is_same_v<T, bf16>)
        return kernels.sum_ranks_bf16;
    else
        return kernels.sum_ranks_uint64;
}

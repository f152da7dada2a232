/*
Properties of a device that a run needs. The functions here are for the CPU; cuda_devices.h has the same ones for a GPU.
*/
#pragma once
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include "llmc/base/bf16.h"            // bf16
#include "llmc/base/check.h"           // format, require
#include "llmc/base/host_limits.h"     // host_memory_bytes
#include "llmc/base/processor.h"       // level_in_use, name_of, text_of
#include "llmc/base/profile.h"         // HostProfile, PeakRates
#include "llmc/base/user_cache.h"      // user_cache_folder
#include "llmc/comm/comm.h"            // Comm, NoComm
#include "llmc/comm/host/host_comm.h"  // HostComm
#include "llmc/comm/local.h"           // LocalComm
#include "llmc/comm/ranks.h"           // share_errors
#include "llmc/cpu/kernels.h"          // the device Cpu, cpu_kernels
#include "llmc/platform/platform.h"    // cpuinfo, peak_memory_bytes
#include "llmc/run/log.h"              // PlanRecord
#include "llmc/run/peak_flops.h"       // DevicePeak, find_peak
#include "llmc/run/run_flags.h"        // RunFlags
#include "llmc/train/world.h"          // World

// For the report before the first step: "cpu, 2 threads, AVX-512 with bf16", "cuda, NVIDIA H200, ...".
inline std::string describe(const Cpu& cpu) {
    return format("cpu, %d threads, %s", cpu.num_threads, text_of(level_in_use(cpu_kernels().level)));
}
// The kind of device, which must be the same on all ranks.
inline std::string kind_of(const Cpu&) { return "cpu"; }
template <class T>
const char* type_name() {
    return std::is_same_v<T, float> ? "fp32" : "bf16";
}
inline size_t free_memory(const Cpu&) { return 0; }  // not known: the system allocates on first use
// The most memory in bytes that a rank may use if `ranks` on this host share it; 0: not known.
inline size_t memory_limit(const Cpu&, int ranks) { return host_memory_bytes() / size_t(ranks); }
// Bytes of it that a run leaves free.
inline size_t memory_margin(const Cpu&) { return 0; }
// The peak memory in bytes of this process, or on a GPU of its arenas, so far.
inline size_t peak_memory(const Cpu&) { return peak_memory_bytes(); }
// The peak to which MFU refers; `asked` is peak-flops. Measured on a CPU: no table of processors would be complete,
// and their speed depends on the clock.
template <class T>
DevicePeak peak_of(Cpu& cpu, const std::string& asked) {
    const CpuKernels& kernels = cpu_kernels();
    const std::string key = format("%s, %s, %s, %d threads", processor_text(cpuinfo()).c_str(),
                                   name_of(level_in_use(kernels.level)), type_name<T>(), busy_threads(cpu));
    return find_peak(asked, 0, user_cache_folder(std::getenv), key, [&] {
        return std::is_same_v<T, float> ? kernels.compute_rate_fp32(cpu) : kernels.compute_rate_bf16(cpu);
    });
}
template <class T>
size_t workspace_bytes(Cpu&, const GptShape&, int64_t, int64_t, bool = false, bool = true, const NumbersByStep& = {}) {
    return 0;  // it grows as needed
}

// Throws an Error if no kernel of the device supports the model's heads.
template <class T>
void check_heads(const Cpu&, const GptShape&) {}

// Throw an Error if the device has no GEMMs in FP8, or in MX.
inline void check_fp8_device(const Cpu&, const char*) {}
inline void check_mx_device(const Cpu&, const char*) {}

// Which of several kernels a run uses, and why not the others; "": there is no choice.
struct KernelFacts {
    std::string attention, gemm;
};
// Called at the start with the shapes of the steps; see plan_attention() of the GPU.
template <class T>
KernelFacts plan_kernels(Cpu&, const GptShape&, int64_t, int64_t, bool, bool, const NumbersByStep&) {
    return {};
}
inline std::optional<PlanRecord> plans_made(Cpu&) { return {}; }

// The library over which ranks exchange gradients and weights, which must be the same on all ranks: "NCCL 2.28.9".
inline std::string comm_version(const Cpu&) { return "none"; }

inline std::unique_ptr<Comm<Cpu>> make_comm(World& world, Cpu& cpu, const RunFlags&) {
    Ranks& ranks = world.together();
    if (world.group) return std::make_unique<LocalComm<Cpu>>(world.local_part(), ranks.rank, cpu);
    share_errors(ranks, [&] {
        require(
            !world.island || ranks.num_hosts == 1,
            "--islands: rank %d's island is on several hosts, and CPU ranks of one must share a host's memory: give "
            "an island for each host, or more",
            world.ranks.rank);
    });
    if (ranks.world_size == 1) return std::make_unique<NoComm<Cpu>>(cpu);
    return std::make_unique<HostComm>(ranks, cpu);
}

// For profiles: how ops are observed, and the peaks of the device.
inline std::unique_ptr<Profile> make_profile(Cpu&) { return std::make_unique<HostProfile>(); }
template <class T>
PeakRates measure_peaks(Cpu& cpu) {
    const CpuKernels& kernels = cpu_kernels();
    return std::is_same_v<T, float> ? kernels.peak_rates_fp32(cpu) : kernels.peak_rates_bf16(cpu);
}

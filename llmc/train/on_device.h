/*
Where a run takes place: on the GPU of this process, or on the CPU by the copy for this processor.

  on_device(world, errand, [&](auto& device, auto element) {      on a GPU
      using T = decltype(element);                              the type of weights and activations
      ...
  });
*/
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include "llmc/base/check.h"         // require, format
#include "llmc/train/cpu_program.h"  // cpu_program, Errand
#include "llmc/train/devices.h"      // ANVIL_HAS_CUDA
#include "llmc/train/doctor.h"       // GpuFacts
#include "llmc/train/world.h"        // World, Place

// An Error where the environment asks OpenMP for what ends in a crash or a standstill: of its first call, so none is
// made here.
inline void check_openmp() {
#ifdef _OPENMP
    constexpr long kMost = 4096;
    constexpr double kLeastStackKiB = 256;
    const char* const threads = std::getenv("OMP_NUM_THREADS");
    require(!threads || std::strtol(threads, nullptr, 10) <= kMost,
            "OMP_NUM_THREADS=%s: expected 1 to %ld; this machine has %u cores", threads, kMost,
            std::thread::hardware_concurrency());
    const char* const stack = std::getenv("OMP_STACKSIZE");
    if (!stack) return;
    char* unit = nullptr;
    const double number = std::strtod(stack, &unit);
    const char letter = *unit && *unit != ' ' ? char(*unit | 0x20) : 'k';  // small; without one the number is of KiB
    const double kib = number * (letter == 'b' ? 0x1p-10 : letter == 'm' ? 0x1p10 : letter == 'g' ? 0x1p20 : 1);
    require(kib >= kLeastStackKiB, "OMP_STACKSIZE=%s: threads need at least %gk; unset it", stack, kLeastStackKiB);
#endif
}

// What to say of OMP_NUM_THREADS: more than twice as many threads as cores wait for each other in every op. "" :
// nothing.
inline std::string crowd_warning(const char* asked, int cores) {
    const long threads = asked ? std::strtol(asked, nullptr, 10) : 0;
    if (threads <= 2L * cores) return "";
    return format(
        "OMP_NUM_THREADS=%ld, and this process may use %d core%s: threads wait for each other, and a step takes many "
        "times as long; unset it or set it to %d",
        threads, cores, cores == 1 ? "" : "s", cores);
}

// As many as the user says, else the process's share of the cores, of those it may run on.
inline int num_threads(const TrainConfig& config, int processes) {
    if (config.threads > 0 || processes == 1 || std::getenv("OMP_NUM_THREADS")) return config.threads;
    const int cores = int(std::thread::hardware_concurrency()), share = std::max(1, cores / processes);
#ifdef _OPENMP
    return std::min(share, omp_get_num_procs());  // fewer if a launcher has bound it to some
#else
    return share;
#endif
}

// Why this build or machine has no GPU at all; "" if it has one.
inline std::string why_no_cuda() {
#if ANVIL_HAS_CUDA
    return why_no_gpu();
#else
    return "this build of Anvil has no CUDA (`make info` tells why)";
#endif
}

// What --doctor asks of a GPU.
inline GpuFacts look_at_gpu([[maybe_unused]] int ordinal) {
    GpuFacts facts;
#if ANVIL_HAS_CUDA
    facts.is_built = true;
    facts.why_none = why_no_gpu(ordinal);
    if (!facts.why_none.empty()) return facts;
    const Cuda cuda(ordinal);
    facts.device = describe(cuda) + ", " + driver_text();
    facts.free_bytes = cuda.free_bytes(), facts.bytes = cuda.memory_bytes;
#else
    facts.why_none = why_no_cuda();
#endif
    return facts;
}

inline bool is_on_cpu(const TrainConfig& config) { return config.device == "cpu" || !why_no_cuda().empty(); }

// An Error if there is no such device for a rank at this place.
inline void check_device(const TrainConfig& config, const Place& place) {
    const std::string why = config.device == "cpu" ? "" : why_no_cuda();
    require(config.device != "cuda" || why.empty(), "--device cuda: %s", why.c_str());
#if ANVIL_HAS_CUDA
    if (config.device == "cpu" || !why.empty()) return;
    const std::string why_not_this = why_no_gpu(place.gpu);  // two ranks never share one
    require(why_not_this.empty(), "no GPU for every rank of this host: %s; start fewer ranks, or --device cpu",
            why_not_this.c_str());
#else
    (void)place;
#endif
}

// What --dtype auto means on this processor; said on stderr.
inline std::string measured_dtype() {
    const ProductRates rates = cpu_program().product_rates();
    std::fprintf(stderr, "--dtype auto: %s\n", rates.text().c_str());
    return rates.faster();
}

// --dtype on the CPU. What is left to a measurement, rank 0 measures: another might find otherwise.
inline std::string cpu_dtype(World& world, const TrainConfig& config) {
    if (config.dtype != "auto" || config.bench_comm) return config.dtype;
    return world.ranks.broadcast(world.is_first() && is_on_cpu(config) ? measured_dtype() : "");
}

// If the device is missing on any rank, all hear of it.
template <class OnGpu>
void on_device(World& world, const Errand& errand, [[maybe_unused]] OnGpu&& on_gpu) {
    const TrainConfig& config = errand.config();
    const Place place = world.place();
    share_errors(world.ranks, [&] { check_device(config, place); });
    const std::string dtype = cpu_dtype(world, config);
#if ANVIL_HAS_CUDA
    const std::string why = config.device == "cpu" ? "" : why_no_cuda();
    if (config.device != "cpu" && why.empty()) {
        Cuda cuda(place.gpu, {config.tune_matmul, attention_kernels(config), config.deterministic});
        if (config.dtype == "fp32") return on_gpu(cuda, float());
        return on_gpu(cuda, bf16());
    }
    if (config.device == "auto" && place.is_first)
        std::fprintf(stderr, "no GPU, training on the CPU: %s\n", why.c_str());
#endif
#ifdef _OPENMP
    const std::string crowd =
        config.threads > 0 ? "" : crowd_warning(std::getenv("OMP_NUM_THREADS"), omp_get_num_procs());
    if (!crowd.empty() && place.is_first) std::fprintf(stderr, "warning: %s\n", crowd.c_str());
#endif
    cpu_program().carry_out(world, errand, num_threads(config, place.processes), dtype);
}

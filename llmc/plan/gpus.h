/*
GPUs that a plan can be made for: what their vendor states, and the little that must be assumed. The single table for
all that asks "how fast could this be?" without having the card.

Sizes and peaks are NVIDIA's: data sheets of A100 80GB SXM, H100 SXM5, H200 SXM, B200 SXM and GeForce RTX 4090, and the
architecture white papers for SMs, caches and limits of an SM (CUDA C++ Programming Guide, "Compute Capabilities").

  copied      share of the sheet's bandwidth that a large copy reaches. H200: 4.3 of 4.8 TB/s, as measured on such a
              card; the others are assumed to be near it
  sustained   share of the sheet's tensor peak that a large GEMM of random numbers sustains at full power. H100 and
              H200: 794.5 of 989 (ml-engineering's MAMF tables, and 790 measured for 8192^3); the others are assumed
  collective  GB/s of a collective inside a server: near 78 % of NVLink in one direction; for a 4090, which has none,
              what PCIe 4.0 through host memory gives
  network     GB/s of a GPU to other servers: 90 % of a network card of 200 Gb/s (A100, 4090) or 400 Gb/s each
  price       USD per hour, in the range that clouds asked for in 2025
*/
#pragma once
#include <strings.h>
#include <cstdint>
#include <string>
#include <vector>

struct MeasuredRates;  // gpu_model.h

struct Gpu {
    const char* name;
    int compute_capability, num_sms;
    double memory_gb, l2_mb;
    double bandwidth_tb, copied;  // the sheet's TB/s
    double tflops, fp8_tflops;    // dense, with fp32 sums
    double sustained;
    double fp32_tflops;  // without tensor cores
    int threads_per_sm, blocks_per_sm, shared_kb;
    double collective, network;
    double usd_per_hour;
    const MeasuredRates* measured = nullptr;  // benchmarks of the card, which replace the model (calibration.h)

    bool has_nvlink() const { return collective > 64; }  // more than PCIe 5.0 has
    double copy_bytes_per_s() const { return bandwidth_tb * 1e12 * copied; }
};

inline constexpr Gpu kGpus[] = {
    {"A100", 80, 108, 80, 40, 2.039, 0.88, 312, 0, 0.83, 19.5, 2048, 32, 164, 235, 22.5, 1.8},
    {"H100", 90, 132, 80, 50, 3.35, 0.9, 989, 1979, 0.803, 67, 2048, 32, 228, 350, 45, 3},
    {"H200", 90, 132, 141, 50, 4.8, 0.896, 989, 1979, 0.803, 67, 2048, 32, 228, 350, 45, 3.5},
    {"B200", 100, 148, 180, 126, 8, 0.9, 2250, 4500, 0.72, 75, 2048, 32, 228, 700, 45, 5.5},
    {"4090", 89, 128, 24, 72, 1.008, 0.92, 165.2, 330.3, 0.95, 82.6, 1536, 24, 100, 10, 22.5, 0.5},
};
inline constexpr int kGpusPerServer = 8;

inline std::vector<std::string> gpu_names() {
    std::vector<std::string> names;
    for (const Gpu& gpu : kGpus) names.push_back(gpu.name);
    return names;
}
// Names are case-insensitive. Null: there is none of that name.
inline const Gpu* find_gpu(const std::string& name) {
    for (const Gpu& gpu : kGpus)
        if (strcasecmp(name.c_str(), gpu.name) == 0) return &gpu;
    return nullptr;
}

/*
GPUs that a plan can be made for: what their vendor states, and the little that must be assumed. The single table for
all that asks "how fast could this be?" without having the card.

Sizes and peaks are NVIDIA's: data sheets of A100 80GB SXM, H100 SXM5, H200 SXM and B200 SXM, the architecture white
papers of Ada (RTX 4090, 4070, L40S) and RTX Blackwell (RTX 5090, RTX PRO 6000) for peaks with fp32 sums, SMs and
caches, and limits of an SM (CUDA C++ Programming Guide, "Compute Capabilities"). MI300X-like is by numbers alone: AMD's
data sheet in the place of an A100's; the engine does not run there, and its FP8 is another format.

  copied      share of the sheet's bandwidth that a large copy reaches. H200: 4.3 of 4.8 TB/s, as measured on such a
              card; the others are assumed to be near it
  sustained   share of the sheet's tensor peak that a large GEMM of random numbers sustains at full power: 271.2 of 312
              on an A100, 794.5 of 989 on H100 and H200, 1745 of 2250 on a B200, 668.4 of 1307 on an MI300X
              (ml-engineering's MAMF tables, 744d01e). GeForces exceed their sheet's clock: a 4090 has 163.5
              (xytpai/gpuk) and in attention 169.3 (TileLang's flash_perf.md) of 165.2, a 5090 225 (kekzl/imp, pull
              request 606) and 238 (AlcAI-Haven/FastFlashAttention) of 209.5. L40S and PRO 6000, which power holds
              back, are fitted to three figures each: llmq's 0.5B, 1.5B and 3B in bf16 (doc/results/published.json)
  collective  GB/s of a collective inside a server: near 78 % of NVLink in one direction; without it what PCIe 4.0 or
              5.0 gives, on GeForces through host memory: assumed
  network     GB/s of a GPU to other servers: 90 % of a network card of 200 Gb/s or 400 Gb/s each
  host        GB/s between a GPU and pinned host memory in each direction while the other is busy, too: of PCIe 4.0 with
              16 lanes 18, because an A100 that gets 25 alone gets 24 out and 12 in (NVIDIA/nvbandwidth, issues 11 and
              53), of 5.0 48 (47 to 51, issue 53). Assumed: each GPU has such a link, and the host's memory keeps up
  price       USD per hour, in the range that clouds asked for in 2025
*/
#pragma once
#include <strings.h>
#include <algorithm>
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
    double collective, network, host;
    double usd_per_hour;
    const MeasuredRates* measured = nullptr;  // benchmarks of the card, which replace the model (calibration.h)

    // SMs multiply by mma.sync, from registers: before Hopper, and GeForce and RTX PRO of Blackwell.
    bool has_mma_sync_only() const { return compute_capability < 90 || compute_capability >= 120; }
    // GeForces: tensor cores at half rate with fp32 sums.
    bool has_half_rate() const { return has_mma_sync_only() && tflops / num_sms < 2; }
    bool has_mx() const { return compute_capability >= 100; }  // GEMMs in MXFP8: Blackwell, at FP8's rate
    bool has_nvlink() const { return collective > 64; }        // more than PCIe 5.0 has
    double copy_bytes_per_s() const { return bandwidth_tb * 1e12 * copied; }
};

inline constexpr Gpu kGpus[] = {
    {"A100", 80, 108, 80, 40, 2.039, 0.88, 312, 0, 0.869, 19.5, 2048, 32, 164, 235, 22.5, 18, 1.8},
    {"H100", 90, 132, 80, 50, 3.35, 0.9, 989, 1979, 0.803, 67, 2048, 32, 228, 350, 45, 48, 3},
    {"H200", 90, 132, 141, 50, 4.8, 0.896, 989, 1979, 0.803, 67, 2048, 32, 228, 350, 45, 48, 3.5},
    {"B200", 100, 148, 180, 126, 8, 0.9, 2250, 4500, 0.776, 75, 2048, 32, 228, 700, 45, 48, 5.5},
    {"4090", 89, 128, 24, 72, 1.008, 0.92, 165.2, 330.3, 1, 82.6, 1536, 24, 100, 10, 22.5, 18, 0.5},
    {"4070", 89, 46, 12, 36, 0.504, 0.92, 58.3, 116.6, 1, 29.1, 1536, 24, 100, 10, 22.5, 18, 0.2},
    {"5090", 120, 170, 32, 96, 1.792, 0.92, 209.5, 419, 1.1, 104.8, 1536, 24, 100, 20, 22.5, 48, 0.7},
    {"L40S", 89, 142, 48, 96, 0.864, 0.92, 362, 733, 0.64, 91.6, 1536, 24, 100, 15, 22.5, 18, 1},
    {"PRO 6000", 120, 188, 96, 128, 1.792, 0.92, 503.8, 1007.6, 0.86, 125, 1536, 24, 100, 30, 45, 48, 1.8},
    {"MI300X-like", 80, 304, 192, 256, 5.3, 0.8, 1307.4, 0, 0.511, 163.4, 2048, 32, 64, 320, 45, 48, 2.5},
};
inline constexpr int kGpusPerServer = 8;

inline std::vector<std::string> gpu_names() {
    std::vector<std::string> names;
    for (const Gpu& gpu : kGpus) names.push_back(gpu.name);
    return names;
}
// The GPU whose name is a word of a device's: "NVIDIA H100 80GB HBM3". Null: there is none.
inline const Gpu* gpu_in_name(std::string device) {
    std::replace(device.begin(), device.end(), '-', ' ');  // A100-SXM4-80GB
    for (const Gpu& gpu : kGpus)
        if ((" " + device + " ").find(" " + std::string(gpu.name) + " ") != std::string::npos) return &gpu;
    return nullptr;
}
// Names are case-insensitive. Null: there is none of that name.
inline const Gpu* find_gpu(const std::string& name) {
    for (const Gpu& gpu : kGpus)
        if (strcasecmp(name.c_str(), gpu.name) == 0) return &gpu;
    return nullptr;
}

// Properties of a GPU that a run needs: the functions of devices.h for the device Cuda.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>
#include "llmc/base/integers.h"                   // nearest_multiple
#include "llmc/base/user_cache.h"                 // user_cache_folder
#include "llmc/comm/gpu/local_cuda.h"             // LocalComm<Cuda>
#include "llmc/comm/gpu/nccl_comm.h"              // make_nccl_comm
#include "llmc/cuda/attention/cudnn_attention.h"  // CudnnAttention
#include "llmc/cuda/cublaslt.h"                   // CublasLt
#include "llmc/cuda/cuda_kernels.h"               // the device Cuda, ops
#include "llmc/cuda/cuda_profile.h"               // CudaProfile
#include "llmc/cuda/limits.h"                     // check_head_size
#include "llmc/cuda/matmul_cache.h"               // matmul_cache_path
#include "llmc/run/peak_flops.h"                  // DevicePeak, find_peak, peak_bf16_flops
#include "llmc/train/attention_shapes.h"          // attention_shapes
#include "llmc/train/devices.h"                   // KernelFacts, type_name
#include "llmc/train/world.h"                     // World

inline std::string describe(const Cuda& cuda) {
    return format("cuda, %s, compute capability %d.%d, %d SMs, %.1f GiB", cuda.name.c_str(),
                  cuda.compute_capability / 10, cuda.compute_capability % 10, cuda.num_sms,
                  double(cuda.memory_bytes) / (1 << 30));
}
inline std::string kind_of(const Cuda& cuda) { return cuda.name; }
inline CudaOptions device_options(const RunFlags& config) {
    const MatmulCachePath cache = matmul_cache_path(config.tune_matmul, user_cache_folder(std::getenv));
    if (!cache.why_not.empty())
        std::fprintf(stderr, "warning: --tune-matmul %s: %s: GEMMs are not timed\n", config.tune_matmul.c_str(),
                     cache.why_not.c_str());
    return {cache.path, attention_kernels(config.attention), config.deterministic};
}
inline size_t free_memory(const Cuda& cuda) { return cuda.free_bytes(); }
inline size_t memory_limit(const Cuda& cuda, int) { return free_memory(cuda); }
// Memory that a run leaves free: cuBLASLt, cuDNN and NCCL load kernels and allocate buffers when they first see a
// shape, and memory is fragmented. That takes less than 1 GB on any card. Small cards reserve 3 %, because every MiB
// counts there.
inline size_t memory_margin(const Cuda& cuda) {
    return std::min(size_t(1) << 30, size_t(double(cuda.memory_bytes) * 0.03));
}
inline size_t peak_memory(const Cuda& cuda) { return cuda.peak_bytes; }
template <class T>
DevicePeak peak_of(const Cuda& cuda, const std::string& asked) {
    constexpr bool kFp32 = std::is_same_v<T, float>;  // the table has only bf16
    const std::string key = format("%s, %s, %s", cuda.name.c_str(), driver_text().c_str(), type_name<T>());
    return find_peak(asked, kFp32 ? 0 : peak_bf16_flops(cuda.name), user_cache_folder(std::getenv), key, [&] {
        Cuda other(cuda.ordinal);  // a separate device, so that the run's has no workspace or plans of the measurement
        return cuda_compute_rate(other, kFp32);
    });
}
template <class T>
size_t workspace_bytes(Cuda& cuda, const GptShape& s, int64_t B, int64_t seq_len, bool documents = false,
                       bool learns = true, const NumbersByStep& lengths = {}) {
    const int64_t widest = std::max({s.hidden_rows(), s.qkv_rows(), s.channels});
    size_t most = 0;
    for (const AttentionShape& shape : attention_shapes(s, B, seq_len, documents, lengths))
        most = std::max(most, training_workspace<T>(cuda, B * seq_len, s.channels, widest, shape, learns));
    return most;
}
template <class T>
KernelFacts plan_kernels(Cuda& cuda, const GptShape& s, int64_t B, int64_t seq_len, bool documents, bool learns,
                         const NumbersByStep& lengths) {
    return {plan_attention<T>(cuda, attention_shapes(s, B, seq_len, documents, lengths), learns),
            cuda.cublaslt().text()};
}
inline std::optional<PlanRecord> plans_made(Cuda& cuda) {
    return PlanRecord{.attention = cuda.cudnn_attention().plans_made(),
                      .gemm = cuda.cublaslt().plans_made(),
                      .timed = cuda.cublaslt().timed()};
}
template <class T>
void check_heads(const Cuda&, const GptShape& s) {
    check_head_size<T>(s.head_size());
    if (s.architecture.rotary_positions) check_rotary_head_size(s.head_size());
    constexpr int64_t kMultiple = 16 / sizeof(T);  // rows of 16 bytes
    require(s.lora.rank % kMultiple == 0, "--lora-rank %ld: on a GPU expected a multiple of %ld: the nearest is %ld",
            s.lora.rank, kMultiple, nearest_multiple(s.lora.rank, kMultiple));
}

inline std::string comm_version(const Cuda&) { return "NCCL " + nccl_version(); }

inline std::unique_ptr<Comm<Cuda>> make_comm(World& world, Cuda& cuda, const RunFlags& config) {
    const Order order = config.overlap ? Order::overlapped : Order::serial;
    Ranks& ranks = world.together();
    if (world.group) return std::make_unique<LocalComm<Cuda>>(world.local_part(), ranks.rank, cuda, order);
    if (ranks.world_size == 1) return std::make_unique<NoComm<Cuda>>(cuda);
    return make_nccl_comm(ranks, cuda, order);
}

inline std::unique_ptr<Profile> make_profile(Cuda& cuda) { return std::make_unique<CudaProfile>(cuda); }
template <class T>
PeakRates measure_peaks(Cuda& cuda) {
    return cuda_peak_rates(cuda, std::is_same_v<T, float>);
}

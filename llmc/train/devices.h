/*
Which devices this build has, and what a run must know of each.
*/
#pragma once
#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include "llmc/base/bf16.h"         // bf16
#include "llmc/base/check.h"        // format
#include "llmc/base/host_memory.h"  // host_memory_bytes
#include "llmc/base/log.h"          // PlanRecord
#include "llmc/base/processor.h"    // level_in_use, text_of
#include "llmc/cpu/ops.h"           // the device Cpu
#include "llmc/train/config.h"      // TrainConfig
#include "llmc/train/peak_flops.h"  // peak_bf16_flops
#if defined(__CUDACC__) || defined(ANVIL_EMULATED)
#include "llmc/cuda/ops.cuh"  // the device Cuda
#define ANVIL_HAS_CUDA 1
#else
#define ANVIL_HAS_CUDA 0
#endif

// For the start of a run: "cpu, 2 threads, AVX-512 with bf16", "cuda, NVIDIA H200, ...".
inline std::string describe(const Cpu& cpu) {
    return format("cpu, %d threads, %s", cpu.num_threads, text_of(level_in_use(CpuLevel::ANVIL_CPU_LEVEL)));
}
// What ranks must have alike.
inline std::string kind_of(const Cpu&) { return "cpu"; }
template <class T>
const char* type_name() {
    return std::is_same_v<T, float> ? "fp32" : "bf16";
}
inline size_t free_memory(const Cpu&) { return 0; }  // not known: the system gives what is used
// What a rank may take at most, of `ranks` on this host that share it; 0: not known.
inline size_t memory_limit(const Cpu&, int ranks) { return host_memory_bytes() / size_t(ranks); }
// What a run leaves free of it.
inline size_t memory_margin(const Cpu&) { return 0; }
// The most that this process, or its arenas on a GPU, have taken so far.
inline size_t peak_memory(const Cpu&) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;  // "VmHWM:     1234 kB"
    return 0;
}
template <class T>
double peak_flops(const Cpu&) {
    return 0;  // not known: it depends on the processor's clock
}
template <class T>
size_t workspace_bytes(Cpu&, const GptShape&, int64_t, int64_t, bool = false, bool = true) {
    return 0;  // it grows as needed
}

// An Error if no kernel of the device takes the model's heads.
template <class T>
void check_heads(const Cpu&, const GptShape&) {}

// An Error if the device has no products in eight bits.
inline void check_fp8_device(const Cpu&, const char*) {}

// Which kernels of several a run takes, and why not others; "": there is no choice.
struct KernelFacts {
    std::string attention, gemm;
};
// Told at the start what the steps will ask for; see plan_attention() of the GPU.
template <class T>
KernelFacts plan_kernels(Cpu&, const GptShape&, int64_t, int64_t, bool, bool) {
    return {};
}
inline std::optional<PlanRecord> plans_made(Cpu&) { return {}; }

#if ANVIL_HAS_CUDA
inline std::string describe(const Cuda& cuda) {
    return format("cuda, %s, compute capability %d.%d, %d SMs, %.1f GiB", cuda.name.c_str(),
                  cuda.compute_capability / 10, cuda.compute_capability % 10, cuda.num_sms,
                  double(cuda.memory_bytes) / (1 << 30));
}
inline std::string kind_of(const Cuda& cuda) { return cuda.name; }
inline AttentionKernels attention_kernels(const TrainConfig& config) {
    return config.attention == "own"     ? AttentionKernels::own
           : config.attention == "cudnn" ? AttentionKernels::cudnn
                                         : AttentionKernels::automatic;
}
inline size_t free_memory(const Cuda& cuda) { return cuda.free_bytes(); }
inline size_t memory_limit(const Cuda& cuda, int) { return free_memory(cuda); }
// cuBLASLt, cuDNN and NCCL load kernels and take buffers when a shape first comes, and memory has gaps. That is less
// than a gigabyte on any card, so a large one does not give away more; a small one gives 3 %, since every MiB counts
// there.
inline size_t memory_margin(const Cuda& cuda) {
    return std::min(size_t(1) << 30, size_t(double(cuda.memory_bytes) * 0.03));
}
inline size_t peak_memory(const Cuda& cuda) { return cuda.peak_bytes; }
template <class T>
double peak_flops(const Cuda& cuda) {
    return std::is_same_v<T, bf16> ? peak_bf16_flops(cuda.name) : 0;  // of bf16 alone there is a table
}
// Of a step's batches: every window of the whole model once.
inline std::vector<AttentionShape> attention_shapes(const GptShape& s, int64_t B, int64_t seq_len, bool documents) {
    static constexpr int32_t kSome = 0;  // attention asks whether there are documents, not where
    std::set<AttentionKey> keys;
    std::vector<AttentionShape> shapes;
    for (const int64_t window : layer_windows(s.architecture, s.num_layers, s.max_seq_len)) {
        const AttentionShape shape = {.B = B,
                                      .T = seq_len,
                                      .NH = s.num_heads,
                                      .NKV = s.kv_heads(),
                                      .HS = s.head_size(),
                                      .window = window,
                                      .starts = documents ? &kSome : nullptr};
        if (keys.insert(key_of(shape)).second) shapes.push_back(shape);
    }
    return shapes;
}
template <class T>
size_t workspace_bytes(Cuda& cuda, const GptShape& s, int64_t B, int64_t seq_len, bool documents = false,
                       bool learns = true) {
    const int64_t widest = std::max({s.hidden_rows(), s.qkv_rows(), s.channels});
    size_t most = 0;
    for (const AttentionShape& shape : attention_shapes(s, B, seq_len, documents))
        most = std::max(most, training_workspace<T>(cuda, B * seq_len, s.channels, widest, shape, learns));
    return most;
}
template <class T>
KernelFacts plan_kernels(Cuda& cuda, const GptShape& s, int64_t B, int64_t seq_len, bool documents, bool learns) {
    return {plan_attention<T>(cuda, attention_shapes(s, B, seq_len, documents), learns), cuda.cublaslt().text()};
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
}
#endif

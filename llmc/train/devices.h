/*
Where a run takes place: the one header that knows which devices this build has.

  on_device(config, [&](auto& device, auto element) {       element: a value of the type of weights and activations
      using T = decltype(element);
      ...
  });
*/
#pragma once
#include <cstdio>
#include <string>
#include "llmc/base/bf16.h"     // bf16
#include "llmc/base/check.h"    // require
#include "llmc/cpu/ops.h"       // the device Cpu
#include "llmc/train/config.h"  // TrainConfig
#if defined(__CUDACC__) || defined(ANVIL_EMULATED)
#include "llmc/cuda/ops.cuh"  // the device Cuda
#define ANVIL_HAS_CUDA 1
#else
#define ANVIL_HAS_CUDA 0
#endif

// For the start of a run: "2 threads", "NVIDIA H200".
inline std::string describe(const Cpu& cpu) { return format("cpu, %d threads", cpu.num_threads); }
inline size_t free_memory(const Cpu&) { return 0; }  // not known: the system gives what is used
template <class T>
size_t workspace_bytes(Cpu&, const GptShape&, int64_t, int64_t) {
    return 0;  // it grows as needed
}

#if ANVIL_HAS_CUDA
inline std::string describe(const Cuda& cuda) {
    return format("cuda, %s, compute capability %d.%d, %d SMs, %.1f GiB", cuda.name.c_str(),
                  cuda.compute_capability / 10, cuda.compute_capability % 10, cuda.num_sms,
                  double(cuda.memory_bytes) / (1 << 30));
}
inline AttentionKernels attention_kernels(const TrainConfig& config) {
    return config.attention == "own"     ? AttentionKernels::own
           : config.attention == "cudnn" ? AttentionKernels::cudnn
                                         : AttentionKernels::automatic;
}
inline size_t free_memory(const Cuda& cuda) { return cuda.free_bytes(); }
template <class T>
size_t workspace_bytes(Cuda& cuda, const GptShape& s, int64_t B, int64_t seq_len) {
    return training_workspace<T>(cuda, B * seq_len, s.channels, 4 * s.channels,
                                 {B, seq_len, s.num_heads, s.num_heads, s.head_size()});
}
#endif

template <class Run>
void on_device(const TrainConfig& config, Run&& run) {
    std::string why = "this build of Anvil has no CUDA (`make info` tells why)";
#if ANVIL_HAS_CUDA
    why = config.device == "cpu" ? "" : why_no_gpu();
    if (config.device != "cpu" && why.empty()) {
        Cuda cuda(0, {config.tune_matmul, attention_kernels(config)});
        if (config.dtype == "fp32") return run(cuda, float());
        return run(cuda, bf16());
    }
    if (config.device == "auto") std::fprintf(stderr, "no GPU, training on the CPU: %s\n", why.c_str());
#endif
    require(config.device != "cuda", "--device cuda: %s", why.c_str());
    require(config.dtype != "bf16", "--dtype bf16 is for GPUs: on the CPU this version trains in fp32");
    Cpu cpu(config.threads);
    run(cpu, float());
}

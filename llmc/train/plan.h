/*
What a run would take, before there is a machine for it: ./train_gpt plan --world-size 64 --model gpt2-1558M ...
Memory and bytes are counted as the run itself counts them; times and cost are arithmetic on assumptions, all of which
are printed and can be replaced (--gpu, --mfu, ...).

  bytes sent     a ring's: (W - 1) / W of all gradients for reduce-scatter, and of all weights for all-gather
                 (Patarasuk and Yuan, 2009), for W ranks. Latency is not counted: it grows with W.
  bandwidth      inside a server, what collectives reach there; over several, no more than all network cards of a server
                 together, because a ring leaves a server by as many of them as it has GPUs
  compute        FLOPs of the model (flops_per_token) at peak x MFU; a third more where blocks are recomputed
  update         bytes of state, weights and gradients at the memory's bandwidth, and Newton-Schulz at peak x MFU
  step           compute + update + exposed, where the gradients' communication hides behind the last micro-batch's
backward pass, two thirds of it, but for the last bucket, and the weights' hides behind the next forward pass
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/model/shape.h"        // GptShape
#include "llmc/optim/sharding.h"     // ShardingPlan
#include "llmc/train/memory_plan.h"  // MemoryPlan
#include "llmc/train/options.h"      // PlanOptions
#include "llmc/train/run_config.h"   // RunConfig, RunFlags

struct PlannedGpu {
    const char* name;
    double memory_gb, memory_tb_s;  // size, and bandwidth that kernels reach
    double tflops, mfu;             // bf16, dense; the part of it that a training step reaches
    double bandwidth, network;      // GB/s of a collective inside a server, and of a GPU to other servers
    double usd_per_hour;
};

// Sizes and peaks are NVIDIA's data sheets'. Everything else is an assumption. Memory: 85% of the sheet. MFU: what
// published GPT runs of a billion parameters reach. Collectives: near 78% of NVLink's one direction, and 90% of a card
// of 200 Gb/s (A100) or 400 Gb/s a GPU. Prices: of the order that clouds asked for a GPU-hour of eight in 2025.
inline constexpr PlannedGpu kPlannedGpus[] = {
    {"A100", 80, 1.7, 312, 0.55, 235, 22.5, 1.8},
    {"H100", 80, 2.85, 989, 0.45, 350, 45, 3},
    {"H200", 141, 4.1, 989, 0.47, 350, 45, 3.5},
    {"B200", 180, 6.8, 2250, 0.4, 700, 45, 5.5},
};
inline constexpr int kGpusPerServer = 8;

std::vector<std::string> plan_gpu_names();
// The GPU asked for, with the flags' values where they are given.
PlannedGpu planned_gpu(const PlanOptions& options);

struct RunPlan {
    GptShape shape{};
    RunConfig config{};
    PlannedGpu gpu{};
    int64_t num_parameters = 0;
    ShardingPlan sharding{};
    std::vector<int64_t> state_bytes;  // of each rank
    MemoryPlan memory{};               // of the rank that needs most
    int64_t largest_batches[3] = {};   // sequences per micro-batch that would fit; for each Recompute
    double host_bytes = 0;             // of the first server, in its own memory: what checkpoints are written from
    double checkpoint_bytes = 0;       // on the disk: weights and the optimizer's state
    double sent_gradient_bytes = 0, sent_weight_bytes = 0;     // a step and rank
    double bandwidth = 0;                                      // bytes/s
    double gradients_s = 0, last_bucket_s = 0, weights_s = 0;  // of their communication
    double flops_per_token = 0, flops = 0;                     // forward and backward; a step, all ranks
    double compute_s = 0, update_s = 0, exposed_s = 0, step_s = 0;
    double tokens = 0, run_s = 0, usd = 0;  // of the whole run
};

RunPlan plan_run(const RunFlags& asked, const PlanOptions& options, const GptShape& shape, int world_size);
std::string text_of(const RunPlan& plan);

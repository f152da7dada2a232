/*
Predicts memory, time and cost of a run, without the machine:

  ./train_gpt plan --gpu H100 --world-size 64 --model gpt2-1558M

Memory and bytes are counted as the run itself counts them. For the time, the trainer's own code enqueues the launches
of one step on a simulated GPU (traced_step.h), and a model of that GPU (llmc/plan/gpu_model.h) predicts each. There
are three cases, low, mid and high, because its constants are not measured here. Hours and dollars follow. Figures of
the GPU can be replaced (--tflops, --bandwidth, ...).

  --gpu A,B --world-size 8,64     every combination, side by side
  --fit                           the fastest flags that fit
  --trace FILE                    the step launch by launch: a table, and FILE as JSON for Perfetto
  --calibrate PATH                benchmarks of a real card in place of the model's constants (llmc/plan/calibration.h)
*/
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "llmc/model/shape.h"       // GptShape
#include "llmc/optim/sharding.h"    // ShardingPlan
#include "llmc/plan/calibration.h"  // Calibration
#include "llmc/plan/gpu_model.h"    // Gpu, StepTime
#include "llmc/plan/step_trace.h"   // StepTrace
#include "llmc/run/command.h"       // PlanOptions
#include "llmc/run/memory_plan.h"   // MemoryPlan
#include "llmc/run/run_config.h"    // RunConfig, RunFlags

// The GPU with that name, with the values that flags override. Throws an Error that lists all names.
Gpu planned_gpu(const PlanOptions& options, const std::string& name);

struct RunPlan {
    GptShape shape{};
    RunConfig config{};
    Gpu gpu{};
    std::shared_ptr<const Calibration> calibration;  // null: the constants of the GPU model
    int64_t num_parameters = 0;
    ShardingPlan sharding{};
    std::vector<int64_t> state_bytes;  // optimizer state of each rank
    MemoryPlan memory{};               // of the rank that needs most
    int64_t largest_batches[3] = {};   // for each Recompute, the largest batch that fits, in sequences per micro-batch
    double host_bytes = 0;             // host memory of the first server: the copies from which checkpoints are written
    double offloaded_bytes = 0;        // host memory of the first server beside it: state that is offloaded
    double copied_bytes = 0;           // of it, to the GPU in a step, and as many back; of the rank that copies most
    double checkpoint_bytes = 0;       // on the disk: weights and the optimizer's state
    double sent_gradient_bytes = 0, sent_weight_bytes = 0;  // per step and rank, in a ring
    double bandwidth = 0;                                   // bytes/s
    double flops_per_token = 0, flops = 0;                  // forward and backward; flops: per step, all ranks
    StepTrace trace;                                        // of the rank with the most to update
    StepTime times[3];                                      // low, mid, high: of kCases
    double tokens = 0;                                      // of the whole run

    double tokens_per_s(int i) const { return double(config.step.num_tokens()) / times[i].step_s; }
    double mfu(int i) const { return flops / (times[i].step_s * double(config.step.world_size) * gpu.tflops * 1e12); }
    double run_s(int i) const { return tokens / tokens_per_s(i); }
    double usd(int i) const { return run_s(i) / 3600 * double(config.step.world_size) * gpu.usd_per_hour; }
    bool fits() const { return double(memory.total_bytes()) <= gpu.memory_gb * 1e9; }
};

RunPlan plan_run(const RunFlags& asked, const GptShape& shape, const Gpu& gpu, int world_size,
                 std::shared_ptr<const Calibration> calibration = nullptr);
// Tokens per second of a run on GPUs of that name ("NVIDIA H100 80GB HBM3"); 0: not known. Its batch size is given.
double predicted_tokens_per_s(const RunFlags& flags, const GptShape& shape, int world_size, const std::string& gpu);
// Every GPU of --gpu at every number of --world-size.
std::vector<RunPlan> plan_runs(const RunFlags& asked, const PlanOptions& options, const GptShape& shape);

// One plan in full, several as a table.
std::string text_of(const RunPlan& plan);
std::string text_of(const std::vector<RunPlan>& plans);
// The command `plan`: prints the table, and writes --trace. Throws an Error for flags that do not fit.
void print_plan(const RunFlags& flags, const PlanOptions& options);
// The plan's figures as a JSON object for programs: otherData of --trace's file.
std::string facts_json(const RunPlan& plan);

// --fit (fit.cpp): how to run a model on a GPU that is only described. It plans every combination of the choices that
// trade memory for time or exchange, except those that flags fix, and sorts the plans by predicted tokens per second.
// Micro-batch and recomputation are chosen for each combination as --batch-size auto does (llmc/run/run_config.h).
struct Fit {
    std::string choice;  // " --zero-stage 2 --moments bf16": what the search added; "": nothing
    RunPlan plan;
};

// Those that fit, the fastest first, then those that do not, the smallest first.
std::vector<Fit> fit_run(const RunFlags& asked, const GptShape& shape, const Gpu& gpu, int world_size,
                         std::shared_ptr<const Calibration> calibration = nullptr);
std::string text_of(const std::vector<Fit>& fits);

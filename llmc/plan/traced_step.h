/*
One training step with its real shapes on a simulated GPU: the training code enqueues it, and each launch is recorded
instead of executed (llmc/plan). It needs no GPU, little memory and less than a second.

  const StepTrace trace = trace_step({.parameters = list, .sharding = plan, ...});

Weights and activations are bf16. Attention is cuDNN's wherever cuDNN 9.19 supports it.
*/
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include "llmc/model/activations.h"       // ActivationPolicy
#include "llmc/model/parameters.h"        // ParameterList
#include "llmc/optim/optimizer_config.h"  // OptimizerConfig, Rates
#include "llmc/optim/sharding.h"          // ShardingPlan
#include "llmc/plan/step_trace.h"         // StepTrace
#include "llmc/run/step_config.h"         // StepConfig

// The properties of a GPU that the kernels' launchers need.
struct DescribedGpu {
    std::string name;
    int compute_capability = 90;  // of Hopper
    int num_sms = 0;
    size_t memory_bytes = 0, l2_bytes = 0;
};

struct TracedRun {
    const ParameterList& parameters;  // where the sharding places them
    const ShardingPlan& sharding;
    int rank = 0;
    OptimizerConfig rules;
    Rates rates;
    StepConfig step;
    ActivationPolicy passes;
    bool has_documents = false;
    std::string attention = "auto";  // as --attention
    bool deterministic = true;       // of cuDNN's backward pass
    DescribedGpu gpu;
};

StepTrace trace_step(const TracedRun& run);

// Bytes of workspace that the ops of such a step need, including the optimizer's.
class TracedWorkspace {
public:
    explicit TracedWorkspace(const TracedRun& run);
    size_t bytes(int64_t B, int64_t seq_len) const;

private:
    TracedRun run_;
    size_t optimizer_bytes_;
};

/*
`plan --fit`: how to run a model on a GPU that is only described. It plans every combination of the choices that trade
memory for time or exchange, except those that flags fix, and sorts the plans by predicted tokens per second:

  ./train_gpt plan --fit --gpu 4090 --model gpt2-1558M --seq-len 1024

Micro-batch and recomputation are chosen for each combination as --batch-size auto does (llmc/run/run_config.h).
*/
#pragma once
#include <memory>
#include <string>
#include <vector>
#include "llmc/plan/plan.h"  // RunPlan, Calibration

struct Fit {
    std::string choice;  // " --zero-stage 2 --moments bf16": what the search added; "": nothing
    RunPlan plan;
};

// Those that fit, the fastest first, then those that do not, the smallest first.
std::vector<Fit> fit_run(const RunFlags& asked, const GptShape& shape, const Gpu& gpu, int world_size,
                         std::shared_ptr<const Calibration> calibration = nullptr);
std::string text_of(const std::vector<Fit>& fits);

/*
What a run says of itself before its first step: lines on stdout, and the first record of its log.

  const StartReport report{.request = request, .config = config, ...};
  RunLog log = report.begin_log(state, read_bytes);       rank 0, of a training run; prints the flags
  report.print(comm.describe(), placement.text);          rank 0: model, batch, recipe, data, device, kernels
  report.print_evaluated();                               rank 0, of `eval` instead
*/
#pragma once
#include <cstdint>
#include <string>
#include "llmc/comm/islands.h"         // IslandPlace
#include "llmc/train/checkpointing.h"  // RunState
#include "llmc/train/devices.h"        // KernelFacts
#include "llmc/train/log.h"            // RunLog, ReadBytes
#include "llmc/train/peak_flops.h"     // DevicePeak
#include "llmc/train/run_config.h"     // RunConfig
#include "llmc/train/run_inputs.h"     // RunInputs
#include "llmc/train/run_request.h"    // RunRequest

struct StartReport {
    const RunRequest& request;
    const RunConfig& config;
    const RunInputs& data;
    const KnownTokenizer& tokenizer;
    std::string device;  // describe(device)
    bool on_gpu;
    const char* type;  // of weights: "fp32"
    int num_ranks;
    IslandPlace place;
    int64_t outer_size;  // with islands: values of this rank's outer state
    KernelFacts kernels;
    int64_t head_rows;  // of logits at a time
    int64_t num_parameters;
    double flops_per_token;
    DevicePeak peak;        // of this rank's device
    double all_peak_flops;  // of all ranks'

    RunLog begin_log(const RunState& state, const ReadBytes& read_bytes) const;
    // `ranks`: what joins them. `placement`: where their parts of a checkpoint go.
    void print(const std::string& ranks, const std::string& placement) const;
    void print_evaluated() const;

private:
    RunFacts facts() const;
    std::string peak_line() const;
    std::string kernel_line() const;
    std::string islands_line() const;
};

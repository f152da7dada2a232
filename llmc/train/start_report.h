/*
The report of a run before its first step: lines on stdout, and the first record of its log. On rank 0:

  const StartReport report{.request = request, .config = config, ...};
  RunLog log = report.begin_log(state, read_bytes);       opens the log of a training run and prints the flags
  report.print(comm.describe(), placement.text);          prints model, batch, recipe, data, device, kernels
  report.print_evaluated();                               the command `eval` prints this instead
*/
#pragma once
#include <cstdint>
#include <string>
#include "llmc/checkpoint/run_state.h"  // RunState
#include "llmc/comm/launch/islands.h"   // IslandPlace
#include "llmc/run/log.h"               // RunLog, ReadBytes
#include "llmc/run/peak_flops.h"        // DevicePeak
#include "llmc/run/run_config.h"        // RunConfig
#include "llmc/train/devices.h"         // KernelFacts
#include "llmc/train/run_inputs.h"      // RunInputs
#include "llmc/train/run_request.h"     // RunRequest

struct StartReport {
    const RunRequest& request;
    const RunConfig& config;
    const RunInputs& data;
    const KnownTokenizer& tokenizer;
    std::string device;  // describe(device)
    bool on_gpu;
    const char* type;  // type_name() of the weights: "fp32"
    int num_ranks;
    IslandPlace place;
    int64_t outer_size;  // elements of this rank's outer state; 0 without islands
    KernelFacts kernels;
    int64_t head_rows;  // rows of logits computed at a time
    int64_t num_parameters, num_learned;
    double flops_per_token;
    DevicePeak peak;        // this rank's device
    double all_peak_flops;  // FLOP/s, the sum over all ranks' devices; 0: not known

    RunLog begin_log(const RunState& state, const ReadBytes& read_bytes) const;
    // `ranks`: what connects them, as Comm::describe() says it. `placement`: where ranks write their parts of a
    // checkpoint, as Placement::text says it.
    void print(const std::string& ranks, const std::string& placement) const;
    void print_evaluated() const;

private:
    RunFacts facts() const;
    void say(const std::string& text) const;
    std::string rate_line(const RunState& state) const;
    std::string data_line() const;
    std::string peak_line() const;
    std::string kernel_line() const;
    std::string islands_line() const;
};

/*
Turns the results of steps into records for the log, and computes MFU (model FLOPs utilization, Chowdhery et al., 2022,
arXiv:2204.02311, appendix B).

  StepMeter meter(config, parameters, all_peak_flops, is_alone);
  log.step(meter.record(state.step, result, start, step_s, cost));        once per step, in order
  meter.mfu_so_far(state)                                                 of the whole run
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/checkpoint/run_state.h"  // RunState
#include "llmc/data/loader.h"           // LoaderState
#include "llmc/model/flops.h"           // flops_per_token
#include "llmc/optim/schedule.h"        // learning_rate
#include "llmc/run/log.h"               // StepRecord
#include "llmc/run/noise_scale.h"       // NoiseScale
#include "llmc/run/run_config.h"        // RunConfig
#include "llmc/run/step_config.h"       // StepResult
#include "llmc/train/rank_watch.h"      // CommCost

// What is known of a step when it is started.
struct StepStart {
    LoaderState data = {};      // before the step reads its batches
    int64_t schedule_step = 0;  // the step at which the schedules are evaluated
    double cropped = 0;         // RunInputs::cropped() after the step has read its batches
};

class StepMeter {
public:
    // `all_peak_flops`: FLOP/s, the sum over all ranks; 0: not known. `is_alone`: there is one rank.
    StepMeter(const RunConfig& config, const ParameterList& list, double all_peak_flops, bool is_alone)
        : flops_per_token(::flops_per_token(list, config.step.T)),
          all_peak_flops(all_peak_flops),
          config_(config),
          list_(list),
          is_alone_(is_alone) {}

    const double flops_per_token, all_peak_flops;  // per token of sequences of --seq-len

    // `before`: how many steps the run has done before this one. `step_s`: its wall time in seconds.
    StepRecord record(int64_t before, const StepResult& step, const StepStart& start, double step_s,
                      const CommCost& cost) {
        const StepConfig& how = config_.step_at(before);
        if (how.noise_scale)
            noise_scale_.add(double(step.targets()) / double(how.parts()), step.part_squared(how),
                             double(step.targets()), step.norm * step.norm);
        return {.step = before + 1,
                .loss = step.loss,
                .norm = step.norm,
                .lr = learning_rate(config_.schedule, start.schedule_step),
                .ms = step_s * 1e3,
                .tokens = how.tokens_of_all(),
                .ignored = how.num_tokens() - step.targets(),
                .has_comm = !is_alone_,
                .comm_ms = cost.ms,
                .comm_exposed_ms = cost.exposed_ms,
                .comm_predicted_ms = cost.predicted_ms,
                .noise_scale = how.noise_scale ? noise_scale_.tokens() : 0,
                .mfu = mfu(flops_of(how), double(how.tokens_of_all()), step_s),
                .saturated = config_.flags.amax_history() > 0 ? int64_t(step.sums.saturated) : -1,
                .cropped = start.cropped};
    }

    // MFU over all steps whose time is counted: with schedule-by = time the first few are not (kUncountedSteps).
    double mfu_so_far(const RunState& state) const {
        const int64_t uncounted = config_.by_time() ? std::min(state.step, RunConfig::kUncountedSteps) : 0;
        const double average = config_.stages.empty() || state.step == 0
                                   ? flops_per_token
                                   : config_.total(state.step, [&](const StepConfig& how) {
                                         return flops_of(how) * double(how.tokens_of_all());
                                     }) / config_.tokens_of(state.step);
        return mfu(average, double(state.tokens) - config_.tokens_of(uncounted), state.training_s);
    }

private:
    const RunConfig& config_;
    const ParameterList& list_;
    const bool is_alone_;
    NoiseScale noise_scale_;

    // A fraction of 1; 0 if it is not known.
    double mfu(double flops, double tokens, double seconds) const {
        return all_peak_flops > 0 && seconds > 0 ? flops * tokens / (seconds * all_peak_flops) : 0;
    }
    // Per token.
    double flops_of(const StepConfig& how) const {
        return how.T == config_.step.T ? flops_per_token : ::flops_per_token(list_, how.T);
    }
};

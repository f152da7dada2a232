/*
What is measured of a run's steps: their records in the log, and MFU.

  StepMeter meter(config, flops_per_token, all_peak_flops, is_alone);
  log.step(meter.record(state.step, result, start, step_s, cost));        once per step, in order
  meter.mfu_so_far(state)
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include "llmc/data/loader.h"          // LoaderState
#include "llmc/optim/schedule.h"       // learning_rate
#include "llmc/train/checkpointing.h"  // RunState
#include "llmc/train/log.h"            // StepRecord
#include "llmc/train/noise_scale.h"    // NoiseScale
#include "llmc/train/rank_watch.h"     // CommCost
#include "llmc/train/run_config.h"     // RunConfig
#include "llmc/train/step.h"           // StepResult

// What is known of a step when it is started.
struct StepStart {
    LoaderState data = {};      // before it
    int64_t schedule_step = 0;  // where the schedules are
    double cropped = 0;         // up to it: DataLoader::cropped()
};

class StepMeter {
public:
    // `all_peak_flops`: of all ranks; 0: not known. `is_alone`: there is no communication.
    StepMeter(const RunConfig& config, double flops_per_token, double all_peak_flops, bool is_alone)
        : flops_per_token(flops_per_token), all_peak_flops(all_peak_flops), config_(config), is_alone_(is_alone) {}

    const double flops_per_token, all_peak_flops;

    // `before`: steps that were done before it. `step_s`: its wall time.
    StepRecord record(int64_t before, const StepResult& step, const StepStart& start, double step_s,
                      const CommCost& cost) {
        const StepConfig& how = config_.step;
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
                .mfu = mfu(double(how.tokens_of_all()), step_s),
                .saturated = config_.flags.amax_history() > 0 ? int64_t(step.sums.saturated) : -1,
                .cropped = start.cropped};
    }

    // Of the steps whose time is counted.
    double mfu_so_far(const RunState& state) const {
        const int64_t uncounted = config_.by_time() ? std::min(state.step, RunConfig::kUncountedSteps) : 0;
        return mfu(double(state.tokens) - double(uncounted * config_.step.tokens_of_all()), state.training_s);
    }

private:
    const RunConfig& config_;
    const bool is_alone_;
    NoiseScale noise_scale_;

    double mfu(double tokens, double seconds) const {
        return all_peak_flops > 0 && seconds > 0 ? flops_per_token * tokens / (seconds * all_peak_flops) : 0;
    }
};

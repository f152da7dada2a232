/*
The configuration of a run, with every number filled in. Batch, run length and learning rates follow from flags, model
and number of ranks. Values that were given are kept. The others are derived:

  --depth               recipe, batch, steps and weight decay by nanochat's scaling laws (scaling.h)
  --batch-size auto     divides a step's sequences and fits in memory: the fastest that is predicted, together with
                        --recompute, or without a prediction the largest
  --steps               else from --target-flops or --target-param-data-ratio; else 2000
  schedule-by           time if --time-budget is given and --steps is not

  const Decision decision = decide(flags, shape, world_size, fits);         rank 0, which sends it to the others
  const RunConfig config(decision, shape, world_size, rank);                made once, and never changed
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>
#include "llmc/model/shape.h"      // GptShape
#include "llmc/optim/recipe.h"     // Recipe
#include "llmc/optim/schedule.h"   // Schedule
#include "llmc/optim/sharding.h"   // ShardingOptions
#include "llmc/run/run_flags.h"    // RunFlags
#include "llmc/run/scaling.h"      // Scaling
#include "llmc/run/shares.h"       // Shares
#include "llmc/run/step_config.h"  // StepConfig

// The default number of sequences per micro-batch.
inline constexpr int kDefaultBatchSize = 12;

// The values that the flags left open.
struct Decision {
    RunFlags flags;  // with batch, run length and token counts filled in
    Scaling scaling = {};
    std::string derivation;  // each derived number with its formula, a line each; empty: nothing was derived
    Shares shares = {};      // if ranks have unequal shares; else empty
};

struct RunConfig {
    RunFlags flags;  // those of the Decision
    GptShape shape{};
    StepConfig step{};  // B, T, micro-batches of this rank; ranks
    // If batch or length grows: steps, and how they and the later ones are, the first from step 0 on. Else empty.
    // `step` has the first one's tokens in sequences of --seq-len, for which memory is taken.
    std::vector<std::pair<int64_t, StepConfig>> stages = {};
    Shares shares = {};  // of all ranks; with --balance auto, at the start
    int64_t steps = 0;   // of the whole run; with schedule-by = time, the length of the schedules in steps
    Scaling scaling = {};
    Recipe recipe = {};      // scaled to this run's batch and length
    Schedule schedule = {};  // of the learning rate
    std::string derivation;

    RunConfig() = default;
    RunConfig(const Decision& decision, const GptShape& shape, int64_t world_size, int rank = 0);

    bool by_time() const { return flags.schedule_by == "time"; }
    int64_t shown_steps() const { return by_time() ? 0 : steps; }  // for the log; 0: there is no last one
    // The schedules' position at this step, counted from 0, in a run that has trained for training_s seconds.
    int64_t schedule_step(int64_t at_step, double training_s) const {
        return by_time() ? int64_t(std::min(training_s / flags.time_budget_s, 1.0) * double(steps)) : at_step;
    }
    // The first steps warm up the machine and do not count toward a budget that schedules follow, as in autoresearch
    // (Karpathy, 2026, train.py).
    static constexpr int64_t kUncountedSteps = 10;
    bool counts_time(int64_t at_step) const { return !by_time() || at_step >= kUncountedSteps; }

    const StepConfig& step_at(int64_t at_step) const {
        const StepConfig* found = &step;
        for (const auto& [first, how] : stages)
            if (first <= at_step) found = &how;
        return *found;
    }
    // The sum of what each(StepConfig) is, over the first `num_steps` steps.
    template <class Each>
    double total(int64_t num_steps, Each each) const {
        double sum = 0;
        for (int64_t at = 0, next = 0; at < num_steps; at = next) {
            next = num_steps;
            for (const auto& [first, how] : stages)
                if (first > at) next = std::min(next, first);
            sum += double(next - at) * each(step_at(at));
        }
        return sum;
    }
    double tokens_of(int64_t num_steps) const {
        return total(num_steps, [](const StepConfig& how) { return double(how.tokens_of_all()); });
    }

    // The fraction of every attention window at this step, counted from 0.
    double window_fraction(int64_t at_step) const {
        const int64_t warmup = flags.window_warmup_steps;
        return warmup > 0 ? std::min(1.0, double(at_step + 1) / double(warmup)) : 1;
    }
};

// Whether a step of such micro-batches fits in memory.
using Fits = std::function<bool(const StepConfig&)>;
// The predicted tokens per second of a run with these flags, whose batch size is given; 0: not known.
using Speed = std::function<double(const RunFlags&)>;

// Fills in the flags. `batch_sizes`: each rank's --batch-size, 0 for auto, -1 for none; empty: all have that of
// `asked`. Without `speed` nothing is predicted.
Decision decide(const RunFlags& asked, const GptShape& shape, int64_t world_size, const Fits& fits,
                const std::vector<int>& batch_sizes = {}, const Speed& speed = nullptr);

// A decision as text to send, and back. Flags of one process (--rank, --threads, ...) are taken from `own`.
std::string text_of(const Decision& decision);
Decision received(const std::string& text, const RunFlags& own);

// Micro-batches of each rank per step. Throws an Error that names the nearest total batch sizes that work, and batch
// sizes with which the given total would.
int64_t grad_accumulation(const RunFlags& flags, int64_t batch_size, int64_t seq_len, int64_t world_size);
// How parameters are assigned to the ranks.
ShardingOptions sharding_options(const RunFlags& flags, int world_size);
// A step with this many sequences per micro-batch.
StepConfig step_config(const RunFlags& flags, int64_t batch_size, int64_t seq_len, int64_t world_size);

// The four factors of a step: "8 sequences x 1024 tokens x 4 micro-batches x 16 ranks = 524288 tokens per step".
std::string batch_text(const StepConfig& step);
// For unequal shares: "12 sequences x 64 tokens x (3 + 1) micro-batches = 3072 tokens per step". If steps grow:
// "...; from step 1000 on ...".
std::string batch_text(const RunConfig& config);

/*
When a run ends and why: its last step, its time budget, a signal, no lower validation loss, or too many skipped steps.
Also after which steps periodic work is due; with islands, only after an outer step.

  RunEnd end(config, world, state);
  if (end.stop_reason() || end.out_of_time() || end.is_last(state.step)) ...
  if (end.is_due(state.step, every)) ...                              for work that is done every `every` steps
  end.apply_votes(count(Vote::stop) > 0, count(Vote::out_of_time) > 0);    after a step: whether any rank cast these
  end.check_skipped(unlearned, cropped);                              an Error after too many skipped steps
  end.reason()                                                        "finished"
  end.budget_text()                                                   that the time budget ended it before --steps

A request by one rank takes effect on all ranks at the end of the step that carries its vote.
*/
#pragma once
#include <cstdint>
#include <string>
#include "llmc/base/check.h"            // format
#include "llmc/checkpoint/run_state.h"  // RunState
#include "llmc/comm/ranks.h"            // SharedError
#include "llmc/io/checkpoint.h"         // checkpoint_steps
#include "llmc/run/run_config.h"        // RunConfig
#include "llmc/run/stop.h"              // stop_signal
#include "llmc/train/world.h"           // World

inline constexpr int64_t kMostSkippedInARow = 10;

// Why targets are not learned and what to do, for an error. `cropped`: DataLoader::cropped().
inline std::string unlearned_advice(const char* data, int64_t T, double cropped) {
    if (cropped > 0)
        return format(
            "what is learned does not fit into --seq-len %ld (%.0f%% of the tokens are cropped): raise it, "
            "or shorten the documents of %s",
            T, 100 * cropped, data);
    return format(
        "the masks of %s leave nothing in these rows of --seq-len %ld tokens: raise it, or prepare the data "
        "again",
        data, T);
}

class RunEnd {
public:
    RunEnd(const RunConfig& config, const World& world, const RunState& state)
        : config_(config),
          flags_(config.flags),
          has_islands_(flags_.islands_of_run() > 0),
          decides_alone_(world.is_alone() && !has_islands_),
          is_first_(world.is_first()),
          state_(state) {}

    // Call it once `state` is set to the run's initial state.
    void begin() { all_out_of_time_ = out_of_time_here(); }

    // ---- steps

    // Whether the run is over after `step` steps. With schedule-by = time the number of steps is not known.
    bool is_last(int64_t step) const { return !config_.by_time() && step >= config_.steps; }
    bool is_outer_step(int64_t step) const { return has_islands_ && (step % flags_.outer_every == 0 || is_last(step)); }
    // Whether work that is done every `every` steps (0: never) is due after `step` steps. With islands: after an outer
    // step, if it became due since the previous outer step.
    bool is_due(int64_t step, int64_t every) const {
        if (every <= 0 || step <= 0) return false;
        if (!has_islands_) return step % every == 0;
        const int64_t before = (step - 1) / flags_.outer_every * flags_.outer_every;
        return is_outer_step(step) && step / every > before / every;
    }

    // ---- reasons

    bool out_of_time_here() const { return flags_.time_budget_s > 0 && state_.training_s >= flags_.time_budget_s; }
    bool out_of_time() const { return decides_alone_ ? out_of_time_here() : all_out_of_time_; }
    // The request to stop before the end: "SIGTERM", "a signal to another rank". Null: none.
    const char* stop_reason() const {
        if (decides_alone_ || (all_stop_ && stop_signal())) return stop_signal();
        return all_stop_ ? "a signal to another rank" : nullptr;
    }
    bool is_out_of_patience() const { return flags_.patience > 0 && state_.best.worse >= flags_.patience; }

    void apply_votes(bool stop, bool out_of_time) {
        all_stop_ |= stop;
        all_out_of_time_ |= out_of_time;
    }

    // `unlearned`: how many of the last skipped steps had no target to learn.
    void check_skipped(int64_t unlearned, double cropped) const {
        if (unlearned >= kMostSkippedInARow)
            throw SharedError(kExitUsage,
                              format("%ld steps in a row, up to step %ld, had no target to learn: %s", unlearned,
                                     state_.step, unlearned_advice("--train-data", config_.step.T, cropped).c_str()));
        if (state_.skipped_in_a_row < kMostSkippedInARow) return;
        const bool has_saved = is_first_ && !checkpoint_steps(flags_.out_dir).empty();  // rank 0 prints the error
        throw SharedError(
            kExitDiverged,
            format("the loss or the gradient was not finite in %ld steps in a row, up to step %ld: %s "
                   "with a lower --learning-rate or a --grad-clip",
                   kMostSkippedInARow, state_.step, has_saved ? "resume from an earlier checkpoint" : "start again"));
    }

    // A line for the end of a run whose budget was used up before its last step; "" otherwise.
    std::string budget_text() const {
        if (reason() != "time budget" || config_.by_time() || is_last(state_.step)) return "";
        return format(
            "stopped at step %ld of %ld, before the end of its schedules: --time-budget %g is used up; a "
            "larger one, with --resume, continues\n",
            state_.step, config_.steps, flags_.time_budget_s);
    }

    std::string reason() const {
        const char* signal = stop_reason();
        return signal                 ? signal
               : out_of_time()        ? "time budget"
               : is_last(state_.step) ? "finished"
               : is_out_of_patience() ? "patience"
                                      : "finished";
    }

private:
    const RunConfig& config_;
    const RunFlags& flags_;
    const bool has_islands_;
    // False with islands, even with a single rank: a run may stop only in an outer step, whose state can be saved.
    const bool decides_alone_;
    const bool is_first_;
    const RunState& state_;
    bool all_stop_ = false, all_out_of_time_ = false;
};

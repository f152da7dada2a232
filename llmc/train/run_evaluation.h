/*
Evaluation of the model between steps: validation loss, scores on tasks, samples. All results go to the log.

  RunEvaluation<Device, T> evaluation(world, run, data, model, balance, state, log);
  evaluation.begin(checkpoint);                    once `state` is set to the run's initial state
  const bool is_best = evaluation.validate();      all ranks
  evaluation.score_tasks();                        all ranks
  evaluation.show_sample();                        all ranks; rank 0 generates it
  evaluation.fill(summary);                        with the latest results
  evaluation.print_best(reason);                   prints the best validation loss at the end of the run

Calls do nothing if the run lacks what they need: validation data, tasks or a prompt.
*/
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>
#include "llmc/base/rng.h"               // Rng
#include "llmc/checkpoint/run_state.h"   // RunState, validation_key
#include "llmc/comm/ranks.h"             // Ranks, SharedError
#include "llmc/data/utf8.h"              // printable
#include "llmc/eval/activation_sizes.h"  // activation_sizes
#include "llmc/eval/loss.h"              // evaluate
#include "llmc/eval/sample.h"            // sample
#include "llmc/eval/tasks.h"             // score_tasks
#include "llmc/io/checkpoint.h"          // best_step, checkpoint_path
#include "llmc/model/gpt.h"              // Gpt
#include "llmc/run/log.h"                // RunLog
#include "llmc/run/stop.h"               // stop_signal
#include "llmc/run/summary.h"            // RunSummary
#include "llmc/train/prepare.h"          // PreparedRun
#include "llmc/train/run_balance.h"      // RunBalance
#include "llmc/train/run_end.h"          // unlearned_advice
#include "llmc/train/run_inputs.h"       // RunInputs
#include "llmc/train/world.h"            // World

template <class Device, class T>
class RunEvaluation {
public:
    RunEvaluation(World& world, const PreparedRun<Device, T>& run, RunInputs& data, Gpt<Device, T>& model,
                  const RunBalance<Device, T>& balance, RunState& state, RunLog& log)
        : world_(world),
          ranks_(world.ranks),
          config_(run.config),
          flags_(run.config.flags),
          tokenizer_(run.tokenizer),
          data_(data),
          model_(model),
          balance_(balance),
          state_(state),
          log_(log) {}

    // Discards the checkpoint's best loss if it is of other validation data. `checkpoint`: its path, for the warning.
    void begin(const std::string& checkpoint) {
        if (!data_.val || !flags_.trains()) return;
        const uint64_t key = validation_key(flags_, data_.val->data_hash(), config_.step.T);
        if (state_.best.loss && state_.best.key != key && tells_best() && world_.is_first())
            std::fprintf(stderr,
                         "warning: not the validation data, --val-tokens, --seq-len or --packing that %s was validated "
                         "with: its best loss, %.4f, is no measure\n",
                         checkpoint.c_str(), *state_.best.loss);
        if (state_.best.key != key) state_.best = {.counted_step = state_.best.counted_step, .key = key};
    }

    // Computes and logs the validation loss. True if it is the run's lowest so far.
    bool validate() {
        if (!data_.val) return false;
        const Evaluation seen = evaluate(model_, *data_.val, ranks_, least_batch_size(balance_.shares()),
                                         config_.step.T, flags_.val_tokens, data_.token_bytes, stop_asked());
        is_stopped_ |= seen.is_stopped;
        if (seen.is_stopped) return false;
        seen_ = seen;
        // While steps are being skipped nothing is saved, so the weights cannot be kept as the best.
        const bool counts = flags_.trains() && state_.step > state_.best.counted_step && state_.skipped_in_a_row == 0,
                   is_best = counts && state_.best.add(state_.step, seen_.loss);
        seen_step_ = state_.step;
        if (seen_.targets == 0 && world_.is_first())
            std::fprintf(stderr, "warning: no validation loss: none of its targets is learned; %s\n",
                         unlearned_advice("--val-data", config_.step.T, data_.val->cropped()).c_str());
        log_.validation(state_.step, seen_.loss, seen_.bits_per_byte,
                        flags_.activation_sizes ? activation_sizes(model_) : std::map<std::string, double>());
        return is_best;
    }
    bool has_validated(int64_t step) const { return seen_step_ == step; }
    // A signal to any rank has ended a validation or the scoring of tasks. They have no result.
    bool is_stopped() const { return is_stopped_; }

    // An error ends the command `eval`, but is only a warning in a training run.
    void score_tasks() {
        if (data_.tasks.empty()) return;
        if (flags_.evaluates()) return score();
        run_optional("score", true, [&] { score(); });
    }

    void show_sample() {
        if (!data_.prompt.empty()) run_optional("sample", false, [&] { print_sample(); });
    }

    void fill(RunSummary& summary) const {
        summary.evaluation = seen_;
        summary.scores = scores_;
        if (tells_best()) summary.best_loss = state_.best.loss;
        summary.best_step = state_.best.step;
    }

    // Prints the best loss on rank 0, with --save-best or --patience.
    void print_best(const std::string& end_reason) const {
        if (!tells_best() || !world_.is_first() || !state_.best.loss) return;
        const int64_t step = state_.best.step;
        const std::string folder = checkpoint_path(flags_.out_dir, step);
        std::error_code ignored;
        const std::string place = best_step(flags_.out_dir) == step          ? "in " + flags_.out_dir + "/best"
                                  : std::filesystem::exists(folder, ignored) ? "in " + folder
                                                                             : "not kept";
        std::printf("best validation loss: %.4f at step %ld, %s\n", *state_.best.loss, step,
                    flags_.save_best ? place.c_str() : "not kept without --save-best");
        if (end_reason == "patience")
            std::printf("stopped early, at step %ld: no lower loss in the last %ld validations (--patience %ld)\n",
                        state_.step, state_.best.worse, flags_.patience);
        std::fflush(stdout);
    }

private:
    World& world_;
    Ranks& ranks_;
    const RunConfig& config_;
    const RunFlags& flags_;
    const KnownTokenizer& tokenizer_;
    RunInputs& data_;
    Gpt<Device, T>& model_;
    const RunBalance<Device, T>& balance_;
    RunState& state_;
    RunLog& log_;
    Evaluation seen_;         // the last validation's result
    int64_t seen_step_ = -1;  // the step of that validation
    bool is_stopped_ = false;
    std::vector<std::pair<std::string, double>> scores_;  // of the last score()

    bool tells_best() const { return flags_.trains() && (flags_.save_best || flags_.patience > 0); }

    // The signal is known to this rank only: each_batch() tells the others.
    static StopAsked stop_asked() {
        return [] { return stop_signal() != nullptr; };
    }

    void score() {
        using Clock = std::chrono::steady_clock;
        scores_.clear();
        for (const TaskFile& file : data_.tasks) {
            const Clock::time_point began = Clock::now();
            const TaskScores scores =
                ::score_tasks(model_, file, ranks_, least_batch_size(balance_.shares()), config_.step.T, stop_asked());
            is_stopped_ |= scores.is_stopped;
            if (scores.is_stopped) return;
            const double ms = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
            log_.tasks(state_.step, file.path(), scores.tasks, scores.score, ms);
            for (const TaskRecord& task : scores.tasks) scores_.push_back({"accuracy_" + task.name, task.accuracy()});
            if (scores.tasks.size() > 1) scores_.push_back({"score_" + file.stem(), scores.score});
        }
    }

    void print_sample() {
        if (!world_.is_first()) return;
        Rng rng(mix64(flags_.seed) + uint64_t(state_.step), Stream::sampling);  // a resumed run draws the same sample
        const std::vector<int32_t> tokens =
            sample(model_, data_.prompt, config_.step.T, tokenizer_.tokenizer->vocab_size(), flags_.sample(),
                   Context::cached, rng, stop_asked());
        if (stop_signal()) return;  // it is not complete
        log_.sample(state_.step, flags_.prompt, tokenizer_.tokenizer->decode(tokens));
    }

    // Runs something optional, such as a sample: if it fails, the run continues with a warning. With several ranks this
    // requires that all of them know of the error, or that rank 0 works alone (`together` is false). Otherwise ranks
    // would wait for each other, so the error is rethrown.
    template <class Work>
    void run_optional(const char* what, bool together, Work&& work) {
        try {
            work();
        } catch (const std::exception& error) {
            const Error* const ours = dynamic_cast<const Error*>(&error);
            const bool all_know = world_.is_alone() || !together || dynamic_cast<const SharedError*>(&error);
            if (!all_know || (ours && ours->exit_code == kExitRank)) throw;
            if (world_.is_first())
                std::fprintf(stderr, "warning: no %s at step %ld: %s\n", what, state_.step,
                             printable(error.what()).c_str());
            log_.warning(state_.step, what, error.what());
        }
    }
};

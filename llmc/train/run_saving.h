/*
A run's checkpoints: which steps are saved or being saved, and which one is the best. Saver (saving.h) and LocalSaver
(local_saving.h) write them.

  RunSaving<Device, T> saving(flags, ranks, model, sharded, log);
  saving.look(state, resumed, validates);            rank 0, once the log is open: looks for checkpoints in --out-dir
  saving.open(step, in_processes, local_run);        all ranks, after look()
  saving.save(step, texts, and_wait);                all ranks; first waits for the save before
  saving.add_votes(votes);                           in every step: this rank's votes about its part
  saving.advance(count);                             after every step; count(vote): how many ranks cast it
  saving.finish();                                   all ranks: waits until the checkpoint is complete on disk

Votes about a save may arrive after it is over. They cannot be taken for votes about the next save, because that begins
when no step is in flight.
*/
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>
#include "llmc/comm/ranks.h"               // Ranks, on_first_rank
#include "llmc/io/checkpoint.h"            // checkpoint_path, mark_best, prune
#include "llmc/model/gpt.h"                // Gpt
#include "llmc/train/checkpointing.h"      // RunState, ShardedState
#include "llmc/train/local_checkpoints.h"  // open_local, forget_local
#include "llmc/train/local_saving.h"       // LocalSaver
#include "llmc/train/log.h"                // RunLog
#include "llmc/train/placement.h"          // find_placement
#include "llmc/train/run_flags.h"          // RunFlags
#include "llmc/train/saving.h"             // Saver
#include "llmc/train/step.h"               // Vote
#include "llmc/train/supervise.h"          // Supervised

template <class Device, class T>
class RunSaving {
public:
    bool log_may_fail = false;  // ignore errors of the log: the run is ending with an error, which may be the log's

    RunSaving(const RunFlags& flags, Ranks& ranks, Gpt<Device, T>& model, const ShardedState<Device, T>& sharded,
              RunLog& log)
        : flags_(flags),
          ranks_(ranks),
          log_(log),
          local_(ranks, model, sharded),
          saver_(flags.out_dir, ranks, model, sharded) {}

    // `validates`: a validation is due before the first step anyway.
    void look(const RunState& state, bool resumed, bool validates) {
        first_is_saved_ = std::filesystem::exists(checkpoint_path(flags_.out_dir, state.step));
        if (!resumed || !first_is_saved_) return;
        // Incomplete files of a run that was killed during a save: this run may end without another save.
        remove_leftovers(flags_.out_dir);
        best_is_unknown_ = find_best(state, validates);
        prune(flags_.out_dir, flags_.keep, state.step);
    }

    // `in_processes`: ranks are processes, possibly on hosts with separate disks.
    void open(int64_t first_step, bool in_processes, const std::string& local_run) {
        first_step_ = first_step;
        first_is_saved_ = ranks_.broadcast(first_is_saved_ ? "yes" : "") == "yes";
        best_is_unknown_ = ranks_.broadcast(best_is_unknown_ ? "yes" : "") == "yes";
        if (in_processes) saver_.place(find_placement(ranks_, flags_.out_dir, flags_.checkpoint_to));
        if (flags_.local_every > 0) local_.open(open_local(ranks_, flags_.out_dir, flags_.checkpoint_local, local_run));
    }
    const std::string& placement_text() const { return saver_.placement().text; }
    // The checkpoint from which this run resumes is marked as the best, but its validation loss is not known.
    bool best_is_unknown() const { return best_is_unknown_; }

    // Whether the step is saved or being saved. The first step of a resumed run is saved already.
    bool is_saved(int64_t step) const { return (step == first_step_ && first_is_saved_) || has_begun(step); }
    bool has_begun(int64_t step) const { return step == begun_step_; }  // save() was last called for this step
    bool is_failing() const { return is_saving_; }                      // an error came from the save itself

    void save(int64_t step, const SavedTexts& texts, bool and_wait) {
        finish();
        is_saving_ = true;
        saver_.begin(step, texts, [this, is_best = step == best_begun_](const SavedCheckpoint& saved) {
            if (is_best) mark_best(flags_.out_dir, saved.step);
            prune(flags_.out_dir, flags_.keep, saved.step);
        });
        begun_step_ = step;
        is_saving_ = false;
        if (and_wait) finish();
    }

    // Marks the checkpoint of this step as the best. False: there is none yet; the next save() of the step marks it.
    bool keep_as_best(int64_t step) {
        finish();
        best_begun_ = step;
        if (!is_saved(step)) return false;
        on_first_rank(ranks_, [&] { mark_best(flags_.out_dir, step); });
        return true;
    }

    void finish() {
        if (!saver_.is_under_way()) return;
        is_saving_ = true;
        const SavedCheckpoint saved = saver_.finish();
        is_saving_ = false;
        Supervised::say_saved();
        on_first_rank(ranks_, [&] {
            try {
                log_.checkpoint(saved.step, saved.path, saved.ms);
            } catch (const Error&) {
                if (!log_may_fail) throw;
            }
        });
    }

    // ---- local checkpoints

    bool is_local_on() const { return local_.is_on(); }
    // Not if the step is saved to --out-dir, or if a rank is still writing the previous local checkpoint.
    bool wants_local(int64_t step) const {
        return local_.is_on() && !local_.is_under_way() && !is_saved(step) && step != first_step_;
    }
    void save_local(int64_t step, const SavedTexts& texts) { local_.begin(step, texts); }
    // Removes the local checkpoints, once the last checkpoint in --out-dir is complete.
    void end_local() {
        if (!local_.is_on()) return;
        local_.end();
        on_first_rank(ranks_, [&] { forget_local(flags_.out_dir); });
    }

    // ---- votes in steps

    void add_votes(std::vector<Vote>& votes) const {
        if (saver_.is_written()) votes.push_back(Vote::written);
        if (saver_.is_committed()) votes.push_back(Vote::committed);
        if (local_.is_over()) votes.push_back(Vote::local_over);
        if (local_.has_failed()) votes.push_back(Vote::local_failed);
    }

    template <class Count>
    void advance(Count&& count) {
        if (saver_.is_committing()) {
            if (count(Vote::committed) > 0) finish();
        } else if (saver_.is_under_way() && count(Vote::written) == ranks_.world_size) {
            is_saving_ = true;
            saver_.commit();
            is_saving_ = false;
        }
        if (local_.is_under_way() && count(Vote::local_over) == ranks_.world_size)
            local_.finish(count(Vote::local_failed) == 0);
    }

private:
    const RunFlags& flags_;
    Ranks& ranks_;
    RunLog& log_;  // writes on rank 0 only
    int64_t first_step_ = 0;
    bool first_is_saved_ = false, best_is_unknown_ = false;
    int64_t begun_step_ = -1;  // the step of the last save()
    int64_t best_begun_ = -1;  // the step of the last keep_as_best()
    bool is_saving_ = false;
    LocalSaver<Device, T> local_;
    Saver<Device, T> saver_;

    // After a resume: makes the mark of the best checkpoint agree with the state, since the run may have been killed
    // between a save and its mark. If the checkpoint was validated only after it had been saved, it has the mark, but
    // its state does not have the loss. Then returns true, unless a validation is due anyway.
    bool find_best(const RunState& state, bool validates) const {
        if (!flags_.save_best) return false;
        const int64_t marked = best_step(flags_.out_dir), best = state.best.step;
        if (marked == state.step && best != marked) return !validates;
        if (best >= 0 && std::filesystem::exists(checkpoint_path(flags_.out_dir, best)))
            mark_best(flags_.out_dir, best);
        return false;
    }
};

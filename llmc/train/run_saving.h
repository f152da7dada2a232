/*
A run's checkpoints: which step is saved already or on its way to the disk, and which one is the best. Saver and
LocalSaver write them (saving.h, local_saving.h).

  RunSaving<Device, T> saving(flags, ranks, model, sharded, log);
  saving.look(state, resumed, validates);            rank 0, once it has the log: what is in --out-dir already
  saving.open(step, in_processes, local_run);        all ranks, after it
  saving.save(step, texts, and_wait);                all ranks; waits for the one before
  saving.add_votes(votes);                           what this rank has to say of its part, in every step
  saving.advance(count);                             count(vote): how many ranks have said it, in the same step
  saving.finish();                                   all ranks: waits until all is on the disk

What ranks say of a save may come when it is over: then it is of none, for the next one begins when no step is under
way.
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
    bool log_may_fail = false;  // of a run that ends by an error, which may be the log's

    RunSaving(const RunFlags& flags, Ranks& ranks, Gpt<Device, T>& model, const ShardedState<Device, T>& sharded,
              RunLog& log)
        : flags_(flags),
          ranks_(ranks),
          log_(log),
          local_(ranks, model, sharded),
          saver_(flags.out_dir, ranks, model, sharded) {}

    // `validates`: the first step's validation is due anyhow.
    void look(const RunState& state, bool resumed, bool validates) {
        first_is_saved_ = std::filesystem::exists(checkpoint_path(flags_.out_dir, state.step));
        if (!resumed || !first_is_saved_) return;
        // What a run that was killed while it saved has left, if this one has nothing more to save.
        remove_leftovers(flags_.out_dir);
        best_is_unknown_ = find_best(state, validates);
        prune(flags_.out_dir, flags_.keep, state.step);
    }

    // `in_processes`: each rank may have a disk of its own.
    void open(int64_t first_step, bool in_processes, const std::string& local_run) {
        first_step_ = first_step;
        first_is_saved_ = ranks_.broadcast(first_is_saved_ ? "yes" : "") == "yes";
        best_is_unknown_ = ranks_.broadcast(best_is_unknown_ ? "yes" : "") == "yes";
        if (in_processes) saver_.place(find_placement(ranks_, flags_.out_dir, flags_.checkpoint_to));
        if (flags_.local_every > 0) local_.open(open_local(ranks_, flags_.out_dir, flags_.checkpoint_local, local_run));
    }
    const std::string& placement_text() const { return saver_.placement().text; }
    // The first step is that of a checkpoint that may be the best one, and its validation loss is not known.
    bool best_is_unknown() const { return best_is_unknown_; }

    // On the disk already, as the state of a resumed run which has made no step, or on its way there.
    bool is_saved(int64_t step) const { return (step == first_step_ && first_is_saved_) || has_begun(step); }
    bool has_begun(int64_t step) const { return step == begun_step_; }  // here, as the last one
    bool is_failing() const { return is_saving_; }                      // what fails now is the save itself

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

    // Keeps the checkpoint of this step as the best one. False: there is none yet, and it is the best once it is saved.
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
    // Unless this step's goes to --out-dir, or a rank still writes the one before.
    bool wants_local(int64_t step) const {
        return local_.is_on() && !local_.is_under_way() && !is_saved(step) && step != first_step_;
    }
    void save_local(int64_t step, const SavedTexts& texts) { local_.begin(step, texts); }
    // The last checkpoint in --out-dir is complete.
    void end_local() {
        if (!local_.is_on()) return;
        local_.end();
        on_first_rank(ranks_, [&] { forget_local(flags_.out_dir); });
    }

    // ---- while steps are made

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
    RunLog& log_;  // of the ranks, the first one speaks
    int64_t first_step_ = 0;
    bool first_is_saved_ = false, best_is_unknown_ = false;
    int64_t begun_step_ = -1;  // whose save was begun last
    int64_t best_begun_ = -1;  // that of the best one so far
    bool is_saving_ = false;
    LocalSaver<Device, T> local_;
    Saver<Device, T> saver_;

    // After a resume: a kill may have come between a checkpoint and its mark, or the best one was validated when it
    // had been saved already. True in the latter case, unless that validation is due again anyhow: its loss is not
    // known.
    bool find_best(const RunState& state, bool validates) const {
        if (!flags_.save_best) return false;
        const int64_t marked = best_step(flags_.out_dir), best = state.best.step;
        if (marked == state.step && best != marked) return !validates;
        if (best >= 0 && std::filesystem::exists(checkpoint_path(flags_.out_dir, best)))
            mark_best(flags_.out_dir, best);
        return false;
    }
};

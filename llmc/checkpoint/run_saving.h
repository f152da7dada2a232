/*
A run's checkpoints: which steps are saved or being saved, and which one is the best. Saver (saving.h) writes them.

  RunSaving<Device, T> saving(flags, ranks, model, sharded, log);
  saving.open(state, resumed, validates, in_processes);   all ranks, once the log is open: looks into --out-dir
  saving.save(step, texts, and_wait);                all ranks; first waits for the save before
  saving.add_votes(votes);                           in every step: this rank's votes about its part
  saving.advance(count);                             after every step; count(vote): how many ranks cast it
  saving.finish();                                   all ranks: waits until the checkpoint is complete on disk

Votes about a save may arrive after it is over. They cannot be taken for votes about the next save, because that begins
when no step is in flight.
*/
#pragma once
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>
#include "llmc/checkpoint/checkpointing.h"  // RunState, ShardedState
#include "llmc/checkpoint/placement.h"      // find_placement
#include "llmc/checkpoint/saving.h"         // Saver
#include "llmc/comm/ranks.h"                // Ranks, on_first_rank
#include "llmc/data/utf8.h"                 // printable
#include "llmc/io/checkpoint.h"             // checkpoint_path, mark_best, prune, remove_leftovers
#include "llmc/model/gpt.h"                 // Gpt
#include "llmc/run/log.h"                   // RunLog
#include "llmc/run/run_flags.h"             // RunFlags
#include "llmc/run/step_config.h"           // Vote
#include "llmc/run/supervise.h"             // Supervised

template <class Device, class T>
class RunSaving {
public:
    bool log_may_fail = false;  // ignore errors of the log: the run is ending with an error, which may be the log's

    RunSaving(const RunFlags& flags, Ranks& ranks, Gpt<Device, T>& model, const ShardedState<Device, T>& sharded,
              RunLog& log)
        : flags_(flags), ranks_(ranks), log_(log), saver_(flags.out_dir, ranks, model, sharded) {}

    // `validates`: a validation is due before the first step anyway. `in_processes`: ranks are processes, possibly on
    // hosts with separate disks.
    void open(const RunState& state, bool resumed, bool validates, bool in_processes) {
        first_step_ = state.step;
        on_first_rank(ranks_, [&] {
            first_is_saved_ = std::filesystem::exists(checkpoint_path(flags_.out_dir, state.step));
            if (!resumed || !first_is_saved_) return;
            // A run that was killed during a save has left incomplete files, and this one may end without another save.
            int64_t best = -1;
            best_is_unknown_ = find_best(state, validates, best);
            say(tidy(state.step, best), state.step);
        });
        first_is_saved_ = ranks_.broadcast(first_is_saved_ ? "yes" : "") == "yes";
        best_is_unknown_ = ranks_.broadcast(best_is_unknown_ ? "yes" : "") == "yes";
        if (in_processes) saver_.place(find_placement(ranks_, flags_.out_dir, flags_.checkpoint_to));
    }
    const std::string& placement_text() const { return saver_.placement().text; }
    // The checkpoint from which this run resumes is marked as the best, but its validation loss is not known.
    bool best_is_unknown() const { return best_is_unknown_; }

    // Whether the step is saved or being saved. The first step of a resumed run is saved already.
    bool is_saved(int64_t step) const { return (step == first_step_ && first_is_saved_) || has_begun(step); }
    bool has_begun(int64_t step) const { return step == begun_step_; }  // save() was last called for this step

    void save(int64_t step, const SavedTexts& texts, bool and_wait) {
        finish();
        attempt([&] {
            saver_.begin(step, texts, [this, best = texts.best_step](const SavedCheckpoint& saved) {
                untidy_ = tidy(saved.step, flags_.save_best ? best : -1);
            });
        });
        begun_step_ = step;
        if (and_wait) finish();
    }

    // Marks the checkpoint of this step as the best. False: there is none yet; the next save() of the step marks it.
    bool keep_as_best(int64_t step) {
        finish();
        if (!is_saved(step)) return false;
        on_first_rank(ranks_, [&] {
            say({.link = why_not([&] { mark_best(flags_.out_dir, step); }), .files = {}, .log = {}}, step);
        });
        return true;
    }

    void finish() {
        if (!saver_.is_under_way()) return;
        SavedCheckpoint saved;
        attempt([&] { saved = saver_.finish(); });
        Supervised::say_saved();
        on_first_rank(ranks_, [&] {
            try {
                log_.checkpoint(saved.step, saved.path, saved.ms);
                if (!log_.is_in_place()) untidy_.log = log_.path() + " was renamed or removed, or its folder";
                say(untidy_, saved.step);
            } catch (const Error&) {
                if (!log_may_fail) throw;
            }
        });
    }

    // ---- votes in steps

    void add_votes(std::vector<Vote>& votes) const {
        if (saver_.is_written()) votes.push_back(Vote::written);
        if (saver_.is_committed()) votes.push_back(Vote::committed);
    }

    template <class Count>
    void advance(Count&& count) {
        if (saver_.is_committing()) {
            if (count(Vote::committed) > 0) finish();
        } else if (saver_.is_under_way() && count(Vote::written) == ranks_.world_size) {
            attempt([&] { saver_.commit(); });
        }
    }

private:
    const RunFlags& flags_;
    Ranks& ranks_;
    RunLog& log_;  // writes on rank 0 only
    int64_t first_step_ = 0;
    bool first_is_saved_ = false, best_is_unknown_ = false;
    int64_t begun_step_ = -1;  // the step of the last save()
    // What could not be done beside saving; "" where nothing is left to do.
    struct Untidy {
        std::string link, files, log;
    } untidy_;  // after the last save; set by the thread that commits
    bool warned_of_link_ = false, warned_of_files_ = false, warned_of_log_ = false;
    Saver<Device, T> saver_;

    // A save that fails is forgotten, so that it may be tried again.
    template <class Work>
    void attempt(Work&& work) {
        try {
            work();
        } catch (const Error&) {
            begun_step_ = -1;
            throw;
        }
    }

    // ---- housekeeping, on rank 0: never an Error, because the run's state is saved all the same

    template <class Work>
    static std::string why_not(Work&& work) {
        try {
            work();
            return "";
        } catch (const std::exception& error) {
            return error.what();
        }
    }

    // After a save of `step`. `best`: the step to mark as the best one, if its checkpoint is there; -1: none.
    Untidy tidy(int64_t step, int64_t best) const {
        const std::string& out = flags_.out_dir;
        Untidy untidy;
        std::error_code ignored;
        if (best >= 0 && std::filesystem::exists(checkpoint_path(out, best), ignored))
            untidy.link = why_not([&] { mark_best(out, best); });
        untidy.files = why_not([&] { remove_leftovers(out); });
        const std::string others = why_not([&] { prune(out, flags_.keep, step, best); });
        if (untidy.files.empty()) untidy.files = others;
        return untidy;
    }

    // Warns once of each kind.
    void say(const Untidy& untidy, int64_t step) {
        const auto warn = [&](bool& has_warned, const char* what, const std::string& why, const char* rest) {
            if (why.empty() || std::exchange(has_warned, true)) return;
            std::fprintf(stderr, "warning: %s; %s\n", printable(why).c_str(), rest);
            log_.warning(step, what, why);
        };
        warn(warned_of_link_, "best", untidy.link,
             "the best checkpoint is kept without a link; training goes on, and the next save tries again");
        warn(warned_of_files_, "old checkpoints", untidy.files, "training goes on, and the next save tries again");
        warn(warned_of_log_, "log", untidy.log,
             "checkpoints go to the folder of that name, and the log stays with the other");
    }

    // After a resume: makes the mark of the best checkpoint agree with the state, since the run may have been killed
    // between a save and its mark. If the checkpoint was validated only after it had been saved, it has the mark, but
    // its state does not have the loss. Then returns true, unless a validation is due anyway. `best`: the step to mark.
    bool find_best(const RunState& state, bool validates, int64_t& best) const {
        if (!flags_.save_best) return false;
        const int64_t marked = best_step(flags_.out_dir);
        if (marked == state.step && state.best.step != marked) return !validates;
        best = state.best.step;
        return false;
    }
};

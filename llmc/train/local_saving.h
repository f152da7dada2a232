/*
Saving to the fast tier (local_checkpoints.h). Each rank copies its part, and a thread writes it to this host's disk,
commits it and reads it back, like every checkpoint. No rank waits for another rank or for the disk. While any rank is
still writing, no rank begins the next local checkpoint; the votes in a step tell all ranks when all are done.

  LocalSaver<Device, T> local(ranks, model, sharded);
  local.open(open_local(ranks, out_dir, dir, local_run));     at the start
  local.begin(step, {tokenizer_json, chat_template, state, flags});   all ranks
  if (local.is_over()) vote for it, and if (local.has_failed()) for that
  local.finish(all_good);                                     all ranks, once all have voted
  local.end();                                                the run is over: nothing is kept

If a rank cannot write its part (a full disk), it prints a warning, no rank keeps that step, and training continues.
*/
#pragma once
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <future>
#include <string>
#include <utility>
#include "llmc/data/utf8.h"                // printable
#include "llmc/io/checkpoint.h"            // CheckpointWriter, prune
#include "llmc/train/local_checkpoints.h"  // LocalPlace
#include "llmc/train/snapshot.h"           // Snapshot

template <class Device, class T>
class LocalSaver {
public:
    LocalSaver(Ranks& ranks, Gpt<Device, T>& model, const ShardedState<Device, T>& sharded)
        : ranks_(ranks), snapshot_(ranks, model, sharded) {}
    ~LocalSaver() {
        if (writing_.valid()) writing_.wait();  // the thread uses the members
    }

    void open(const LocalPlace& place) { place_ = place; }
    bool is_on() const { return !place_.folder.empty(); }

    void begin(int64_t step, const SavedTexts& texts) {
        ensure(is_on() && !is_under_way());
        last_step_ = std::exchange(step_, step);
        snapshot_.take(texts);
        writing_ = std::async(std::launch::async, [this] { return why_not_written(); }).share();
    }

    bool is_under_way() const { return writing_.valid(); }
    bool is_over() const {
        return is_under_way() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }
    bool has_failed() const { return is_over() && !writing_.get().empty(); }

    // `all_good`: all ranks have written their parts. If this rank has failed, it warns once, until it succeeds again.
    void finish(bool all_good) {
        ensure(is_under_way());
        const std::string why = writing_.get();
        writing_ = {};
        if (!why.empty() && !has_warned_)
            std::fprintf(stderr,
                         "warning: rank %d: no local checkpoint of step %lld: %s; training goes on, with those of "
                         "--out-dir\n",
                         ranks_.rank, static_cast<long long>(step_), printable(why).c_str());
        has_warned_ = !why.empty();
        all_good_ = all_good;
    }

    // After the last checkpoint in --out-dir is complete.
    void end() {
        if (writing_.valid()) writing_.wait();
        writing_ = {};
        place_.remove_all();
        place_ = {};
    }

private:
    Ranks& ranks_;
    Snapshot<Device, T> snapshot_;
    LocalPlace place_;
    int64_t step_ = -1, last_step_ = -1;         // last_step_: of the previous local checkpoint
    bool has_warned_ = false, all_good_ = true;  // about the previous one
    std::shared_future<std::string> writing_;    // the reason for a failure; empty: success

    std::string why_not_written() const {
        try {
            clean();
            CheckpointWriter part(place_.folder, step_);
            if (ranks_.rank == 0) snapshot_.write_model(part);
            snapshot_.write_shard(part);
            part.commit();
            return "";
        } catch (const std::exception& error) {
            return error.what();
        }
    }

    // Removes the previous local checkpoint if it failed on any rank, else older ones. In the thread, because removing
    // takes time, too. What cannot be removed is tried again before the next one.
    void clean() const {
        if (last_step_ < 0) return;
        if (!all_good_) {
            std::error_code ignored;
            std::filesystem::remove_all(checkpoint_path(place_.folder, last_step_), ignored);
            return;
        }
        try {
            remove_leftovers(place_.folder);
            prune(place_.folder, kLocalKept, last_step_);
        } catch (const Error&) {
        }
        place_.remove_others();
    }
};

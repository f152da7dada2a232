/*
Saves a run while it trains. Training waits only for the copy of weights and state to host memory; a thread writes them.
Rank 0 writes the model and the small files. Each rank writes its part of the optimizer's state, or sends it to rank 0,
whose thread writes it (placement.h). When all parts are on disk, a thread of rank 0 makes the checkpoint visible
(llmc/io/checkpoint.h) and then removes old ones. No step waits for a disk; the ranks only exchange a few bytes.

  Saver<Device, T> saver(flags, ranks, tokens, model, sharded, log);        once weights and state have been allocated
  saver.open(state, resumed, validates, in_processes);    all ranks, once the log is open: looks into --out-dir
  saver.save(state, flags, and_wait);                     all ranks; first waits for the save before
  saver.add_votes(votes);                                 in every step: whether this rank's part is on the disk, or
                                                          failed; on rank 0 whether the checkpoint is visible
  saver.advance(count);                                   after every step; count(vote): how many ranks cast it
  saver.finish();                                         all ranks: waits until the checkpoint is complete on disk

Anything that fails on one rank is an Error on all. Votes about a save may arrive after it is over. They cannot be taken
for votes about the next save, because that begins when no step is in flight.
*/
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#include "llmc/base/memory.h"               // aligned
#include "llmc/checkpoint/run_state.h"      // RunState, saved_parts
#include "llmc/checkpoint/parts.h"          // PartSender, receive_parts
#include "llmc/checkpoint/placement.h"      // Placement, find_placement
#include "llmc/checkpoint/uploads.h"        // Uploads
#include "llmc/comm/ranks.h"                // Ranks, on_first_rank, share_errors
#include "llmc/data/utf8.h"                 // printable
#include "llmc/interop/adapter.h"           // adapter_tensors, adapter_config
#include "llmc/interop/tokenizer_export.h"  // TokenFacts
#include "llmc/io/checkpoint.h"             // CheckpointWriter, tidy
#include "llmc/run/log.h"                   // RunLog
#include "llmc/run/run_flags.h"             // RunFlags
#include "llmc/run/step_config.h"           // Vote
#include "llmc/run/supervise.h"             // Supervised

template <class Device, class T>
class Saver {
public:
    std::string base_hash;      // with adapters: of the weights that do not learn
    bool log_may_fail = false;  // ignore errors of the log: the run is ending with an error, which may be the log's
    std::function<void()> before_tidying;  // for tests: called on rank 0's thread

    Saver(const RunFlags& flags, Ranks& ranks, const TokenFacts& tokens, Gpt<Device, T>& model,
          const ShardedState<Device, T>& sharded, RunLog& log)
        : flags_(flags),
          ranks_(ranks),
          tokens_(tokens),
          model_(model),
          log_(log),
          sharded_(sharded),
          placement_(Placement::all_shared(ranks.world_size)) {}
    ~Saver() {  // the threads use the members
        if (writing_.valid()) writing_.wait();
        if (committing_.valid()) committing_.wait();
    }

    // `validates`: a validation is due before the first step anyway. `in_processes`: ranks are processes, possibly on
    // hosts with separate disks.
    void open(const RunState& state, bool resumed, bool validates, bool in_processes) {
        bool is_saved = false;
        on_first_rank(ranks_, [&] {
            is_saved = std::filesystem::exists(checkpoint_path(flags_.out_dir, state.step));
            if (!flags_.after_checkpoint.empty())
                uploads_.emplace(flags_.after_checkpoint, flags_.out_dir, flags_.io_timeout_s);
            if (!resumed || !is_saved) return;
            // The run may have been killed before they were copied.
            for (const int64_t step : checkpoint_steps(flags_.out_dir))
                if (uploads_ && step <= state.step) uploads_->add(step);
            // A run that was killed during a save has left incomplete files, and this one may end without another save.
            // Also makes the mark of the best checkpoint agree with the state: the run may have been killed between a
            // save and its mark. If the checkpoint was validated only after it had been saved, it has the mark, but its
            // state does not have the loss.
            const int64_t marked = flags_.save_best ? best_step(flags_.out_dir) : -1;
            const bool has_mark_alone = marked == state.step && state.best.step != marked;
            best_is_unknown_ = has_mark_alone && !validates;
            warn(tidy(flags_.out_dir, flags_.keep, state.step,
                      flags_.save_best && !has_mark_alone ? state.best.step : -1, held()),
                 state.step);
        });
        if (ranks_.broadcast(is_saved ? "yes" : "") == "yes") saved_step_ = state.step;
        best_is_unknown_ = ranks_.broadcast(best_is_unknown_ ? "yes" : "") == "yes";
        if (in_processes) placement_ = find_placement(ranks_, flags_.out_dir, flags_.checkpoint_to);
    }
    const std::string& placement_text() const { return placement_.text; }
    // The checkpoint from which this run resumes is marked as the best, but its validation loss is not known.
    bool best_is_unknown() const { return best_is_unknown_; }

    // Whether the step is saved or being saved. A save that fails is forgotten, so that it may be tried again.
    bool is_saved(int64_t step) const { return step == saved_step_; }
    bool is_under_way() const { return writing_.valid() || is_committing_; }

    // `flags`: for a run that resumes.
    void save(RunState state, RunFlags flags, bool and_wait) {
        finish();
        forget();  // a save that failed
        began_ = std::chrono::steady_clock::now();
        step_ = state.step;
        best_ = flags_.save_best ? state.best.step : -1;
        state_json_ = to_json(state.fields(), 2) + "\n";
        flags_json_ = to_json(flags.fields(), 2) + "\n";
        on_first_rank(ranks_, [&] {
            std::vector<std::vector<Tensor>> all;
            for (int r = 0; r < ranks_.world_size; r++) all.push_back(tensors_of(saved_parts(sharded_, r)));
            index_json_ = shard_index(kOptimizerStem, all);
            files_.emplace(flags_.out_dir, step_);
        });
        if (ranks_.world_size > 1) {
            const std::string name = ranks_.broadcast(files_ ? files_->name() : "");
            if (!files_ && !placement_.is_sent(ranks_.rank)) files_.emplace(flags_.out_dir, name);
        }
        copy_to_host(and_wait);
        writing_ = std::async(std::launch::async, [this] { write(); });
        saved_step_ = step_;
        if (and_wait) finish();
    }

    // Marks the checkpoint of this step as the best. False: there is none yet; the next save() of the step marks it.
    bool save_as_best(int64_t step) {
        finish();
        if (!is_saved(step)) return false;
        on_first_rank(ranks_,
                      [&] { warn({.link = why_not([&] { mark_best(flags_.out_dir, step); }), .files = {}}, step); });
        return true;
    }

    void finish() {
        if (!is_under_way()) return;
        if (!is_committing_) commit();
        is_committing_ = false;
        saved_step_ = -1;
        double ms = 0;
        on_first_rank(ranks_, [&] { ms = committing_.get(); });
        saved_step_ = step_;
        forget();
        Supervised::say_saved();
        on_first_rank(ranks_, [&] {
            try {
                log_.checkpoint(step_, checkpoint_path(flags_.out_dir, step_), ms);
                warn(untidy_, step_);
                if (!log_.is_in_place())
                    warn_once(warned_of_log_, step_, "log", log_.path() + " was renamed or removed, or its folder",
                              "checkpoints go to the folder of that name, and the log stays with the other");
            } catch (const Error&) {
                if (!log_may_fail) throw;
            }
        });
    }

    // The last save is over: waits until --after-checkpoint is, too, within io-timeout. On rank 0.
    void finish_uploads() {
        if (!uploads_) return;
        uploads_->finish(flags_.io_timeout_s);
        constexpr int64_t kMarkStays = -1;  // save_as_best() may have moved it since the save
        if (saved_step_ >= 0) tidy(flags_.out_dir, flags_.keep, saved_step_, kMarkStays, held());
    }

    // ---- votes in steps

    void add_votes(std::vector<Vote>& votes) const {
        if (is_ready(writing_)) votes.push_back(Vote::written);
        if (is_ready(committing_)) votes.push_back(Vote::committed);
    }

    template <class Count>
    void advance(Count&& count) {
        if (is_committing_) {
            if (count(Vote::committed) > 0) finish();
        } else if (is_under_way() && count(Vote::written) == ranks_.world_size) {
            commit();
        }
    }

private:
    static constexpr DType kType = std::is_same_v<T, bf16> ? DType::bf16 : DType::f32;

    const RunFlags& flags_;
    Ranks& ranks_;
    const TokenFacts& tokens_;
    Gpt<Device, T>& model_;
    RunLog& log_;  // writes on rank 0 only
    const ShardedState<Device, T> sharded_;
    Placement placement_;
    bool best_is_unknown_ = false;
    int64_t saved_step_ = -1;         // the last step that is saved or being saved
    Untidy untidy_;                   // after the last save; set by the thread that commits
    std::optional<Uploads> uploads_;  // on rank 0
    bool warned_of_link_ = false, warned_of_files_ = false, warned_of_log_ = false;

    // ---- the save that is under way

    int64_t step_ = 0, best_ = -1;  // best: the step to mark as the best
    std::chrono::steady_clock::time_point began_;
    std::string state_json_, flags_json_, index_json_;
    std::optional<typename Device::HostCopies> copies_;
    std::vector<T> weights_;                       // the whole model, on rank 0
    std::vector<char> state_;                      // the data of tensors_, one after the other
    std::vector<Tensor> tensors_;                  // this rank's part of the optimizer's state; they point into state_
    std::optional<CheckpointWriter> files_;        // none if rank 0 writes this rank's part
    std::optional<std::vector<FileRecord>> sent_;  // of this rank's part, if rank 0 writes it
    std::map<int, FileRecord> received_;           // on rank 0, by sender
    std::future<void> writing_;
    bool is_committing_ = false;      // on all ranks
    std::future<double> committing_;  // on rank 0: the ms since save()

    std::set<int64_t> held() const { return uploads_ ? uploads_->waiting() : std::set<int64_t>(); }

    void forget() {
        sent_.reset();
        received_.clear();
        files_.reset();
    }

    template <class Result>
    static bool is_ready(const std::future<Result>& future) {
        return future.valid() && future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }

    // `waits`: the run does not go on before all is written, so what lies in host memory is written from there.
    void copy_to_host(bool waits) {
        sharded_.optimizer.finish_copies();
        if (!copies_) copies_.emplace(model_.device);  // a run that never saves has no buffers
        if (ranks_.rank == 0) {
            weights_.resize(size_t(model_.parameters.learned_size()));
            copies_->add(weights_.data(), model_.weights.data, weights_.size() * sizeof(T));
        }
        std::vector<StatePart> parts = saved_parts(sharded_, ranks_.rank);
        size_t size = 0;
        const auto bytes = [](const StatePart& part) { return size_t(part.size()) * size_of(part.dtype); };
        const auto is_copied = [&](const StatePart& part) { return !(waits && part.on_host); };
        for (const StatePart& part : parts)
            if (is_copied(part)) size += aligned(bytes(part));
        state_.resize(size);
        char* to = state_.data();
        for (StatePart& part : parts) {
            if (!is_copied(part)) continue;
            if (part.on_host)
                std::memcpy(to, part.data, bytes(part));
            else
                copies_->add(to, part.data, bytes(part));
            part.data = to;
            to += aligned(bytes(part));
        }
        copies_->finish();
        tensors_ = tensors_of(parts);
    }

    std::string file_of(int rank) const { return shard_file(kOptimizerStem, rank, ranks_.world_size); }

    void write() {
        const Watchdog::Patience patience(ranks_.watchdog());
        if (placement_.is_sent(ranks_.rank)) return send();
        std::future<void> receiving;  // at the same time: one waits for the network, the other for the disk
        if (ranks_.rank == 0) {
            receiving = std::async(std::launch::async, [this] { receive(); });
            const bool adapts = model_.shape.lora.is_on();
            const std::vector<StoredTensor> stored =
                adapts ? adapter_tensors(model_.parameters, kType)
                       : stored_tensors(model_.parameters, family_of(model_.shape), kType);
            Metadata metadata = {{"format", "pt"}};
            if (adapts) metadata[kBaseHash] = base_hash;
            std::vector<Tensor> tensors;
            for (const StoredTensor& part : stored) tensors.push_back(part.tensor);
            std::vector<T> transposed;
            size_t next = 0;
            files_->add_tensors(adapts ? kAdapterFile : kModelFile, tensors, metadata, [&](const Tensor&) {
                const StoredTensor& part = stored[next++];
                const Parameter& p = model_.parameters.parameters[part.parameter];
                return static_cast<const void*>(stored_data(part, p, weights_.data() + p.offset, transposed));
            });
            write_texts();
        }
        files_->add_tensors(file_of(ranks_.rank), tensors_, {{"format", "pt"}});
        if (receiving.valid()) receiving.get();
    }

    void write_texts() {
        files_->add_text(std::string(kOptimizerStem) + ".safetensors.index.json", index_json_);
        files_->add_text("config.json", model_config(model_.shape, kType, tokens_.ids));
        if (model_.shape.lora.is_on()) files_->add_text(kAdapterConfig, adapter_config(model_.shape, flags_.init_from));
        for (const auto& [name, text] : tokens_.files) files_->add_text(name, text);
        files_->add_text(kStateFile, state_json_);
        files_->add_text(kRunFlagsFile, flags_json_);
    }

    void send() {
        PartSender part(ranks_, 0);
        SafetensorsWriter file([&](const void* data, size_t bytes) { part.write(data, bytes); }, tensors_,
                               {{"format", "pt"}});
        for (const Tensor& tensor : tensors_) file.write(tensor.data, tensor.size_bytes());
        file.finish();
        part.finish();
        sent_ = {{file_of(ranks_.rank), file.size_bytes(), file.hash(), file.records()}};
    }

    void receive() {
        const Watchdog::Patience patience(ranks_.watchdog());
        std::set<int> from;
        std::map<int, ReceivedFile> files;
        for (int r = 1; r < ranks_.world_size; r++)
            if (placement_.is_sent(r)) from.insert(r);
        if (from.empty()) return;
        receive_parts(ranks_, from, [&](int rank, const char* data, size_t bytes) {
            auto file = files.find(rank);
            if (file == files.end()) file = files.try_emplace(rank, *files_, file_of(rank)).first;
            file->second.write(data, bytes);
        });
        for (auto& [rank, file] : files) received_[rank] = file.finish();
    }

    // When all parts are on disk: begins to make the checkpoint visible, and does not wait.
    void commit() {
        saved_step_ = -1;
        share_errors(ranks_, [&] { writing_.get(); });
        const std::vector<std::string> records = ranks_.gather(packed(sent_ ? *sent_ : files_->records()));
        is_committing_ = true;
        if (ranks_.rank == 0) committing_ = std::async(std::launch::async, [=, this] { return committed(records); });
        saved_step_ = step_;
    }

    double committed(const std::vector<std::string>& records) {
        for (size_t r = 1; r < records.size(); r++) {
            const auto theirs = unpacked(records[r]);
            ranks_.require_sense(theirs.has_value(), int(r), "the list of its files");
            if (placement_.is_sent(int(r))) check_received(int(r), *theirs);
            files_->add_records(*theirs);
        }
        files_->commit();
        Supervised::say_saved();  // at once, so that a rank that is lost from now on is lost after this checkpoint
        const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - began_;
        if (before_tidying) before_tidying();
        if (uploads_) uploads_->add(step_);
        untidy_ = tidy(flags_.out_dir, flags_.keep, step_, best_, held());
        return taken.count();
    }

    // Checks that the received bytes are those sent, by the sender's checksum.
    void check_received(int rank, const std::vector<FileRecord>& theirs) {
        const auto found = received_.find(rank);
        ranks_.require_sense(theirs.size() == 1 && theirs[0].name == file_of(rank) && found != received_.end(), rank,
                             "its part of the checkpoint");
        require(theirs[0].size_bytes == found->second.size_bytes && theirs[0].hash == found->second.hash,
                "%s has come from %s with %lu bytes that are not the %lu which were sent (their checksums differ): "
                "the network or memory is failing; checkpoints from before are kept",
                theirs[0].name.c_str(), ranks_.name_of(rank).c_str(), found->second.size_bytes, theirs[0].size_bytes);
    }

    // Not an Error, because the run's state is saved all the same.
    void warn(const Untidy& untidy, int64_t step) {
        warn_once(warned_of_link_, step, "best", untidy.link,
                  "the best checkpoint is kept without a link; training goes on, and the next save tries again");
        warn_once(warned_of_files_, step, "old checkpoints", untidy.files,
                  "training goes on, and the next save tries again");
    }
    void warn_once(bool& has_warned, int64_t step, const char* what, const std::string& why, const char* rest) {
        if (why.empty() || std::exchange(has_warned, true)) return;
        std::fprintf(stderr, "warning: %s; %s\n", printable(why).c_str(), rest);
        log_.warning(step, what, why);
    }
};

/*
Saves a run while it trains. Training waits only for the copy of weights and state to host memory; a thread writes them.
Rank 0 writes the model and the small files. Each rank writes its part of the optimizer's state, or sends it to rank 0,
whose thread writes it (placement.h). When all parts are on disk, a thread of rank 0 makes the checkpoint visible
(llmc/io/checkpoint.h) and then removes old ones. No step waits for a disk; the ranks only exchange a few bytes.

  Saver<Device, T> saver(out_dir, ranks, model, optimizer);
  saver.place(find_placement(ranks, out_dir, "auto"));      where ranks are processes
  saver.begin(step, {token_facts, state, flags}, after);   all ranks; no save is under way; after(saved): on rank 0
  if (saver.is_written()) vote for it               this rank's part is on the disk, or could not be written
  saver.commit();                                   all ranks, when all are: begins to make it visible, and does not
                                                    wait; an Error on all if any part failed
  if (saver.is_committed()) vote for it             on rank 0: it is there, or could not be made visible
  saver.finish();                                   all ranks: waits for all of it; an Error on all if anything failed
*/
#pragma once
#include <chrono>
#include <cstring>
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
#include "llmc/checkpoint/checkpointing.h"  // RunState, saved_parts
#include "llmc/checkpoint/parts.h"          // PartSender, receive_parts
#include "llmc/checkpoint/placement.h"      // Placement
#include "llmc/comm/ranks.h"                // Ranks, on_first_rank, share_errors
#include "llmc/interop/tokenizer_export.h"  // TokenFacts
#include "llmc/io/checkpoint.h"             // CheckpointWriter, CheckpointPart
#include "llmc/run/supervise.h"             // Supervised

// What a checkpoint has besides weights and state.
struct SavedTexts {
    TokenFacts tokens;
    std::string state_json, flags_json;
    int64_t best_step = -1;  // the state's

    SavedTexts() = default;
    SavedTexts(const TokenFacts& tokens, RunState state, RunFlags flags)
        : tokens(tokens),
          state_json(to_json(state.fields(), 2) + "\n"),
          flags_json(to_json(flags.fields(), 2) + "\n"),
          best_step(state.best.step) {}
};

// A checkpoint that is complete.
struct SavedCheckpoint {
    int64_t step;
    std::string path;
    double ms;  // from begin() to the commit; on rank 0
};

template <class Device, class T>
class Saver {
public:
    Saver(const std::string& out_dir, Ranks& ranks, Gpt<Device, T>& model, const Optimizer<Device, T>& optimizer)
        : Saver(out_dir, ranks, model, ShardedState<Device, T>{optimizer}) {}
    Saver(const std::string& out_dir, Ranks& ranks, Gpt<Device, T>& model, const ShardedState<Device, T>& sharded)
        : out_dir_(out_dir),
          ranks_(ranks),
          model_(model),
          sharded_(sharded),
          placement_(Placement::all_shared(ranks.world_size)) {}
    ~Saver() {  // the threads use the members
        if (writing_.valid()) writing_.wait();
        if (committing_.valid()) committing_.wait();
    }

    void place(const Placement& placement) {
        ensure(!is_under_way());
        placement_ = placement;
    }
    const Placement& placement() const { return placement_; }

    using After = std::function<void(const SavedCheckpoint&)>;

    void begin(int64_t step, const SavedTexts& texts, After after = {}) {
        ensure(!is_under_way());
        reset();  // after a save that failed
        after_ = std::move(after);
        began_ = std::chrono::steady_clock::now();
        step_ = step;
        on_first_rank(ranks_, [&] { leader_.emplace(out_dir_, step); });
        if (ranks_.world_size > 1) {
            const std::string name = ranks_.broadcast(leader_ ? leader_->name() : "");
            if (!leader_ && !placement_.is_sent(ranks_.rank)) follower_.emplace(out_dir_, name);
        }
        copy(texts);
        writing_ = std::async(std::launch::async, [this] { write(); });
    }

    bool is_under_way() const { return writing_.valid() || is_committing_; }
    bool is_committing() const { return is_committing_; }
    bool is_written() const { return is_ready(writing_); }
    bool is_committed() const { return is_ready(committing_); }

    void commit() {
        ensure(writing_.valid());
        share_errors(ranks_, [&] { writing_.get(); });
        const std::vector<std::string> records = ranks_.gather(packed(sent_ ? *sent_ : part().records()));
        is_committing_ = true;
        if (ranks_.rank == 0) committing_ = std::async(std::launch::async, [=, this] { return committed(records); });
    }

    SavedCheckpoint finish() {
        ensure(is_under_way());
        if (!is_committing_) commit();
        is_committing_ = false;
        SavedCheckpoint saved{step_, checkpoint_path(out_dir_, step_), 0};
        on_first_rank(ranks_, [&] { saved = committing_.get(); });
        reset();
        return saved;
    }

private:
    std::string out_dir_;
    Ranks& ranks_;
    Gpt<Device, T>& model_;
    const ShardedState<Device, T> sharded_;
    SavedTexts texts_;
    std::optional<typename Device::HostCopies> copies_;
    std::vector<T> weights_;       // the whole model, on rank 0
    std::vector<char> state_;      // the data of tensors_, one after the other
    std::vector<Tensor> tensors_;  // this rank's part of the optimizer's state; they point into state_
    std::optional<CheckpointWriter> leader_;
    std::optional<CheckpointPart> follower_;
    Placement placement_;
    std::optional<std::vector<FileRecord>> sent_;  // of this rank's part, if rank 0 writes it
    std::map<int, FileRecord> received_;           // on rank 0, by sender
    std::chrono::steady_clock::time_point began_;
    int64_t step_ = 0;
    After after_;
    std::future<void> writing_;
    bool is_committing_ = false;               // on all ranks
    std::future<SavedCheckpoint> committing_;  // on rank 0

    void reset() {
        sent_.reset();
        received_.clear();
        leader_.reset();
        follower_.reset();
    }

    template <class Result>
    static bool is_ready(const std::future<Result>& future) {
        return future.valid() && future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }

    void copy(const SavedTexts& texts) {
        texts_ = texts;
        if (!copies_) copies_.emplace(model_.device);  // a run that never saves has no buffers
        if (ranks_.rank == 0) {
            weights_.resize(size_t(model_.weights.size));
            copies_->add(weights_.data(), model_.weights.data, weights_.size() * sizeof(T));
        }
        std::vector<StatePart> parts = saved_parts(sharded_, ranks_.rank);
        size_t size = 0;
        const auto bytes = [](const StatePart& part) { return size_t(part.size()) * size_of(part.dtype); };
        for (const StatePart& part : parts) size += aligned(bytes(part));
        state_.resize(size);
        char* to = state_.data();
        for (StatePart& part : parts) {
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

    CheckpointPart& part() { return leader_ ? *leader_ : *follower_; }
    std::string file_of(int rank) const { return shard_file(kOptimizerStem, rank, ranks_.world_size); }

    void write() {
        const Watchdog::Patience patience(ranks_.watchdog());
        if (placement_.is_sent(ranks_.rank)) return send();
        std::future<void> receiving;  // at the same time: one waits for the network, the other for the disk
        if (ranks_.rank == 0) {
            receiving = std::async(std::launch::async, [this] { receive(); });
            write_model();
        }
        part().add_tensors(file_of(ranks_.rank), tensors_, {{"format", "pt"}});
        if (receiving.valid()) receiving.get();
    }

    void write_model() {
        CheckpointPart& to = part();
        const DType dtype = std::is_same_v<T, bf16> ? DType::bf16 : DType::f32;
        std::vector<T> transposed;
        const std::vector<StoredTensor> stored = stored_tensors(model_.parameters, family_of(model_.shape), dtype);
        std::vector<Tensor> tensors;
        for (const StoredTensor& part : stored) tensors.push_back(part.tensor);
        size_t next = 0;
        to.add_tensors(kModelFile, tensors, {{"format", "pt"}}, [&](const Tensor&) {
            const StoredTensor& part = stored[next++];
            const Parameter& p = model_.parameters.parameters[part.parameter];
            return static_cast<const void*>(stored_data(part, p, weights_.data() + p.offset, transposed));
        });
        std::vector<std::vector<Tensor>> all;
        for (int r = 0; r < ranks_.world_size; r++) all.push_back(tensors_of(saved_parts(sharded_, r)));
        to.add_text(std::string(kOptimizerStem) + ".safetensors.index.json", shard_index(kOptimizerStem, all));
        to.add_text("config.json", model_config(model_.shape, dtype, texts_.tokens.ids));
        for (const auto& [name, text] : texts_.tokens.files) to.add_text(name, text);
        to.add_text(kStateFile, texts_.state_json);
        to.add_text(kRunFlagsFile, texts_.flags_json);
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
            if (file == files.end()) file = files.try_emplace(rank, *leader_, file_of(rank)).first;
            file->second.write(data, bytes);
        });
        for (auto& [rank, file] : files) received_[rank] = file.finish();
    }

    SavedCheckpoint committed(const std::vector<std::string>& records) {
        for (size_t r = 1; r < records.size(); r++) {
            const auto theirs = unpacked(records[r]);
            ranks_.require_sense(theirs.has_value(), int(r), "the list of its files");
            if (placement_.is_sent(int(r))) check_received(int(r), *theirs);
            leader_->add_records(*theirs);
        }
        leader_->commit();
        Supervised::say_saved();  // at once, so that a rank that is lost from now on is lost after this checkpoint
        const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - began_;
        const SavedCheckpoint saved{step_, checkpoint_path(out_dir_, step_), taken.count()};
        if (after_) after_(saved);
        return saved;
    }

    // Checks that the received bytes are those sent, by the sender's checksum.
    void check_received(int rank, const std::vector<FileRecord>& theirs) {
        const auto found = received_.find(rank);
        ranks_.require_sense(theirs.size() == 1 && theirs[0].name == file_of(rank) && found != received_.end(), rank,
                             "its part of the checkpoint");
        require(theirs[0].size_bytes == found->second.size_bytes && theirs[0].hash == found->second.hash,
                "%s has come from %s with %llu bytes that are not the %llu which were sent (their checksums differ): "
                "the network or memory is failing; checkpoints from before are kept",
                theirs[0].name.c_str(), ranks_.name_of(rank).c_str(),
                static_cast<unsigned long long>(found->second.size_bytes),
                static_cast<unsigned long long>(theirs[0].size_bytes));
    }
};

/*
A checkpoint's content: weights and state of one step, copied to host memory. Training waits for the copy, and a thread
writes it.

  Snapshot<Device, T> snapshot(ranks, model, sharded);
  snapshot.take({token_facts, state, flags});
  snapshot.write_model(part);        rank 0: writes the model and all small files into a CheckpointPart
  snapshot.write_shard(part);        every rank: writes its part of the optimizer's state
*/
#pragma once
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>
#include "llmc/base/memory.h"               // aligned
#include "llmc/comm/ranks.h"                // Ranks
#include "llmc/interop/tokenizer_export.h"  // TokenFacts
#include "llmc/io/checkpoint.h"             // CheckpointPart
#include "llmc/train/checkpointing.h"       // RunState, saved_parts

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

template <class Device, class T>
class Snapshot {
public:
    Snapshot(Ranks& ranks, Gpt<Device, T>& model, const ShardedState<Device, T>& sharded)
        : ranks_(ranks), model_(model), sharded_(sharded) {}

    void take(const SavedTexts& texts) {
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

    // This rank's part of the state, and the name of its file.
    const std::vector<Tensor>& tensors() const { return tensors_; }
    std::string file_of(int rank) const { return shard_file(kOptimizerStem, rank, ranks_.world_size); }
    void write_shard(CheckpointPart& part) const {
        part.add_tensors(file_of(ranks_.rank), tensors_, {{"format", "pt"}});
    }

    void write_model(CheckpointPart& to) const {
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

private:
    Ranks& ranks_;
    Gpt<Device, T>& model_;
    const ShardedState<Device, T> sharded_;
    SavedTexts texts_;
    std::optional<typename Device::HostCopies> copies_;
    std::vector<T> weights_;       // the whole model, on rank 0
    std::vector<char> state_;      // the data of tensors_, one after the other
    std::vector<Tensor> tensors_;  // they point into state_
};

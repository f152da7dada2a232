/*
The content of a training checkpoint, from which a run resumes bit-exactly. It loads on any number of ranks.

  model.safetensors      the weights, fp32 or bf16
  config.json            the model's config, which transformers loads if it can (llmc/interop/stored_model.h)
  tokenizer.json         the data's tokenizer
  optimizer_*_of_*.safetensors
                         the optimizer's state, one file per rank (llmc/io/sharded_tensors.h); see below
  optimizer.safetensors.index.json
                         which file holds which tensor
  state.json             RunState: step, position in the data, counters (random numbers follow from seed and step)
  train_config.json      the flags

Tensors of the optimizer's state have the layout of parameters.h: (out, in), with the padding of the vocabulary.

  NAME.PARAMETER             the state tensors of the parameter's update rule (AdamW: the moments m and v)
  average.PARAMETER          with tail-average; not if it is what model.safetensors has, in fp32
  master.PARAMETER           master weights, if weights are bf16 and have them (not with --memory lean), or if
                             model.safetensors has averages
  outer_momentum.PARAMETER   with islands
  outer_error.PARAMETER      with islands that round what they send
  fp8_amax                   with delayed scaling in FP8: update_amax's state (llmc/ops/quantize.h)

Each island has its own moments, outer_error and fp8_amax. Those of the second island have the prefix "island1.", etc.

llmc/io/checkpoint.h writes a checkpoint completely or not at all; saving.h does that from all ranks and in the
background, loading.h loads it.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "llmc/base/flags.h"            // Field, to_json
#include "llmc/comm/launch/islands.h"   // IslandPlace
#include "llmc/data/loader.h"           // LoaderState
#include "llmc/interop/stored_model.h"  // StoredModel, model_config
#include "llmc/io/sharded_tensors.h"    // ShardedTensors
#include "llmc/model/gpt.h"             // Gpt
#include "llmc/optim/optimizer.h"       // Optimizer
#include "llmc/optim/outer_state.h"     // OuterState
#include "llmc/run/run_flags.h"         // RunFlags
#include "llmc/run/step_config.h"       // StepConfig

// The lowest validation loss so far. Each step's validation counts once, even if a resumed run repeats it.
struct BestLoss {
    std::optional<double> loss = {};  // none: no validation so far was finite
    int64_t step = -1;
    int64_t worse = 0;         // the number of validations since then
    int64_t counted_step = 0;  // the step of the last validation that counts
    uint64_t key = 0;          // validation_key() of these validations

    // True if it is the lowest so far.
    bool add(int64_t at, double value) {
        counted_step = at;
        if (std::isfinite(value) && (!loss || value < *loss)) {
            loss = value, step = at, worse = 0;
            return true;
        }
        worse++;
        return false;
    }
};

// All of a run's state that is not a tensor.
struct RunState {
    int64_t step = 0;     // steps done, skipped ones included
    int64_t updates = 0;  // steps that changed the weights: the optimizer's count
    int64_t skipped_in_a_row = 0;
    int64_t tokens = 0;        // trained on
    LoaderState data = {};     // the data loader's position
    uint64_t data_key = 0;     // data_key() of the data to which the position refers
    double training_s = 0;     // time spent in steps
    double learning_rate = 0;  // of the last step; 0: not known (older checkpoints)
    // --balance auto: the number of micro-batches of each rank, "3,1". A resume on the same number of ranks continues
    // with it; on another number it measures again.
    std::string micro_batches = "";
    BestLoss best = {};
    int64_t average_since = -1;  // the first step after which weights were averaged (Recipe::averages); -1: none so far
    std::string island_updates = "";  // of every island, "12,11"; empty: all ranks train together

    // `updates` of an island. If the saved run had n islands, island k continues from island k mod n.
    int64_t updates_of(int island) const;

    // Throws an Error if no run can have this state, though the file's checksum is right. `path` names the file.
    void check(const std::string& path) const;

    std::vector<Field> fields() {
        return {{"", "step", &step, ""},
                {"", "updates", &updates, ""},
                {"", "skipped_in_a_row", &skipped_in_a_row, ""},
                {"", "tokens", &tokens, ""},
                {"", "epoch", &data.epoch, ""},
                {"", "position", &data.position, ""},
                {"", "rows", &data.rows, ""},
                {"", "cropped", &data.cropped, ""},
                {"", "waiting", &data.waiting, ""},
                {"", "data_key", &data_key, ""},
                {"", "training_s", &training_s, ""},
                {"", "learning_rate", &learning_rate, ""},
                {"", "micro_batches", &micro_batches, ""},
                Field{"", "best_loss", &best.loss, ""}.or_else("none"),
                {"", "best_step", &best.step, ""},
                {"", "worse_since_best", &best.worse, ""},
                {"", "validated_step", &best.counted_step, ""},
                {"", "validated_key", &best.key, ""},
                {"", "average_since", &average_since, ""},
                {"", "island_updates", &island_updates, ""}};
    }
};

// Positions in the data are valid only while the data, the cut into rows and the order are the same.
inline uint64_t data_key(const RunFlags& config, uint64_t data_hash, const StepConfig& step, int world_size,
                         int separator) {
    const uint64_t cut = mix64(mix64(data_hash) + uint64_t(step.T));
    if (config.data_order == "llmc")
        return mix64(mix64(mix64(cut + uint64_t(step.B)) + uint64_t(world_size)) + (config.shuffle ? 1 : 0));
    const uint64_t key = mix64(cut + (config.shuffle ? config.seed + 1 : 0));
    if (config.packing_mode() == Packing::stream)
        return config.shuffle && config.data_order == "shards" ? mix64(key + 1) : key;
    const uint64_t packed = mix64(key + 1 + uint64_t(separator));
    return config.packing_mode() == Packing::pad ? mix64(packed) : packed;
}

// Validation losses are comparable only over the same tokens.
inline uint64_t validation_key(const RunFlags& config, uint64_t data_hash, int64_t T) {
    const uint64_t key = mix64(mix64(mix64(data_hash) + uint64_t(T)) + uint64_t(config.val_tokens));
    return mix64(key + uint64_t(config.packing_mode()));
}

// The shape of the model in a checkpoint's folder, or in the text of its config.json. `path`: its path, for messages.
GptShape checkpoint_shape(const std::string& folder);
GptShape checkpoint_shape(const std::string& config_json, const std::string& path);

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerStem = "optimizer";
inline constexpr const char* kRunFlagsFile = "train_config.json";
inline constexpr const char* kStateFile = "state.json";

// Parses state.json. `path`: its path, for messages. Throws an Error if no run can have this state.
RunState run_state_of(const std::string& text, const std::string& path);

// The part of a run's state that is sharded: the optimizer's, and with islands the outer step's, in host memory.
template <class Device, class T>
struct ShardedState {
    const Optimizer<Device, T>& optimizer;
    OuterState* outer = nullptr;
    IslandPlace place = {.world_size = optimizer.plan.world_size, .rank = optimizer.rank};
    AmaxState amax = {};  // the same on all of an island's ranks
};
inline constexpr const char *kOuterMomentum = "outer_momentum.", *kOuterError = "outer_error.", *kMaster = "master.",
                            *kAmax = "fp8_amax";

// Elements [begin, end) of a state tensor. The name is that of the whole tensor.
struct StatePart {
    std::string name;
    int64_t begin, end;
    size_t parameter;  // its index in the list
    void* data;        // null: on another rank
    DType dtype = DType::f32;
    bool on_host = false;   // rather than in the device's memory
    bool of_all = false;    // equal on all islands; the first one saves it
    bool of_ranks = false;  // equal on all ranks of an island; its first rank saves it
    bool is_average = false;

    int64_t size() const { return end - begin; }
    bool is_weight() const { return name.starts_with(kMaster); }
};

// "island1.": the prefix of tensors that differ between islands. "" for the first island.
inline std::string island_prefix(int island) { return island > 0 ? "island" + std::to_string(island) + "." : ""; }

// Calls visit(StatePart) for the state of a rank's pieces (any rank of any island), master weights after the moments.
template <class Device, class T, class Visit>
void each_state(const ShardedState<Device, T>& state, int rank, Visit&& visit) {
    const Optimizer<Device, T>& optimizer = state.optimizer;
    const std::vector<ShardPiece>& pieces = optimizer.plan.pieces[size_t(state.place.local(rank))];
    const bool own = rank == state.place.rank;
    const std::string prefix = island_prefix(state.place.island_of(rank));
    for (size_t i = 0; i < pieces.size(); i++) {
        const ShardPiece& piece = pieces[i];
        const int64_t at = piece.state_offset;  // in the outer step's
        const std::string& name = optimizer.parameter(piece).name;
        const UpdateRule& rule = optimizer.rule(piece);
        for (size_t k = 0; k < rule.state.size(); k++) {
            const StateRange range = optimizer.range(k, piece);
            const bool is_average = rule.state[k].is_average;
            const bool is_weight = is_average && std::is_same_v<T, float> && optimizer.shows_averages();
            if (range.size() > 0)
                visit(StatePart{.name = (is_weight ? kMaster : prefix + rule.state[k].name + ".") + name,
                                .begin = range.begin,
                                .end = range.end,
                                .parameter = piece.parameter,
                                .data = own ? optimizer.state_data(k, i) : nullptr,
                                .dtype = optimizer.state_dtype(k, piece),
                                .on_host = own && optimizer.is_offloaded(i),
                                .of_all = is_weight,
                                .is_average = is_average});
        }
        if (optimizer.has_masters())
            visit(StatePart{.name = kMaster + name,
                            .begin = piece.begin,
                            .end = piece.end,
                            .parameter = piece.parameter,
                            .data = own ? optimizer.master_weights(i) : nullptr,
                            .on_host = own && optimizer.is_offloaded(i),
                            .of_all = true});
        if (OuterState* const outer = state.outer) {
            visit(StatePart{.name = kOuterMomentum + name,
                            .begin = piece.begin,
                            .end = piece.end,
                            .parameter = piece.parameter,
                            .data = own ? outer->momentum() + at : nullptr,
                            .on_host = true,
                            .of_all = true});
            if (outer->error())
                visit(StatePart{.name = prefix + kOuterError + name,
                                .begin = piece.begin,
                                .end = piece.end,
                                .parameter = piece.parameter,
                                .data = own ? outer->error() + at : nullptr,
                                .on_host = true});
        }
    }
    if (state.amax.size() > 0)
        visit(StatePart{.name = prefix + kAmax,
                        .begin = 0,
                        .end = state.amax.size(),
                        .parameter = 0,
                        .data = own ? state.amax.data : nullptr,
                        .of_ranks = true});
}

// The content of a rank's file. Pointers are null for ranks other than this one. If a shard has several owners, only
// the first one saves it.
template <class Device, class T>
std::vector<StatePart> saved_parts(const ShardedState<Device, T>& state, int rank) {
    std::vector<StatePart> parts;
    if (state.place.local(rank) >= state.optimizer.plan.shards) return parts;
    each_state(state, rank, [&](const StatePart& part) {
        if (part.of_all && state.place.island_of(rank) > 0) return;
        if (!part.of_ranks || state.place.local(rank) == 0) parts.push_back(part);
    });
    return parts;
}
inline std::vector<Tensor> tensors_of(const std::vector<StatePart>& parts) {
    std::vector<Tensor> tensors;
    for (const StatePart& part : parts)
        tensors.push_back({part_name(part.name, part.begin, part.end), part.dtype, {part.size()}, part.data});
    return tensors;
}

// Calls visit(i, values) with the values of every parameter, in the model's layout.
template <class Visit>
void read_weights(const StoredModel& stored, const ParameterList& list, Visit&& visit) {
    std::vector<float> host;
    for (size_t i = 0; i < list.parameters.size(); i++) {
        host.resize(size_t(list.parameters[i].size()));
        stored.read(list.parameters[i], host.data());
        visit(i, host.data());
    }
}

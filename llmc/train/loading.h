/*
What a run starts from: new weights, another model's weights, or a checkpoint's weights and state. On all ranks:

  ReadBytes read;
  const RunState state = load_initial_state(request, flags.seed, ranks, model, optimizer, sharded, read);
  share_weights(request, comm, optimizer.plan, model);             because each rank loads only its own part
  continue_data(*data.train, state, key, flags, request, is_first);      only in a resumed run

A rank that sees the checkpoint's folder reads the shards that it owns; rank 0 sends the other ranks theirs, in pieces
over the control plane (parts.h). So everything is read only once. Then the weights are all-gathered over the data
plane.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>
#include "llmc/base/file.h"             // thread_read_bytes
#include "llmc/checkpoint/run_state.h"  // RunState, ShardedState, each_state
#include "llmc/checkpoint/parts.h"      // PartSender, PartReader
#include "llmc/comm/comm.h"             // Comm
#include "llmc/comm/ranks.h"            // Ranks, share_errors
#include "llmc/data/loader.h"           // DataLoader
#include "llmc/model/gpt.h"             // Gpt
#include "llmc/optim/optimizer.h"       // Optimizer, gather_weights
#include "llmc/run/log.h"               // ReadBytes
#include "llmc/train/run_request.h"     // RunRequest

inline constexpr const char* kOtherModel = "the checkpoint is of another model or --optimizer";

// The number of islands of the run that saved it.
inline int saved_islands(const ShardedTensors& saved) {
    int islands = 1;
    while (saved.has_any_of(island_prefix(islands))) islands++;
    return islands;
}

// Calls visit(StatePart) for all that a rank loads: the weights that it owns, always with the name of master weights,
// and of a checkpoint also its state.
template <class Device, class T, class Visit>
void each_loaded(const Gpt<Device, T>& model, const ShardedState<Device, T>& state, int rank, bool has_state,
                 Visit&& visit) {
    const Optimizer<Device, T>& optimizer = state.optimizer;
    const std::vector<ShardPiece>& pieces = optimizer.plan.pieces[size_t(state.place.local(rank))];
    for (size_t i = 0; i < pieces.size(); i++) {
        const ShardPiece& piece = pieces[i];
        const Parameter& p = optimizer.parameter(piece);
        float* data = nullptr;
        if (rank == state.place.rank) {
            if constexpr (std::is_same_v<T, float>)
                data = model.weights.data + p.offset + piece.begin;
            else
                data = optimizer.master_weights(i);
        }
        visit(StatePart{.name = kMaster + p.name,
                        .begin = piece.begin,
                        .end = piece.end,
                        .parameter = piece.parameter,
                        .data = data,
                        .on_host = rank == state.place.rank && optimizer.is_offloaded(i) && optimizer.has_masters(),
                        .of_all = true});
    }
    if (!has_state) return;
    each_state(state, rank, [&](const StatePart& part) {
        if (!part.is_weight()) visit(part);
    });
}

// The files from which tensors are loaded.
struct TensorSource {
    const StoredModel& model;
    const ShardedTensors* state = nullptr;  // null: only weights

    // Reads any rank's part. If the saved run had n islands, island k continues from island k mod n. Averages are the
    // model's weights unless the state has them. Some state starts from zeros: the outer momentum if the saved run had
    // none, the outer errors if the number of islands has changed, and delayed scaling's history if its length or the
    // layers have changed.
    void read(const ParameterList& list, const IslandPlace& place, int rank, const StatePart& part, float* to) const {
        const int64_t begin = part.begin, end = part.end;
        if (part.is_weight() && !(state && state->has(part.name)))
            return model.read(list.parameters[part.parameter], begin, end, to);
        const int before = saved_islands(*state);
        const std::string own = island_prefix(place.island_of(rank));
        const std::string base = part.of_all ? part.name : part.name.substr(own.size());
        const std::string name = part.of_all ? base : island_prefix(place.island_of(rank) % before) + base;
        if (part.is_average && !state->has(name)) return model.read(list.parameters[part.parameter], begin, end, to);
        const bool is_error = base.starts_with(kOuterError);
        const bool is_missing = base == kAmax ? state->size_of(name) != end : !state->has(name);
        if ((is_error || base == kAmax || base.starts_with(kOuterMomentum)) &&
            (is_missing || (is_error && before != place.count())))
            std::fill_n(to, end - begin, 0.f);
        else
            state->read(to, name, begin, end, kOtherModel);
    }
};

// Sets elements [at, at + n) of a part, which may have been saved in another type. Of master weights it also sets the
// weights.
template <class Device, class T>
void store_part(Gpt<Device, T>& model, const StatePart& part, int64_t at, const float* values, int64_t n) {
    if (part.dtype == DType::bf16) {  // moments: rounded to nearest if they were saved in fp32, else unchanged
        std::vector<bf16> rounded(static_cast<size_t>(n));
        std::transform(values, values + n, rounded.begin(), [](float value) { return to_bf16(value); });
        bf16* const to = static_cast<bf16*>(part.data) + at;
        if (part.on_host)
            std::copy(rounded.begin(), rounded.end(), to);
        else
            copy_to_device(model.device, to, rounded.data(), n);
        return;
    }
    if (!part.data)
        ensure(part.is_weight());  // without master weights
    else if (part.on_host)
        std::copy_n(values, n, static_cast<float*>(part.data) + at);
    else
        copy_to_device(model.device, static_cast<float*>(part.data) + at, values, n);
    if constexpr (!std::is_same_v<T, float>) {
        if (!part.is_weight()) return;
        std::vector<T> rounded(static_cast<size_t>(n));
        std::transform(values, values + n, rounded.begin(), [](float value) { return to_bf16(value); });
        const int64_t offset = model.parameters.parameters[part.parameter].offset;
        copy_to_device(model.device, model.weights.data + offset + part.begin + at, rounded.data(), n);
    }
}

// Loads what this rank owns from files that it sees: its weights and, if there is any, its state.
template <class Device, class T>
void load_tensors(const TensorSource& source, Gpt<Device, T>& model, const ShardedState<Device, T>& sharded) {
    std::vector<float> host;
    each_loaded(model, sharded, sharded.place.rank, source.state != nullptr, [&](const StatePart& part) {
        host.resize(size_t(part.size()));
        source.read(model.parameters, sharded.place, sharded.place.rank, part, host.data());
        store_part(model, part, 0, host.data(), part.size());
    });
}

inline constexpr int64_t kLoadedAtOnce = 1 << 18;  // floats

// The parts that a rank loads, in the order of each_loaded().
template <class Device, class T>
void send_state(PartSender& part, const TensorSource& source, const Gpt<Device, T>& model,
                const ShardedState<Device, T>& sharded, int rank) {
    std::vector<float> values;
    each_loaded(model, sharded, rank, true, [&](const StatePart& wanted) {
        values.resize(size_t(wanted.size()));
        source.read(model.parameters, sharded.place, rank, wanted, values.data());
        part.write(values.data(), values.size() * sizeof(float));
    });
    part.finish();
}

template <class Device, class T>
void receive_state(Ranks& ranks, Gpt<Device, T>& model, const ShardedState<Device, T>& sharded) {
    PartReader part(ranks);
    std::vector<float> some;
    each_loaded(model, sharded, sharded.place.rank, true, [&](const StatePart& wanted) {
        for (int64_t at = 0; at < wanted.size(); at += kLoadedAtOnce) {
            const int64_t n = std::min(kLoadedAtOnce, wanted.size() - at);
            some.resize(size_t(n));
            part.read(some.data(), size_t(n) * sizeof(float));
            store_part(model, wanted, at, some.data(), n);
        }
    });
    part.finish();
}

// Beside adapters: the model that does not learn, which every rank reads as a whole.
template <class Device, class T>
void load_base(const StoredModel& base, Gpt<Device, T>& model) {
    std::vector<float> host;
    for (const Parameter& p : model.parameters) {
        if (!p.is_frozen) continue;
        host.resize(size_t(p.size()));
        base.read(p, host.data());
        model.set_weight(p, host.data());
    }
}

template <class Device, class T>
RunState load_run(const RunRequest& request, Ranks& ranks, Gpt<Device, T>& model,
                  const ShardedState<Device, T>& sharded) {
    const Watchdog::Patience patience(ranks.watchdog());
    const std::string& folder = request.checkpoint.path;
    std::vector<std::unique_ptr<PartSender>> parts;  // made first, so that receivers are released whatever goes wrong
    if (ranks.rank == 0)
        for (const int r : request.elsewhere) parts.push_back(std::make_unique<PartSender>(ranks, r));
    if (request.is_here) {
        const ShardedTensors state(folder, kOptimizerStem);
        const StoredModel stored = stored_model(request);
        require(same_model(stored.shape(), model.shape), "%s: %s", folder.c_str(), kOtherModel);
        const TensorSource source{stored, &state};
        load_tensors(source, model, sharded);
        for (size_t i = 0; i < parts.size(); i++) send_state(*parts[i], source, model, sharded, request.elsewhere[i]);
    } else {
        receive_state(ranks, model, sharded);
    }
    return run_state_of(request.checkpoint_file(kStateFile), folder + "/" + kStateFile);
}

// Sets the weights, and in a resumed run the sharded state. Collective. Throws an Error on all ranks if any cannot read
// its part, or if state.json is of another step than manifest.json. `read_bytes`: of all ranks; zeros unless the run is
// resumed.
template <class Device, class T>
RunState load_initial_state(const RunRequest& request, uint64_t seed, Ranks& ranks, Gpt<Device, T>& model,
                            Optimizer<Device, T>& optimizer, const ShardedState<Device, T>& sharded,
                            ReadBytes& read_bytes) {
    RunState state;
    if (request.base) share_errors(ranks, [&] { load_base(*request.base, model); });
    if (request.source && !request.base) {
        share_errors(ranks, [&] { load_tensors(TensorSource{*request.source}, model, sharded); });
        return state;
    }
    if (!request.resumed()) {
        model.initialize_weights(seed, [&](size_t i, const float* values) { optimizer.set_masters(i, values); });
        return state;
    }
    const uint64_t read_before = thread_read_bytes;
    share_errors(ranks, [&] { state = load_run(request, ranks, model, sharded); });
    const uint64_t loaded = thread_read_bytes - read_before;
    read_bytes =
        ranks.joined_value(ReadBytes{request.verified_bytes, request.verified_bytes, loaded, loaded},
                           "what it has read", [](const ReadBytes& a, const ReadBytes& b) {
                               return ReadBytes{a.verified + b.verified, std::max(a.most_verified, b.most_verified),
                                                a.loaded + b.loaded, std::max(a.most_loaded, b.most_loaded)};
                           });
    share_errors(ranks, [&] {
        require(state.step == request.checkpoint.step,
                "%s: state.json is of step %ld, and manifest.json of step %ld; use another checkpoint",
                request.checkpoint.path.c_str(), state.step, request.checkpoint.step);
    });
    state.updates = state.updates_of(sharded.place.island());
    if (!sharded.outer) state.island_updates.clear();
    return state;
}

// Gives all ranks all weights: a rank has loaded only its own part. New weights are broadcast by rank 0, to make sure
// that they are the same everywhere.
template <class Device, class T>
void share_weights(const RunRequest& request, Comm<Device>& comm, const ShardingPlan& plan, Gpt<Device, T>& model) {
    if (request.resumed() || request.source)
        gather_weights(comm, plan, model.weights);
    else
        comm.wait(comm.broadcast(model.weights.data, size_t(model.weights.size) * sizeof(T), 0));
}

// Moves the data loader to where the checkpoint was. `key`: data_key() of this run; if it is not the checkpoint's, the
// data is read from its start, with a warning.
inline void continue_data(DataLoader& train, const RunState& state, uint64_t key, const RunFlags& flags,
                          const RunRequest& request, bool is_first) {
    if (state.data_key == key)
        train.restore(state.data);
    else if (is_first) {
        std::string changed =
            request.changed({"seq-len", "packing", "document-token", "shuffle", "seed", "data-order"});
        if (changed.empty()) changed = "the shards or weights of --train-data, or the token that documents begin with";
        if (flags.data_order == "llmc") changed += ", or with --data-order llmc --batch-size or the ranks";
        std::fprintf(stderr, "warning: changed since %s: %s; reading the data from their start\n",
                     request.checkpoint.path.c_str(), changed.c_str());
    }
}

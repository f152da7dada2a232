/*
What a run starts from: new weights, another model's weights, or a checkpoint's weights and state. On all ranks:

  const InitialState start = load_initial_state(request, flags.seed, ranks, model, optimizer, sharded);
  share_weights(request, comm, optimizer.plan, model);             because each rank loads only its own part
  continue_data(*data.train, start.state, key, flags, request, is_first);      only in a resumed run
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include "llmc/base/file.h"            // thread_read_bytes
#include "llmc/comm/comm.h"            // Comm
#include "llmc/comm/ranks.h"           // Ranks, share_errors
#include "llmc/data/loader.h"          // DataLoader
#include "llmc/model/gpt.h"            // Gpt
#include "llmc/optim/optimizer.h"      // Optimizer, gather_weights
#include "llmc/train/checkpointing.h"  // RunState, ShardedState, load_tensors
#include "llmc/train/loading.h"        // load_run
#include "llmc/train/log.h"            // ReadBytes
#include "llmc/train/run_request.h"    // RunRequest

struct InitialState {
    RunState state = {};
    ReadBytes read_bytes = {};  // of all ranks; zeros unless the run is resumed
};

// Sets the weights, and in a resumed run the sharded state. Collective. Throws an Error on all ranks if any cannot read
// its part, or if state.json is of another step than manifest.json.
template <class Device, class T>
InitialState load_initial_state(const RunRequest& request, uint64_t seed, Ranks& ranks, Gpt<Device, T>& model,
                                Optimizer<Device, T>& optimizer, const ShardedState<Device, T>& sharded) {
    InitialState start;
    if (request.source) {
        share_errors(ranks, [&] { load_tensors(TensorSource{*request.source}, model, sharded); });
        return start;
    }
    if (!request.resumed()) {
        model.initialize_weights(seed, [&](size_t i, const float* values) { optimizer.set_masters(i, values); });
        return start;
    }
    RunState& state = start.state;
    const uint64_t read_before = thread_read_bytes;
    share_errors(ranks, [&] { state = load_run(request, ranks, model, sharded); });
    const uint64_t loaded = thread_read_bytes - read_before;
    start.read_bytes =
        ranks.joined_value(ReadBytes{request.verified_bytes, request.verified_bytes, loaded, loaded},
                           "what it has read", [](const ReadBytes& a, const ReadBytes& b) {
                               return ReadBytes{a.verified + b.verified, std::max(a.most_verified, b.most_verified),
                                                a.loaded + b.loaded, std::max(a.most_loaded, b.most_loaded)};
                           });
    share_errors(ranks, [&] {
        require(state.step == request.checkpoint.step,
                "%s: state.json is of step %lld, and manifest.json of step %lld; use another checkpoint",
                request.checkpoint.path.c_str(), static_cast<long long>(state.step),
                static_cast<long long>(request.checkpoint.step));
    });
    state.updates = state.updates_of(sharded.place.island());
    if (!sharded.outer) state.island_updates.clear();
    return start;
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

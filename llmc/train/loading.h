/*
Loads a resumed run's weights and state on all ranks. A rank that sees the checkpoint's folder reads the shards that it
owns; rank 0 sends the other ranks theirs, in pieces over the control plane (parts.h). So everything is read only once.
Then the weights are all-gathered over the data plane:

  state = load_run(request, ranks, model, sharded);
  gather_weights(comm, plan, model.weights);             llmc/optim/optimizer.h
*/
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>
#include "llmc/train/checkpointing.h"  // load_run, each_state
#include "llmc/train/parts.h"          // PartSender, PartReader
#include "llmc/train/run_request.h"    // RunRequest

inline constexpr int64_t kLoadedAtOnce = 1 << 18;  // floats

// The parts that a rank loads, in the order of each_loaded().
template <class Device, class T>
void send_state(PartSender& part, const TensorSource& source, const Gpt<Device, T>& model,
                const ShardedState<Device, T>& sharded, int rank) {
    std::vector<float> values;
    each_loaded(model, sharded, rank, [&](const StatePart& wanted) {
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
    each_loaded(model, sharded, sharded.place.rank, [&](const StatePart& wanted) {
        for (int64_t at = 0; at < wanted.size(); at += kLoadedAtOnce) {
            const int64_t n = std::min(kLoadedAtOnce, wanted.size() - at);
            some.resize(size_t(n));
            part.read(some.data(), size_t(n) * sizeof(float));
            store_part(model, wanted, at, some.data(), n);
        }
    });
    part.finish();
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
        const StoredModel stored(folder, true);
        require(same_model(stored.shape(), model.shape), "%s: %s", folder.c_str(), kOtherModel);
        const TensorSource source{stored, &state};
        load_tensors(source, model, sharded);
        for (size_t i = 0; i < parts.size(); i++) send_state(*parts[i], source, model, sharded, request.elsewhere[i]);
    } else {
        receive_state(ranks, model, sharded);
    }
    return run_state_of(request.checkpoint_file(kStateFile), folder + "/" + kStateFile);
}

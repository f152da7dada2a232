/*
A resumed run's weights and state, on all ranks: of those that see the checkpoint's folder each reads what it needs, and
rank 0 sends the others their pieces of the optimizer's state, in pieces over the control plane (parts.h). Weights go
from rank 0 to all over the data plane afterward, in any case.

  state = load_run(request, ranks, model, optimizer, sharded);
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

// What a rank's pieces hold, in the order of each_state.
template <class Device, class T>
void send_state(PartSender& part, const StoredModel& stored, const ShardedTensors& state, const ParameterList& list,
                const ShardedState<Device, T>& sharded, int rank) {
    std::vector<float> some, whole;  // `whole` is of this parameter:
    std::string whole_name;
    const std::string prefix = kMaster;
    each_state(sharded, rank, [&](const StatePart& wanted) {
        const std::string& name = wanted.name;
        const int64_t end = wanted.end;
        const bool from_weights = name.starts_with(prefix) && !state.has(name);  // saved in fp32, and goes on in bf16
        if (from_weights && whole_name != name) {
            for (const Parameter& p : list.parameters)
                if (prefix + p.name == name) whole.resize(size_t(p.size())), stored.read(p, whole.data());
            whole_name = name;
        }
        for (int64_t at = wanted.begin; at < end; at += kLoadedAtOnce) {
            const int64_t n = std::min(kLoadedAtOnce, end - at);
            some.resize(size_t(n));
            if (from_weights)
                std::copy_n(whole.begin() + at, n, some.begin());
            else
                read_part(state, sharded.place, rank, wanted, at, at + n, some.data());
            part.write(some.data(), size_t(n) * sizeof(float));
        }
    });
    part.finish();
}

template <class Device, class T>
void receive_state(Ranks& ranks, Gpt<Device, T>& model, const ShardedState<Device, T>& sharded) {
    PartReader part(ranks);
    std::vector<float> some;
    each_state(sharded, sharded.place.rank, [&](const StatePart& wanted) {
        for (int64_t at = 0; at < wanted.size(); at += kLoadedAtOnce) {
            const int64_t n = std::min(kLoadedAtOnce, wanted.size() - at);
            some.resize(size_t(n));
            part.read(some.data(), size_t(n) * sizeof(float));
            store_part(model.device, wanted, at, some.data(), n);
        }
    });
    part.finish();
}

template <class Device, class T>
RunState load_run(const RunRequest& request, Ranks& ranks, Gpt<Device, T>& model, Optimizer<Device, T>& optimizer,
                  const ShardedState<Device, T>& sharded) {
    const Watchdog::Patience patience(ranks.watchdog());
    const std::string& folder = request.checkpoint.path;
    std::vector<std::unique_ptr<PartSender>> parts;  // made first: whatever goes wrong, nobody waits in vain
    if (ranks.rank == 0)
        for (const int r : request.elsewhere) parts.push_back(std::make_unique<PartSender>(ranks, r));
    if (request.is_here) {
        load_tensors(folder, model, optimizer, sharded);
    } else {
        receive_state(ranks, model, sharded);
    }
    if (!parts.empty()) {
        const ShardedTensors state(folder, kOptimizerStem);
        const StoredModel stored(folder, true);
        for (size_t i = 0; i < parts.size(); i++)
            send_state(*parts[i], stored, state, model.parameters, sharded, request.elsewhere[i]);
    }
    return run_state_of(request.checkpoint_file(kStateFile), folder + "/" + kStateFile);
}

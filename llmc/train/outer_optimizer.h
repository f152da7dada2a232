/*
The outer step of islands (llmc/optim/outer_state.h) on a rank's device: it copies the weights that this rank owns
(master weights if any) to host memory, and the new ones back. On a GPU that is one copy each way every --outer-every
steps. Before, every rank tells all others its state, in a few bytes, so that a run that cannot continue ends before any
weight is changed, and no rank saves a checkpoint.

  OuterOptimizer<Device, T> outer(world, model, optimizer, comm, config);        all ranks
  outer.begin();                             once weights and state have their initial values
  const IslandStates islands(ranks, place, {.is_finite = outer.copy_weights(), ...});     all ranks, after the same step
  islands.check(step);                          an Error on all ranks if any island cannot continue
  apply_outer_step(outer, ranks, step);         an Error on all ranks if the mean of the weights is not finite
  islands.update(state);                        sets the members of the state that summarize all islands
*/
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>
#include "llmc/base/check.h"            // format
#include "llmc/checkpoint/run_state.h"  // RunState
#include "llmc/comm/launch/islands.h"   // IslandLink, IslandPlace
#include "llmc/comm/ranks.h"            // Ranks, SharedError
#include "llmc/model/gpt.h"             // Gpt
#include "llmc/optim/optimizer.h"       // Optimizer
#include "llmc/optim/outer_state.h"     // OuterState, OuterConfig
#include "llmc/run/step_config.h"       // Vote
#include "llmc/train/run_end.h"         // kMostSkippedInARow
#include "llmc/train/world.h"           // World

template <class Device, class T>
class OuterOptimizer {
public:
    OuterOptimizer(World& world, Gpt<Device, T>& model, Optimizer<Device, T>& optimizer, Comm<Device>& comm,
                   int islands, const OuterConfig& config)
        : model_(model),
          optimizer_(optimizer),
          comm_(comm),
          link_(world.ranks, islands, world.group != nullptr),
          islands_(islands),
          type_(config.type),
          state_(optimizer.plan.state_size[size_t(optimizer.rank)], config) {
        static_assert(OuterState::kScaled == kParameterAlignment);
    }

    OuterState& state() { return state_; }
    // Bytes that this rank sends to the other islands in an outer step.
    size_t sent_bytes() const { return size_t(islands_ - 1) * OuterState::encoded_bytes(state_.size(), type_); }

    // Makes the current weights, from which all islands start, the reference.
    void begin() {
        copy_weights();
        std::copy(weights_.begin(), weights_.end(), state_.reference());
        weights_ = {};
    }

    // Copies this rank's weights; whether all are finite.
    bool copy_weights() {
        weights_.resize(size_t(state_.size()));
        each_piece([&](size_t i, const ShardPiece& piece, int64_t at) {
            float* const to = weights_.data() + at;
            if constexpr (std::is_same_v<T, float>)
                copy_to_host(model_.device, to, weight_of(piece), piece.size());
            else
                copy_to_host(model_.device, to, optimizer_.master_weights(i), piece.size());
        });
        return std::all_of(weights_.begin(), weights_.end(), [](float w) { return std::isfinite(w); });
    }

    // If they are finite on all ranks. Collective; false if this rank's result is not finite.
    bool exchange() {
        const std::string mine = state_.encode(weights_.data());
        weights_ = {};
        return state_.apply(link_.all_gather(mine));
    }

    // Sets this rank's new weights, then all-gathers them in its island.
    void apply() {
        std::vector<T> rounded;
        each_piece([&](size_t i, const ShardPiece& piece, int64_t at) {
            const float* const from = state_.reference() + at;
            if constexpr (std::is_same_v<T, float>) {
                copy_to_device(model_.device, weight_of(piece), from, piece.size());
            } else {
                copy_to_device(model_.device, optimizer_.master_weights(i), from, piece.size());
                rounded.resize(size_t(piece.size()));
                std::transform(from, from + piece.size(), rounded.begin(), [](float w) { return to_bf16(w); });
                copy_to_device(model_.device, weight_of(piece), rounded.data(), piece.size());
            }
        });
        gather_weights(comm_, optimizer_.plan, model_.weights);
    }

private:
    Gpt<Device, T>& model_;
    Optimizer<Device, T>& optimizer_;
    Comm<Device>& comm_;
    IslandLink link_;
    const int islands_;
    const OuterType type_;
    OuterState state_;            // its elements are in the order of the optimizer's state (ShardPiece::state_offset)
    std::vector<float> weights_;  // from copy_weights() until they are sent

    T* weight_of(const ShardPiece& piece) const {
        return model_.weights.data + optimizer_.parameter(piece).offset + piece.begin;
    }
    template <class Visit>
    void each_piece(Visit&& visit) const {
        for (size_t i = 0; i < optimizer_.pieces().size(); i++) {
            const ShardPiece& piece = optimizer_.pieces()[i];
            visit(i, piece, piece.state_offset);
        }
    }
};

class IslandStates {
public:
    // Of one rank. All members are int64_t, because they are sent as raw bytes.
    struct OfRank {
        int64_t is_finite, has_bad_data, skipped_in_a_row, unlearned_in_a_row, updates, elapsed_us;
        std::array<int64_t, std::size(StepSums().votes)> votes = {};
    };

    // Collective over all islands.
    IslandStates(Ranks& ranks, const IslandPlace& place, const OfRank& mine)
        : place_(place), all_(ranks.all_gather_values(mine, "how its island is")) {}

    // How many ranks of all islands cast this vote.
    int64_t count(Vote vote) const {
        return std::count_if(all_.begin(), all_.end(),
                             [&](const OfRank& rank) { return rank.votes[size_t(vote)] != 0; });
    }
    bool has_bad_data() const {
        return std::any_of(all_.begin(), all_.end(), [](const OfRank& rank) { return rank.has_bad_data != 0; });
    }
    double training_s() const { return double(all_[0].elapsed_us) * 1e-6; }  // rank 0's

    // `T`, `cropped`: of the data, for the error if an island finds nothing to learn in them.
    void check(int64_t step, int64_t T, double cropped) const {
        for (const OfRank& rank : all_)
            if (rank.unlearned_in_a_row >= kMostSkippedInARow)
                throw SharedError(kExitUsage, format("an island has had no target to learn in %ld steps in a row, up "
                                                     "to step %ld: %s",
                                                     rank.unlearned_in_a_row, step,
                                                     unlearned_advice("--train-data", T, cropped).c_str()));
        for (size_t r = 0; r < all_.size(); r++)
            if (!all_[r].is_finite || all_[r].skipped_in_a_row >= kMostSkippedInARow)
                throw SharedError(
                    kExitDiverged,
                    format(
                        "outer step at step %ld: the %s of %s not finite, so no island has taken it: resume from an "
                        "earlier checkpoint with a lower --learning-rate, or a lower outer-lr in a file for --recipe",
                        step, all_[r].is_finite ? "loss or the gradient" : "weights",
                        (place_.name_of(place_.island_of(int(r))) + (all_[r].is_finite ? " is" : " are")).c_str()));
    }

    void update(RunState& state) const {
        state.skipped_in_a_row = 0;
        state.island_updates.clear();
        for (int island = 0; island < place_.count(); island++) {
            const OfRank& rank = all_[size_t(island * place_.size())];
            state.skipped_in_a_row = std::max(state.skipped_in_a_row, rank.skipped_in_a_row);
            state.island_updates += (island ? "," : "") + std::to_string(rank.updates);
        }
    }

private:
    const IslandPlace place_;
    const std::vector<OfRank> all_;
};

// Exchanges and applies the outer step. Collective over all islands. Throws a SharedError, with all weights unchanged,
// if the result is not finite on any rank.
template <class Device, class T>
void apply_outer_step(OuterOptimizer<Device, T>& outer, Ranks& ranks, int64_t step) {
    const bool is_sound = outer.exchange();
    const std::vector<int64_t> sound = ranks.all_gather_values(int64_t(is_sound), "its part of the outer step");
    for (size_t r = 0; r < sound.size(); r++)
        if (!sound[r])
            throw SharedError(kExitDiverged,
                              format("outer step at step %ld: the mean of the islands is not finite, as rank %zu "
                                     "computes it, so none has taken it: resume from an earlier checkpoint with a "
                                     "lower outer-lr in a file for --recipe",
                                     step, r));
    outer.apply();
}

/*
The outer step of islands (llmc/optim/outer_state.h) on a rank's device: it copies the weights that this rank owns
(master weights if any) to host memory, and the new ones back. On a GPU that is one copy each way every --outer-every
steps.

  OuterOptimizer<Device, T> outer(world, model, optimizer, comm, config);        all ranks
  outer.begin();                             once weights and state have their initial values
  const bool is_finite = outer.copy_weights();       copies this rank's weights; whether all are finite
  outer.exchange();                          if they are on all ranks: collective; false if this rank's result is not
  outer.apply();                             sets this rank's new weights, then all-gathers them in its island
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>
#include "llmc/comm/launch/islands.h"  // IslandLink, IslandPlace
#include "llmc/model/gpt.h"            // Gpt
#include "llmc/optim/optimizer.h"      // Optimizer
#include "llmc/optim/outer_state.h"    // OuterState, OuterConfig
#include "llmc/train/world.h"          // World

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

    bool exchange() {
        const std::string mine = state_.encode(weights_.data());
        weights_ = {};
        return state_.apply(link_.all_gather(mine));
    }

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

/*
The optimizer of one rank. For the pieces that this rank owns (sharding.h) it holds the state, and master weights if the
weights are not fp32 and the config asks for them; in the device's memory, or in the host's (offload.h). It updates each
piece by the rule of its group (update_rules.h):

  Optimizer<Device, T> optimizer(device, list, plan, rank, config);
  optimizer.set_masters(i, values);                          from the float values of parameter i
  optimizer.update(bucket, weights, shard, rates, scalars);  from this rank's shard of the bucket's gradients, summed
                                                             over all ranks
*/
#pragma once
#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>
#include "llmc/base/tensor.h"         // DType
#include "llmc/comm/comm.h"           // Comm
#include "llmc/model/parameters.h"    // ParameterList, Buffer
#include "llmc/ops/ops.h"             // Ops
#include "llmc/ops/step_scalars.h"    // StepScalars
#include "llmc/ops/weight_average.h"  // WeightAverage
#include "llmc/optim/offload.h"       // OffloadedState
#include "llmc/optim/sharding.h"      // ShardingPlan, ShardPiece, whole_plan
#include "llmc/optim/state_layout.h"  // StateLayout, StateRange
#include "llmc/optim/update_rules.h"  // UpdateRules

template <class Device, class T = float>
class Optimizer {
public:
    Device& device;
    const ParameterList& parameters;
    const ShardingPlan plan;
    const int rank;
    const OptimizerConfig config;
    const Ops<Device, T>& op;

    // For a single rank, which owns everything, in the order of the list.
    Optimizer(Device& device, const ParameterList& list, const OptimizerConfig& config)
        : Optimizer(device, list, whole_plan(list, shards_whole_matrices(config)), 0, config) {}

    // `plan` must keep matrices whole if the config's rule for them requires it.
    Optimizer(Device& device, const ParameterList& list, const ShardingPlan& plan, int rank,
              const OptimizerConfig& config)
        : device(device),
          parameters(list),
          plan(plan),
          rank(rank),
          config(config),
          op(ops<T>(device)),
          layout_(list, plan, rank, config),
          arena_(device, "optimizer", layout_.memory_bytes(sizeof(T))) {
        for (size_t k = 0; k < layout_.num_tensors(sizeof(T)); k++) {
            kept_[k] = arena_.take<char>(layout_.kept[k]);
            fill_zero(device, kept_[k], layout_.kept[k]);
        }
        if (!layout_.offloaded.empty()) offloaded_.emplace(device, layout_, sizeof(T), arena_);
        for (size_t rule = 0; rule < UpdateRules::size; rule++)
            for (const size_t bytes : layout_.scratch_bytes(rule, sizeof(T)))
                scratch_[rule].push_back(arena_.take<char>(int64_t(bytes)));
        for (size_t i = 0; i < pieces().size(); i++) updated_.push_back(without_pointers(i));
    }

    bool has_masters() const { return !std::is_same_v<T, float> && config.master_weights; }
    const std::vector<ShardPiece>& pieces() const { return plan.pieces[size_t(rank)]; }
    const Parameter& parameter(const ShardPiece& piece) const { return parameters.parameters[piece.parameter]; }
    const UpdateRule& rule(const ShardPiece& piece) const {
        return update_rule(config.rule(parameter(piece).group).name);
    }

    // Whether a piece's state and master weights lie in host memory; before it is read, wait until it is whole.
    bool is_offloaded(size_t piece) const { return layout_.is_offloaded(pieces()[piece]); }
    void finish_copies() const {
        if (offloaded_) offloaded_->finish();
    }

    // For a piece of pieces(), in device memory unless is_offloaded(): its elements of one of its rule's state tensors,
    // and its master weights (null if there are none).
    void* state_data(size_t tensor, size_t piece) const { return data(tensor, piece, layout_.offsets[piece][tensor]); }
    DType state_dtype(size_t tensor, const ShardPiece& piece) const { return rule(piece).state_dtype(tensor, config); }
    float* state(size_t tensor, size_t piece) const {  // only if it is fp32
        ensure(state_dtype(tensor, pieces()[piece]) == DType::f32);
        return static_cast<float*>(state_data(tensor, piece));
    }
    float* master_weights(size_t piece) const {
        if (!has_masters()) return nullptr;
        const int64_t offset = pieces()[piece].state_offset * int64_t(sizeof(float));
        return reinterpret_cast<float*>(data(StateLayout::kMasters, piece, offset));
    }
    // How its values in bf16 are rounded.
    MomentRounding rounding(size_t piece) const {
        const ShardPiece& of = pieces()[piece];
        return {moments_key(config.seed, parameter(of).name), uint64_t(of.begin)};
    }
    // The range of a piece's state within the state tensor of the whole parameter, for any rank's piece.
    StateRange range(size_t tensor, const ShardPiece& piece) const {
        return state_range(tensor, piece, parameter(piece), config);
    }

    // From the float values of a whole parameter, in host memory. The weight itself is set by Gpt::set_weight.
    void set_masters(size_t parameter, const float* values) {
        if (has_masters())
            for (size_t i = 0; i < pieces().size(); i++)
                if (const ShardPiece& piece = pieces()[i]; piece.parameter == parameter) {
                    if (is_offloaded(i))
                        std::copy_n(values + piece.begin, piece.size(), master_weights(i));
                    else
                        copy_to_device(device, master_weights(i), values + piece.begin, piece.size());
                }
    }

    // With OptimizerConfig::averages: sets the weights that this rank owns to their averages, or back to the bits of
    // before. Meanwhile, fp32 weights, which are their own master weights, lie where their averages were.
    void show_averages(Buffer<Device, T>& weights, bool shown) {
        finish_copies();
        std::vector<float> values, others;
        const auto copy = [&](std::vector<float>& to, const float* from, int64_t n, bool on_host) {
            to.resize(size_t(n));
            if (on_host)
                std::copy_n(from, n, to.data());
            else
                copy_to_host(device, to.data(), from, n);
        };
        for (size_t i = 0; i < pieces().size(); i++) {
            const ShardPiece& piece = pieces()[i];
            T* const weight = weights.data + parameter(piece).offset + piece.begin;
            float* const average = state(rule(piece).average(), i);
            const int64_t n = piece.size();
            if constexpr (std::is_same_v<T, float>) {
                copy(values, weight, n, false), copy(others, average, n, is_offloaded(i));
                copy_to_device(device, weight, others.data(), n);
                if (is_offloaded(i))
                    std::copy_n(values.data(), n, average);
                else
                    copy_to_device(device, average, values.data(), n);
            } else {
                copy(values, shown ? average : master_weights(i), n, is_offloaded(i));
                std::vector<T> rounded(values.size());
                std::transform(values.begin(), values.end(), rounded.begin(), [](float x) { return to_bf16(x); });
                copy_to_device(device, weight, rounded.data(), n);
            }
        }
        shows_averages_ = shown;
    }
    bool shows_averages() const { return shows_averages_; }

    // `scalars` as UpdateBatch::scalars. If state is offloaded, from the last bucket to the first.
    void update(size_t bucket, Buffer<Device, T>& weights, const float* shard, const Rates& rates,
                const StepScalars* scalars) {
        for (size_t s = 0; s < layout_.stages.size(); s++) {
            const StateLayout::Stage& stage = layout_.stages[s];
            if (stage.bucket != bucket) continue;
            if (stage.is_offloaded) offloaded_->begin(s);
            for (size_t b = stage.first_batch; b < stage.end_batch; b++)
                update(layout_.batches[bucket][b], first_element(bucket), weights, shard, rates, scalars);
            if (stage.is_offloaded) offloaded_->end(s);
        }
    }
    void update(Buffer<Device, T>& weights, const Buffer<Device, float>& gradients, const Rates& rates,
                const StepScalars* scalars) {
        for (size_t bucket = plan.buckets.size(); bucket-- > 0;)
            update(bucket, weights, gradients.data + first_element(bucket), rates, scalars);
    }

    // Bytes of workspace that the device must reserve for the ops of update().
    size_t workspace_bytes() const { return workspace_bytes(device, layout_); }
    static size_t workspace_bytes(Device& device, const StateLayout& layout) {
        size_t most = 0;
        for (const std::vector<StateLayout::Batch>& bucket : layout.batches)
            for (const StateLayout::Batch& batch : bucket)
                most =
                    std::max(most, UpdateRules::template workspaces<Device, T>[batch.rule](
                                       device, ops<T>(device), int64_t(batch.pieces.size()), batch.rows, batch.cols));
        return most;
    }

private:
    const StateLayout layout_;
    Arena arena_;
    std::optional<OffloadedState<Device>> offloaded_;
    char* kept_[StateLayout::kMasters + 1] = {};  // what of each tensor is not offloaded
    std::vector<char*> scratch_[UpdateRules::size];
    std::vector<UpdatePiece<T>> updated_;  // every piece, but for its place in weights and gradients
    std::vector<UpdatePiece<T>> batch_;    // of the call under way
    std::vector<WeightAverage> averages_;  // of the same
    bool shows_averages_ = false;

    // Of this rank's shard.
    int64_t first_element(size_t bucket) const {
        const Bucket& all = plan.buckets[bucket];
        return all.offset + rank % plan.shards * all.shard;
    }

    void update(const StateLayout::Batch& batch, int64_t first, Buffer<Device, T>& weights, const float* shard,
                const Rates& rates, const StepScalars* scalars) {
        batch_.clear();
        for (const size_t i : batch.pieces) {
            const int64_t at = parameter(pieces()[i]).offset + pieces()[i].begin;
            batch_.push_back(updated_[i]);
            batch_.back().weight = weights.data + at, batch_.back().gradient = shard + (at - first);
            if (is_offloaded(i)) move_to_device(batch_.back());
        }
        UpdateRules::template updates<Device, T>[batch.rule]({.device = device,
                                                              .op = op,
                                                              .pieces = batch_,
                                                              .rows = batch.rows,
                                                              .cols = batch.cols,
                                                              .scratch = scratch_[batch.rule],
                                                              .config = config,
                                                              .rates = rates,
                                                              .scalars = scalars});
        if (rates.average == 0) return;
        averages_.clear();
        const size_t average = UpdateRules::values()[batch.rule]->average();
        for (const UpdatePiece<T>& piece : batch_) {
            const float* weight = piece.master_weight;
            if constexpr (std::is_same_v<T, float>) weight = piece.weight;
            averages_.push_back({piece.template state_as<float>(average), weight, piece.size});
        }
        op.average_weights(device, averages_.data(), int64_t(averages_.size()), rates.average);
    }
    void move_to_device(UpdatePiece<T>& piece) const {
        for (size_t k = 0; k < kMostStateTensors; k++)
            if (piece.state[k]) piece.state[k] = offloaded_->on_device(k, piece.state[k]);
        if (piece.master_weight)
            piece.master_weight =
                reinterpret_cast<float*>(offloaded_->on_device(StateLayout::kMasters, piece.master_weight));
    }

    char* data(size_t tensor, size_t piece, int64_t offset) const {
        return is_offloaded(piece) ? offloaded_->host(tensor, offset) : kept_[tensor] + offset;
    }

    UpdatePiece<T> without_pointers(size_t i) const {
        const ShardPiece& piece = pieces()[i];
        UpdatePiece<T> result{.weight = nullptr,
                              .master_weight = master_weights(i),
                              .state = {},
                              .gradient = nullptr,
                              .size = piece.size(),
                              .group = parameter(piece).group,
                              .rounding = rounding(i),
                              .rate = parameter(piece).rate};
        for (size_t k = 0; k < rule(piece).state.size(); k++)
            if (range(k, piece).size() > 0) result.state[k] = state_data(k, i);
        return result;
    }
};

// All-gathers the weights, bucket by bucket, after each rank has set the ones that it owns. Collective.
template <class Device, class T>
void gather_weights(Comm<Device>& comm, const ShardingPlan& plan, Buffer<Device, T>& weights) {
    for (const Bucket& bucket : plan.buckets)
        comm.wait(comm.all_gather(weights.data + bucket.offset, size_t(bucket.shard) * sizeof(T)));
}

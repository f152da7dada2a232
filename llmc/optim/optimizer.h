/*
The optimizer of one rank: AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101) for everything, or Muon
(llmc/cpu/muon.h) for the matrices inside the blocks and AdamW for the rest, with a rule for each group of parameters
(recipe.h). It keeps state, and beside weights that are not float the fp32 masters, for the pieces that this rank owns
(sharding.h), and updates those:

  Optimizer<Device, T> optimizer(device, list, plan, rank, config);
  optimizer.set_masters(i, values);                          from the float values of parameter i
  optimizer.update(bucket, weights, gradients, rates, scalars);

What a piece is updated from lies in its own shard of the gradients, which holds the sum over all ranks.
*/
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>
#include "llmc/model/parameters.h"   // ParameterList, Buffer
#include "llmc/ops/adamw.h"          // AdamWHyper
#include "llmc/ops/muon.h"           // MuonStep
#include "llmc/ops/newton_schulz.h"  // NewtonSchulzOptions
#include "llmc/ops/ops.h"            // Ops
#include "llmc/ops/step_scalars.h"   // StepScalars
#include "llmc/optim/sharding.h"     // ShardingPlan, ShardPiece

// AdamW's, for one group of parameters. The defaults are GPT-2's.
struct GroupRule {
    double learning_rate = 1;  // at the height of the schedule
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
    // What of it is scaled (llmc/train/scaling.h): the rate by the batch and by the width, the decay by the length.
    bool by_batch = true, by_width = false, decay_by_length = true;
};

struct MuonConfig {
    double momentum = 0.95, beta2 = 0.9, weight_decay = 0.1;
    double margin = 1.01;      // of MuonStep
    bool shaped_decay = true;  // tall matrices decay faster, too (MuonStep::rate); else by the learning rate alone
    bool equal_rows = true, fixed_norm = true, second_moment = true,
         cautious = true;  // the parts of nanochat's variant
    NewtonSchulzOptions newton_schulz = NewtonSchulzOptions::polar_express();
};

// What one step is made with. It may change from step to step; the rest of the rules does not.
struct Rates {
    std::array<double, kNumParameterGroups> adamw;  // learning rates, of each group
    double muon, muon_momentum, muon_weight_decay;
};

struct OptimizerConfig {
    std::array<GroupRule, kNumParameterGroups> groups = decayed_groups();
    double muon_learning_rate = 1;
    MuonConfig muon = {};

    GroupRule& rule(ParameterGroup group) { return groups[size_t(group)]; }
    const GroupRule& rule(ParameterGroup group) const { return groups[size_t(group)]; }

    // Every group at a part of its highest learning rate.
    Rates rates(double part) const {
        Rates rates{.adamw = {},
                    .muon = muon_learning_rate * part,
                    .muon_momentum = muon.momentum,
                    .muon_weight_decay = muon.weight_decay};
        for (size_t g = 0; g < groups.size(); g++) rates.adamw[g] = groups[g].learning_rate * part;
        return rates;
    }

private:
    // Matrices and embeddings decay; what is added, multiplied or mixed by single numbers does not.
    static std::array<GroupRule, kNumParameterGroups> decayed_groups() {
        std::array<GroupRule, kNumParameterGroups> groups;
        using enum ParameterGroup;
        for (const ParameterGroup group : {matrices, embedding, positions, head, value_embeddings})
            groups[size_t(group)].weight_decay = 0.1;
        return groups;
    }
};

template <class Device, class T = float>
class Optimizer {
public:
    static constexpr bool kHasMasters = !std::is_same_v<T, float>;

    Device& device;
    const ParameterList& parameters;
    const ShardingPlan plan;
    const int rank;
    const OptimizerConfig config;
    const Ops<Device, T>& op;

    // One rank that owns everything, in the order of the list.
    Optimizer(Device& device, const ParameterList& list, const OptimizerConfig& config, bool muon = false)
        : Optimizer(device, list, whole_plan(list, muon), 0, config) {}

    Optimizer(Device& device, const ParameterList& list, const ShardingPlan& plan, int rank,
              const OptimizerConfig& config)
        : device(device),
          parameters(list),
          plan(plan),
          rank(rank),
          config(config),
          op(ops<T>(device)),
          sizes_(plan, rank, config.muon),
          arena_(device, "optimizer", sizes_.arena_bytes()) {
        first_ = zeros(sizes_.first);
        second_ = zeros(sizes_.second);
        if (kHasMasters) masters_ = zeros(sizes_.first);
        X_ = arena_.take<T>(sizes_.X);
        row_squares_ = arena_.take<float>(sizes_.longest_side);
        squares_ = arena_.take<float>(sizes_.longest_side);
        scales_ = arena_.take<float>(sizes_.longest_side);
    }

    // What the optimizer of a rank takes, for plans made before there is one.
    static size_t memory_bytes(const ShardingPlan& plan, int rank, const OptimizerConfig& config) {
        return Sizes(plan, rank, config.muon).arena_bytes();
    }

    const std::vector<ShardPiece>& pieces() const { return plan.pieces[size_t(rank)]; }
    const Parameter& parameter(const ShardPiece& piece) const { return parameters.parameters[piece.parameter]; }

    // The state of a piece of pieces(), in the device's memory: AdamW's moments or Muon's momentum; NorMuon's second
    // moment of rows or columns; the masters, which are null where weights are float.
    float* first(size_t piece) const { return first_ + pieces()[piece].state_offset; }
    float* second(size_t piece) const { return second_ + sizes_.second_offsets[piece]; }
    float* masters(size_t piece) const { return kHasMasters ? masters_ + pieces()[piece].state_offset : nullptr; }
    int64_t second_size(const ShardPiece& piece) const { return Sizes::second_size(piece, config.muon); }
    // Where second(piece) begins in the state of the whole parameter, whose matrices' follow each other.
    int64_t second_begin(const ShardPiece& piece) const {
        if (!piece.muon) return piece.begin;
        int64_t begin = 0, at = 0;
        for (const int64_t rows : parameter(piece).matrix_rows) {
            if (at == piece.begin) break;
            begin += config.muon.second_moment ? std::max(rows, piece.cols) : 0, at += rows * piece.cols;
        }
        return begin;
    }

    // From the float values of a whole parameter, in host memory. The weight itself is set by Gpt::set_weight.
    void set_masters(size_t parameter, const float* values) {
        if constexpr (kHasMasters)
            for (size_t i = 0; i < pieces().size(); i++)
                if (const ShardPiece& piece = pieces()[i]; piece.parameter == parameter)
                    copy_to_device(device, masters(i), values + piece.begin, piece.size());
    }

    // `scalars`, in the device's memory, hold the gradient's scale, the number of updates with this one, and whether
    // there is one: nothing changes, bit for bit, if not.
    void update(size_t bucket, Buffer<Device, T>& weights, const Buffer<Device, float>& gradients, const Rates& rates,
                const StepScalars* scalars) {
        for (const size_t i : sizes_.of_bucket[bucket].adamw) {
            const ShardPiece& piece = pieces()[i];
            const int64_t at = parameter(piece).offset + piece.begin;
            const ParameterGroup group = parameter(piece).group;
            const GroupRule& rule = config.rule(group);
            op.adamw_update(device, weights.data + at, masters(i), first(i), second(i), gradients.data + at,
                            piece.size(),
                            AdamWHyper{.learning_rate = rates.adamw[size_t(group)],
                                       .beta1 = rule.beta1,
                                       .beta2 = rule.beta2,
                                       .eps = rule.eps,
                                       .weight_decay = rule.weight_decay},
                            scalars);
        }
        for (const auto& [shape, batches] : sizes_.of_bucket[bucket].muon)
            for (const std::vector<size_t>& batch : batches)
                muon(batch, shape.first, shape.second, weights, gradients, rates, scalars);
    }
    void update(Buffer<Device, T>& weights, const Buffer<Device, float>& gradients, const Rates& rates,
                const StepScalars* scalars) {
        for (size_t bucket = 0; bucket < plan.buckets.size(); bucket++)
            update(bucket, weights, gradients, rates, scalars);
    }

    // What the ops of update() work with, for the device to reserve.
    size_t workspace_bytes() const {
        size_t most = 0;
        for (const OfBucket& bucket : sizes_.of_bucket)
            for (const auto& [shape, batches] : bucket.muon)
                for (const std::vector<size_t>& batch : batches)
                    most = std::max(
                        most, op.newton_schulz_workspace(device, int64_t(batch.size()), shape.first, shape.second));
        return most;
    }

private:
    struct OfBucket {
        std::vector<size_t> adamw;                                                     // numbers of pieces
        std::map<std::pair<int64_t, int64_t>, std::vector<std::vector<size_t>>> muon;  // batches of each shape
    };
    // The buffers of a rank, in elements, and what is updated together.
    struct Sizes {
        // Matrices that are made orthogonal at once: as many as fit in this.
        static constexpr int64_t kBatchElements = int64_t(1) << 25;

        int64_t first, second = 0, X = 0, longest_side = 0;
        std::vector<int64_t> second_offsets;  // of each piece
        std::vector<OfBucket> of_bucket;

        Sizes(const ShardingPlan& plan, int rank, const MuonConfig& muon)
            : first(plan.state_size[size_t(rank)]), of_bucket(plan.buckets.size()) {
            const std::vector<ShardPiece>& pieces = plan.pieces[size_t(rank)];
            for (size_t i = 0; i < pieces.size(); i++) {
                const ShardPiece& piece = pieces[i];
                second_offsets.push_back(second);
                second += aligned_elements(second_size(piece, muon));
                if (!piece.muon) {
                    of_bucket[piece.bucket].adamw.push_back(i);
                    continue;
                }
                auto& batches = of_bucket[piece.bucket].muon[{piece.rows, piece.cols}];
                if (batches.empty() || int64_t(batches.back().size() + 1) * piece.size() > kBatchElements)
                    batches.emplace_back();
                batches.back().push_back(i);
                X = std::max(X, int64_t(batches.back().size()) * piece.size());
                longest_side = std::max({longest_side, piece.rows, piece.cols});
            }
        }
        static int64_t second_size(const ShardPiece& piece, const MuonConfig& muon) {
            if (!piece.muon) return piece.size();
            return muon.second_moment ? std::max(piece.rows, piece.cols) : 0;
        }
        size_t arena_bytes() const {
            const auto bytes = [](int64_t n, size_t size) { return aligned(size_t(n) * size); };
            return bytes(first, sizeof(float)) * (kHasMasters ? 2 : 1) + bytes(second, sizeof(float)) +
                   bytes(X, sizeof(T)) + 3 * bytes(longest_side, sizeof(float));
        }
    };
    const Sizes sizes_;
    Arena arena_;
    float *first_ = nullptr, *second_ = nullptr, *masters_ = nullptr;
    T* X_ = nullptr;  // matrices on their way to being orthogonal
    float *row_squares_ = nullptr, *squares_ = nullptr, *scales_ = nullptr;

    float* zeros(int64_t n) {
        float* data = arena_.take<float>(n);
        fill_zero(device, data, n);
        return data;
    }

    void muon(const std::vector<size_t>& batch, int64_t R, int64_t K, Buffer<Device, T>& weights,
              const Buffer<Device, float>& gradients, const Rates& rates, const StepScalars* scalars) {
        const MuonStep step{
            .learning_rate = rates.muon,
            .momentum = rates.muon_momentum,
            .beta2 = config.muon.beta2,
            .weight_decay = rates.muon_weight_decay / (config.muon.shaped_decay ? 1 : MuonStep::shape_factor(R, K)),
            .equal_rows = config.muon.equal_rows,
            .fixed_norm = config.muon.fixed_norm,
            .cautious = config.muon.cautious,
            .margin = config.muon.margin};
        const auto at = [&](size_t i) { return parameter(pieces()[i]).offset + pieces()[i].begin; };
        T* X = X_;
        for (const size_t i : batch) {
            op.muon_momentum(device, X, row_squares_, first(i), gradients.data + at(i), R, K, step, scalars);
            op.muon_normalise(device, X, row_squares_, R, K, step);
            X += R * K;
        }
        op.newton_schulz(device, X_, int64_t(batch.size()), R, K, config.muon.newton_schulz);
        X = X_;
        for (const size_t i : batch) {
            op.muon_squares(device, squares_, X, R, K);
            op.muon_scales(device, scales_, config.muon.second_moment ? second(i) : nullptr, squares_, R, K, step,
                           scalars);
            op.muon_update(device, weights.data + at(i), masters(i), X, scales_, R, K, step, scalars);
            X += R * K;
        }
    }
};

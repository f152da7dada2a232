/*
An optimizer as a value. A rule is a struct with two members: an UpdateRule, which has all that sharding, memory plan,
checkpoints and recipes need, and the update itself, a template over device and dtype:

  struct AdamWRule : RuleWithoutWorkspace {
      inline static const UpdateRule value{.name = "adamw", .title = "AdamW", .state = {{"m"}, {"v"}}};
      template <class Device, class T>
      static void update(const UpdateBatch<Device, T>& batch);
  };

Each rule has its own file, X_rule.h, and an entry in the list of update_rules.h. The Optimizer (optimizer.h) allocates
its state and calls it, with one indirect call per batch. State is fp32; tensors as large as the parameter may be bf16.
It is 0 before the first step.
*/
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/tensor.h"             // DType
#include "llmc/ops/moments.h"             // MomentRounding
#include "llmc/ops/ops.h"                 // Ops
#include "llmc/ops/step_scalars.h"        // StepScalars
#include "llmc/optim/optimizer_config.h"  // OptimizerConfig, Rates

inline constexpr size_t kMostStateTensors = 4;             // per rule
inline constexpr int64_t kAnyElements = int64_t(1) << 62;  // UpdateRule::batch_elements

// A state tensor that a rule keeps for each parameter.
struct StateTensor {
    std::string name;  // in checkpoints, where "m" is the tensor "m.wte.weight" of the parameter "wte.weight"
    // The number of elements for a matrix (rows, cols), for rules that update whole matrices. Null: one per element.
    int64_t (*matrix_size)(int64_t rows, int64_t cols, const OptimizerConfig&) = nullptr;
    bool is_average = false;  // of the weights, in fp32: kAverage
};

// The last tensor of each rule: the average of the weights over the end of a run. It has elements if
// OptimizerConfig::averages; the Optimizer updates it, not the rule.
inline const StateTensor kAverage{.name = "average", .is_average = true};

struct UpdateRule {
    std::string name;   // in flags and in GroupRule: "adamw"
    std::string title;  // in tables: "AdamW"
    // How parameters are sharded over ranks (sharding.h): in pieces that begin and end anywhere, or as whole matrices.
    bool whole_matrices = false;
    bool has_eps = false;  // for tables: it uses GroupRule::eps
    std::vector<StateTensor> state = {};

    // Pieces of a bucket are updated together up to this many elements, matrices only with others of their shape; 0:
    // each by itself.
    int64_t batch_elements = 0;
    // Bytes of each buffer that the update of n matrices (rows, cols) uses besides, weights of weight_size bytes.
    // Buffers are shared by all batches: each is as large as the largest needs. Null: none.
    std::vector<size_t> (*scratch_bytes)(int64_t n, int64_t rows, int64_t cols, size_t weight_size) = nullptr;

    size_t average() const { return state.size() - 1; }  // kAverage in `state`

    // Elements of a state tensor for a matrix, or for a piece of `size` elements that is not a matrix.
    int64_t state_size(size_t tensor, int64_t size, int64_t rows, int64_t cols, const OptimizerConfig& config) const {
        const auto matrix_size = state[tensor].matrix_size;
        if (state[tensor].is_average && !config.averages) return 0;
        return matrix_size ? matrix_size(rows, cols, config) : size;
    }
    DType state_dtype(size_t tensor, const OptimizerConfig& config) const {
        const bool is_moment = !state[tensor].matrix_size && !state[tensor].is_average;
        return config.bf16_moments && is_moment ? DType::bf16 : DType::f32;
    }
};

// A piece of a parameter that one rank updates, or one of its matrices. All pointers are to device memory.
template <class T>
struct UpdatePiece {
    T* weight;
    float* master_weight;                        // null where T is float, or without master weights
    std::array<void*, kMostStateTensors> state;  // as UpdateRule::state; null where it has no elements
    const float* gradient;
    int64_t size;
    ParameterGroup group;
    MomentRounding rounding;  // of state in bf16, and of weights without master weights
    double rate;              // Parameter::rate

    // A state tensor, of UpdateRule::state_dtype.
    template <class M>
    M* state_as(size_t tensor) const {
        return static_cast<M*>(state[tensor]);
    }
};

// The pieces that a rule updates in one call.
template <class Device, class T>
struct UpdateBatch {
    Device& device;
    const Ops<Device, T>& op;
    const std::vector<UpdatePiece<T>>& pieces;
    int64_t rows, cols;                 // of every piece, if they are whole matrices
    const std::vector<char*>& scratch;  // as UpdateRule::scratch_bytes
    const OptimizerConfig& config;
    const Rates& rates;
    // The gradient's scale, the number of updates including this one, and whether to apply it: if not, no bit may
    // change. In device memory.
    const StepScalars* scalars;
};

// For rules whose ops reserve no memory of the device (Ops).
struct RuleWithoutWorkspace {
    template <class Device, class T>
    static size_t workspace_bytes(Device&, const Ops<Device, T>&, int64_t, int64_t, int64_t) {
        return 0;
    }
};

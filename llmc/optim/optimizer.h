/*
AdamW over all parameters of a model: the two moments, for weights that are not float a master copy that is, and one
update a step.
*/
#pragma once
#include <cstdint>
#include <optional>
#include <type_traits>
#include "llmc/base/op_types.h"     // AdamWHyper, StepScalars
#include "llmc/model/parameters.h"  // ParameterList, Buffer

struct AdamWConfig {
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

template <class Device, class T = float>
struct AdamW {
    static constexpr bool kHasMasters = !std::is_same_v<T, float>;

    Device& device;
    const ParameterList& parameters;
    AdamWConfig config;
    Buffer<Device, float> m, v;
    std::optional<Buffer<Device, float>> masters;  // if kHasMasters; otherwise the weights are their own

    AdamW(Device& device, const ParameterList& parameters, const AdamWConfig& config)
        : device(device),
          parameters(parameters),
          config(config),
          m(device, "first moments", parameters),
          v(device, "second moments", parameters) {
        if constexpr (kHasMasters) masters.emplace(device, "master weights", parameters);
    }

    // The float values of a parameter: what checkpoints hold.
    float* master(const Buffer<Device, T>& weights, const Parameter& p) const {
        if constexpr (kHasMasters)
            return masters->at(p);
        else
            return weights.at(p);
    }
    // From host memory; the weight itself is set by Gpt::set_weight.
    void set_master(const Parameter& p, const float* values) {
        if constexpr (kHasMasters) copy_to_device(device, masters->at(p), values, p.size());
    }

    // `scalars`, in the device's memory, hold the gradient's scale, the number of updates with this one, and whether
    // there is one: nothing changes, bit for bit, if not.
    void step(Buffer<Device, T>& weights, const Buffer<Device, float>& gradients, double learning_rate,
              const StepScalars* scalars) {
        for (const Parameter& p : parameters)
            adamw_update(device, weights.at(p), master_or_null(p), m.at(p), v.at(p), gradients.at(p), p.size(),
                         AdamWHyper{.learning_rate = learning_rate,
                                    .beta1 = config.beta1,
                                    .beta2 = config.beta2,
                                    .eps = config.eps,
                                    .weight_decay = p.weight_decay ? config.weight_decay : 0},
                         scalars);
    }

private:
    float* master_or_null(const Parameter& p) const {
        if constexpr (kHasMasters)
            return masters->at(p);
        else
            return nullptr;
    }
};

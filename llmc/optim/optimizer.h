/*
AdamW over all parameters of a model: the two moments, and one update a step.
*/
#pragma once
#include <cstdint>
#include "llmc/model/parameters.h"  // ParameterList, Buffer

struct AdamWConfig {
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

template <class Device>
struct AdamW {
    Device& device;
    const ParameterList& parameters;
    AdamWConfig config;
    Buffer<Device, float> m, v;

    AdamW(Device& device, const ParameterList& parameters, const AdamWConfig& config)
        : device(device),
          parameters(parameters),
          config(config),
          m(device, "first moments", parameters),
          v(device, "second moments", parameters) {}

    // `step` counts from 1; gradients are multiplied by grad_scale on the way.
    void step(Buffer<Device, float>& weights, const Buffer<Device, float>& gradients, double learning_rate,
              double grad_scale, int64_t step) {
        for (const Parameter& p : parameters)
            adamw_update(device, weights.at(p), m.at(p), v.at(p), gradients.at(p), p.size(),
                         {.learning_rate = learning_rate,
                          .beta1 = config.beta1,
                          .beta2 = config.beta2,
                          .eps = config.eps,
                          .weight_decay = p.weight_decay ? config.weight_decay : 0,
                          .grad_scale = grad_scale,
                          .step = step});
    }
};

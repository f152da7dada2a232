/*
One optimizer step: micro-batches, norm, clipping, update.
*/
#pragma once
#include <cmath>
#include <cstdint>
#include "llmc/data/loader.h"      // DataLoader
#include "llmc/model/gpt.h"        // Gpt
#include "llmc/optim/optimizer.h"  // AdamW
#include "llmc/optim/clip.h"       // gradient_norm, clip_scale

struct StepConfig {
    int64_t B, T, accumulation;  // sequences, tokens each, micro-batches
    double grad_clip;            // 0: none

    int64_t num_tokens() const { return B * T * accumulation; }
};

struct StepResult {
    double loss;   // mean over the step's tokens, before the update
    double norm;   // of the gradient, before clipping
    bool applied;  // false: loss or gradient was not finite, and weights and moments are as before, bit for bit
};

// `update` counts AdamW's updates, this one included.
template <class Device>
StepResult train_step(Gpt<Device>& model, AdamW<Device>& adamw, DataLoader& data, const StepConfig& config,
                      double learning_rate, int64_t update) {
    StepResult result{};
    model.zero_gradients();
    for (int64_t micro = 0; micro < config.accumulation; micro++) {
        const Batch& batch = data.next();
        model.forward(batch.tokens.data(), config.B, config.T);
        result.loss += model.loss_and_gradient(batch.targets.data(), float(1 / double(config.num_tokens()))) /
                       double(config.accumulation);
        model.backward(batch.tokens.data());
    }
    result.norm = gradient_norm(model.device, model.gradients);
    result.applied = std::isfinite(result.loss) && std::isfinite(result.norm);
    if (result.applied)
        adamw.step(model.weights, model.gradients, learning_rate, clip_scale(result.norm, config.grad_clip), update);
    return result;
}

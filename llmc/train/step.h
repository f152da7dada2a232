/*
One optimizer step: micro-batches, norm, clipping, update. The host only says what is to be done: whether the gradient
is finite, its norm and what clipping makes of it are found out and used on the device, and come back to the host while
the next step is already under way.

  Stepper<Device, T> stepper(model, adamw, config, updates);
  stepper.start(data, learning_rate);                enqueues a whole step
  const StepResult result = stepper.finish();        waits for the oldest step that was started
*/
#pragma once
#include <cstdint>
#include "llmc/base/op_types.h"    // StepScalars
#include "llmc/data/loader.h"      // DataLoader
#include "llmc/model/gpt.h"        // Gpt
#include "llmc/optim/optimizer.h"  // AdamW

struct StepConfig {
    int64_t B, T, accumulation;  // sequences, tokens each, micro-batches
    double grad_clip;            // 0: none

    int64_t num_tokens() const { return B * T * accumulation; }
};

struct StepResult {
    double loss;      // mean over the step's tokens, before the update
    double norm;      // of the gradient, before clipping
    bool applied;     // false: loss or gradient was not finite, and weights and moments are as before, bit for bit
    int64_t updates;  // AdamW's count, this one included
};

template <class Device, class T = float>
class Stepper {
public:
    static constexpr int kMostUnderWay = Device::kAsynchronous ? 2 : 1;

    // `updates` so far: not zero after a resume.
    Stepper(Gpt<Device, T>& model, AdamW<Device, T>& adamw, const StepConfig& config, int64_t updates)
        : model_(model),
          adamw_(adamw),
          config_(config),
          arena_(model.device, "step", aligned(sizeof(StepScalars))),
          scalars_(arena_.template take<StepScalars>(1)),
          tokens_(model.device, config.B * config.T),
          targets_(model.device, config.B * config.T),
          results_(model.device) {
        const StepScalars start{.updates = updates};
        copy_to_device(model.device, scalars_, &start, 1);
    }

    void start(DataLoader& data, double learning_rate) {
        Device& device = model_.device;
        ensure(under_way_ < kMostUnderWay);
        model_.zero_gradients();
        fill_zero(device, &scalars_->loss, 1);
        for (int64_t micro = 0; micro < config_.accumulation; micro++) {
            const Batch& batch = data.next();
            const int32_t* tokens = tokens_.send(batch.tokens.data(), config_.B * config_.T);
            const int32_t* targets = targets_.send(batch.targets.data(), config_.B * config_.T);
            model_.forward(tokens, config_.B, config_.T);
            model_.add_loss_and_gradient(scalars_, targets, float(1 / double(config_.num_tokens())),
                                         1 / double(config_.accumulation));
            model_.backward(tokens);
        }
        // The gaps between parameters are zero.
        global_norm_squared(device, &scalars_->norm_squared, model_.gradients.data, model_.gradients.size);
        decide_step(device, scalars_, config_.grad_clip);
        adamw_.step(model_.weights, model_.gradients, learning_rate, scalars_);
        results_.send(scalars_);
        under_way_++;
    }

    StepResult finish() {
        ensure(under_way_ > 0);
        under_way_--;
        const StepScalars s = results_.receive();
        return {s.loss, s.norm, s.applied != 0, s.updates};
    }

    int under_way() const { return under_way_; }

private:
    Gpt<Device, T>& model_;
    AdamW<Device, T>& adamw_;
    StepConfig config_;
    Arena<Device> arena_;
    StepScalars* scalars_;  // in the device's memory
    typename Device::template ToDevice<int32_t> tokens_, targets_;
    typename Device::template ToHost<StepScalars> results_;
    int under_way_ = 0;
};

/*
Transfers hyperparameters tuned at one batch size and training length to another (scale-hyperparameters). B: tokens
per step; D: tokens of the whole training; _ref: where they were tuned.

  learning rate    eta    = eta_ref sqrt(B / B_ref)               for optimizers that divide by the gradient's
                                                                  size (Malladi et al., 2022, arXiv:2205.10287)
  weight decay     lambda = lambda_ref sqrt(B / B_ref) D_ref / D

The learning rates of groups whose rule asks for it are also multiplied by sqrt(768 / C), C channels, as in nanochat.

The weight decay follows from the learning rate and T_epoch = B / (eta lambda D) = const: the fraction of the training
over which weights are averaged does not change (Wang and Aitchison, 2024, arXiv:2405.13698).
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/run/run_flags.h"  // RunFlags

struct Scaling {
    bool asked = false;
    int64_t batch = 0, reference_batch = 0;    // B, B_ref
    int64_t tokens = 0, reference_tokens = 0;  // D, D_ref

    int64_t channels = 0;

    std::vector<Field> fields();
    double learning_rate() const;  // eta / eta_ref
    double weight_decay() const;
    double width() const;
    // The factors, and the numbers from which they follow.
    std::string text(const Recipe& recipe) const;
};

Scaling scaling_of(const RunFlags& flags, int64_t tokens_per_step, int64_t channels);

// The recipe to train with: learning rates and weight decays of all rules scaled, or unchanged if scaling is not
// requested.
Recipe scaled(const Recipe& recipe, const Scaling& scaling);

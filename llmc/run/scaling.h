/*
Transfers hyperparameters tuned at one batch size and training length to another (scale-hyperparameters). B: tokens
per step; D: tokens of the whole training; _ref: where they were tuned.

  learning rate    eta    = eta_ref sqrt(B / B_ref)               for optimizers that divide by the gradient's
                                                                  size (Malladi et al., 2022, arXiv:2205.10287)
  weight decay     lambda = lambda_ref sqrt(B / B_ref) D_ref / D

The learning rates of groups whose rule asks for it are also multiplied by sqrt(768 / C), C channels, as in nanochat.

The weight decay follows from the learning rate and T_epoch = B / (eta lambda D) = const: the fraction of the training
over which weights are averaged does not change (Wang and Aitchison, 2024, arXiv:2405.13698).

And nanochat's scaling by depth (Karpathy, 2025-2026), as pure functions: one number, the depth d, determines a whole
run.

  const DepthModel model = depth_model(config);      the shape, its parameters, FLOPs per token
  const DepthRun run = depth_run(config);            batch, learning rates, weight decay, steps
  text_of(model), text_of(run)                       each number with its formula, one per line

  width         C = d x aspect ratio, rounded up to a multiple of the head size HS
  N             the parameters to which tokens are proportional: matrices, gates and lm_head, without embeddings
  D             tokens = ratio N
  batch         2^round(log2(2^19 (D / D_ref)^0.383))     (Bergsma et al., 2025, arXiv:2505.13738), _ref: of depth 12
  learning rate and weight decay follow batch, length and width as above
  steps         as given; else round(target FLOPs / (FLOPs per token x batch)); else D / batch, rounded down

Batch, learning rates and weight decay always follow from D, the length that the ratio gives, whatever ends the run.
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

// The user's choices for a run by depth. Zero: not given.
struct DepthConfig {
    int64_t depth = 20, aspect_ratio = 64, head_size = 128;
    int64_t num_kv_heads = 0;  // 0: as many as heads
    int64_t seq_len = 2048, vocab_size = 32768;
    std::string window_pattern = "SSSL";

    double param_data_ratio = 12, target_flops = 0;
    int64_t steps = 0, total_batch_size = 0;
    int64_t batch_size = 32, world_size = 1;
    double weight_decay = 0.28;  // Muon's, at depth 12 and batches of 2^19 tokens
};

struct DepthModel {
    int64_t depth, channels, num_heads, num_kv_heads, head_size, seq_len, vocab_size;
    std::vector<int64_t> windows;              // of each layer, as AttentionShape::window
    std::vector<bool> value_embedding_layers;  // every second one, and the last

    // Parameters, without the vocabulary's padding.
    int64_t matrices = 0, gates = 0, embedding = 0, head = 0, value_embeddings = 0, scalars = 0;
    int64_t num_parameters = 0;      // all parameters
    int64_t scaling_parameters = 0;  // N: matrices, gates and head (matmul_parameters in llmc/model/flops.h)
    double flops_per_token = 0;      // counted with AttentionFlops::unmasked, as in nanochat
};

struct DepthRun {
    DepthModel model;
    double param_data_ratio;
    int64_t batch, steps, accumulation;  // tokens per step; micro-batches of each rank
    bool batch_was_asked;
    Scaling scaling;      // B, D, their references, and the resulting factors
    double weight_decay;  // Muon's
    int64_t batch_size, world_size;
    double target_flops;  // 0: not given
    bool steps_were_asked;
};

// The steps of so many FLOPs. Throws an Error if they are less than half a step.
int64_t steps_of(double target_flops, double step_flops);

DepthModel depth_model(const DepthConfig& config);
DepthRun depth_run(const DepthConfig& config);

std::string text_of(const DepthModel& model);
std::string text_of(const DepthRun& run);

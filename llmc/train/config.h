/*
Everything that train_gpt can be asked, each flag listed once, and what follows from the flags.
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/flags.h"         // Field
#include "llmc/comm/launch.h"        // LaunchFlags
#include "llmc/data/loader.h"        // Packing
#include "llmc/eval/sample.h"        // SampleConfig
#include "llmc/model/activations.h"  // Passes, Recompute
#include "llmc/model/shape.h"        // ModelConfig
#include "llmc/optim/recipe.h"       // Recipe
#include "llmc/train/step.h"         // StepConfig

// What --plan assumes (plan.h).
struct PlanConfig {
    bool asked = false;
    std::string gpu = "H100";
    double memory_gb = 0, tflops = 0, mfu = 0, bandwidth = 0, network = 0, usd_per_hour = 0;  // 0: that GPU's
};

// Sequences, where nothing else is asked.
inline constexpr int kDefaultBatchSize = 12;

struct TrainConfig {
    std::string train_data = "data/tinyshakespeare/train_*.bin", val_data = "data/tinyshakespeare/val_*.bin", tokenizer;
    bool shuffle = true;
    std::string packing = "stream";
    int document_token = -1;

    ModelConfig model;

    int batch_size = -1;  // 0: the largest that fits; -1: kDefaultBatchSize, with --depth as 0
    int64_t total_batch_size = 0;
    int64_t steps = -1;  // -1: what the targets give (resolve.h)
    int64_t window_warmup_steps = 0;
    double target_param_data_ratio = 0, target_flops = 0;
    double time_budget_s = 0;

    // "recipe" and -1: as the recipe has it (chosen_recipe).
    std::string recipe = "model", optimizer = "recipe", lr_schedule = "recipe";
    double learning_rate = -1, embedding_learning_rate = -1, unembedding_learning_rate = -1, scalar_learning_rate = -1,
           final_lr_fraction = -1, decay_fraction = -1, grad_clip = -1;
    int64_t warmup_steps = -1;
    double beta1 = -1, beta2 = -1, adam_eps = -1, weight_decay = -1;
    double muon_learning_rate = -1, muon_momentum = -1, muon_momentum_start = -1, muon_momentum_end = -1,
           muon_weight_decay = -1, muon_beta2 = -1;
    int64_t muon_momentum_warmup_steps = -1;
    std::string muon_weight_decay_schedule = "recipe", muon_coefficients = "polar-express";
    bool muon_equal_rows = true, muon_fixed_norm = true, muon_second_moment = true, muon_cautious = true;
    int muon_iterations = 5;
    bool scale_hyperparameters = false;
    int64_t reference_batch_size = 524288, reference_tokens = 0;

    int64_t val_every = 250, val_tokens = 131072, checkpoint_every = 500, sample_every = 0;
    std::string eval_tasks;
    int64_t eval_tasks_every = 0;
    bool eval_only = false;
    int keep = 2, print_every = 10;
    bool async_checkpoint = true, summary = false, tensorboard = false;
    std::string log_to = "none", profile;
    int64_t profile_steps = 3;

    std::string prompt = "\n";
    int sample_tokens = 256, top_k = 0, num_samples = 1;
    double temperature = 0.8, top_p = 1;
    std::string generate;

    std::string out_dir = "run/default", resume, init_from, export_format = "none", device = "auto", dtype = "auto",
                recompute = "none", attention = "auto", tune_matmul;
    bool deterministic = true, dry_run = false, doctor = false;
    PlanConfig plan;
    int threads = 0;

    LaunchFlags launch;
    int virtual_ranks = 0;
    std::string grad_comm = "fp32", sum_order = "in-place";
    bool overlap = true, noise_scale = false, bench_comm = false;
    int bench_comm_mib = 256;
    int64_t check_replicas = 100;
    double comm_timeout_s = 600, io_timeout_s = 3600;

    uint64_t seed = 1337;

    std::vector<Field> fields();

    // How a process was started is no part of the run that it continues.
    void reset_launch() {
        launch = {};
        virtual_ranks = 0;
        profile = "";
    }

    // What must be the same on all ranks: every flag but those of one process or machine.
    std::vector<std::pair<std::string, std::string>> shared_flags() const;

    // Contradictions that no single flag can show.
    void validate() const;

    int64_t seq_len(const GptShape& shape) const { return model.seq_len ? model.seq_len : shape.max_seq_len; }
    // Micro-batches of each rank in a step; an error names the nearest total batch sizes that work, and batch sizes
    // with which the one asked for would.
    int64_t grad_accumulation(int64_t seq_len, int64_t world_size) const;
    StepConfig step(int64_t seq_len, int64_t world_size) const;
    // The part of every attention window at this step, counted from 0.
    double window_part(int64_t step) const {
        return window_warmup_steps > 0 ? std::min(1.0, double(step + 1) / double(window_warmup_steps)) : 1;
    }
    // The recipe with what the flags change of it.
    Recipe chosen_recipe() const;
    bool muon() const { return chosen_recipe().muon; }
    Recompute recompute_mode() const;
    bool fp8() const { return dtype == "fp8"; }
    Packing packing_mode() const { return packing == "best-fit" ? Packing::best_fit : Packing::stream; }
    SampleConfig sample() const;
    std::vector<std::string> task_files() const;  // of --eval-tasks
    std::string tokenizer_path() const;           // --tokenizer, or tokenizer.json beside the data
};

// The four factors of a step: "8 sequences x 1024 tokens x 4 micro-batches x 16 ranks = 524288 tokens a step".
std::string batch_text(const StepConfig& step);

// The table of exit codes and the flags, as markdown: doc/flags.md.
std::string flags_document();

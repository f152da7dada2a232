/*
Everything that train_gpt can be asked, each flag listed once, and what follows from the flags.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/flags.h"         // Field
#include "llmc/eval/sample.h"        // SampleConfig
#include "llmc/model/activations.h"  // Recompute
#include "llmc/model/shape.h"        // ModelConfig
#include "llmc/optim/optimizer.h"    // AdamWConfig
#include "llmc/optim/schedule.h"     // Schedule

struct TrainConfig {
    std::string train_data = "data/tinyshakespeare/train_*.bin", val_data = "data/tinyshakespeare/val_*.bin", tokenizer;
    bool shuffle = true;

    ModelConfig model;

    int batch_size = 12;
    int64_t total_batch_size = 0;
    int64_t steps = 2000;
    double time_budget_s = 0;

    std::string optimizer = "adamw", lr_schedule = "cosine";
    double learning_rate = 1e-3, final_lr_fraction = 0.1, decay_fraction = 0.2, grad_clip = 1;
    int64_t warmup_steps = 100;
    AdamWConfig adamw;

    int64_t val_every = 250, val_tokens = 131072, checkpoint_every = 500, sample_every = 0;
    int keep = 2, print_every = 10;

    std::string prompt = "\n";
    int sample_tokens = 256, top_k = 0;
    double temperature = 0.8;

    std::string out_dir = "run/default", resume, device = "auto", dtype = "auto", recompute = "none",
                attention = "auto", tune_matmul;
    bool dry_run = false;
    int threads = 0;
    uint64_t seed = 1337;

    std::vector<Field> fields();

    // Contradictions that no single flag can show.
    void validate() const;

    int64_t seq_len(const GptShape& shape) const { return model.seq_len ? model.seq_len : shape.max_seq_len; }
    // Micro-batches per step; an error names the nearest total batch sizes that work.
    int64_t grad_accumulation(int64_t seq_len) const;
    Schedule schedule() const;
    Recompute recompute_mode() const;
    SampleConfig sample() const;
    std::string tokenizer_path() const;  // --tokenizer, or tokenizer.json beside the training data
};

// The table of exit codes and the flags, as markdown: doc/flags.md.
std::string flags_document();

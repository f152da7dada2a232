/*
The flags of a run, each listed once. RunConfig (run_config.h) derives the run from them, the model and the number of
ranks. A flag without a value is filled in later: by the recipe, --depth or a default.
*/
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "llmc/base/flags.h"          // Field
#include "llmc/comm/comm.h"           // GradientSum
#include "llmc/comm/launch/launch.h"  // LaunchFlags
#include "llmc/data/loader.h"         // Packing
#include "llmc/eval/sample_config.h"  // SampleConfig
#include "llmc/model/activations.h"   // Recompute
#include "llmc/model/shape.h"         // ModelConfig
#include "llmc/optim/outer_state.h"   // OuterConfig
#include "llmc/optim/recipe.h"        // Recipe
#include "llmc/run/shares.h"          // BalanceMode

// --rank, --threads, --batch-size, --train-data and other flags that may differ from rank to rank: those of a process
// or machine, and paths. What the paths lead to is compared.
bool is_of_one_process(const Field& field);

// The flags in the JSON of a checkpoint, by their names of today: older versions had other ones.
std::string by_new_names(const std::string& json);

// A number that changes during a run: steps, counted from 0 and rising, and the number from each of them on.
using NumbersByStep = std::vector<std::pair<int64_t, int64_t>>;
inline int64_t number_at(const NumbersByStep& numbers, int64_t step, int64_t before) {
    for (const auto& [first, number] : numbers)
        if (first <= step) before = number;
    return before;
}

// The commands of train_gpt (command.h).
enum class Command { train, generate, chat, answer, eval, plan, export_model, doctor, bench_comm };

struct RunFlags {
    // Not flags, and not saved in checkpoints: the command, and the source of each value by its flag's name: "the
    // command line", "run.cfg", "the checkpoint", "--depth", "memory"... Values without a source are defaults.
    Command command = Command::train;
    std::map<std::string, std::string> sources;

    std::string train_data = "data/tinyshakespeare/train_*.bin", val_data = "data/tinyshakespeare/val_*.bin", tokenizer;
    bool shuffle = true;
    std::string packing = "stream", data_order = "own", fetch;
    std::optional<int> document_token;

    ModelConfig model;

    std::optional<int> batch_size;  // 0: the largest that fits
    int64_t total_batch_size = 0;
    std::optional<int64_t> steps;
    int64_t window_warmup_steps = 0;
    std::string batch_growth, length_growth;
    double target_param_data_ratio = 0, target_flops = 0;
    double time_budget_s = 0;
    std::string schedule_by = "auto";

    // "recipe", or no value: that of the recipe (chosen_recipe).
    std::string recipe = "model", optimizer = "recipe", lr_schedule = "recipe", moments = "fp32";
    std::optional<double> learning_rate, embedding_learning_rate, unembedding_learning_rate, scalar_learning_rate,
        final_lr_fraction, decay_fraction, decay_power, grad_clip;
    std::optional<int64_t> warmup_steps;
    std::optional<double> beta1, beta2, adam_eps, weight_decay;
    std::optional<double> muon_learning_rate, muon_momentum, muon_momentum_start, muon_momentum_end, muon_weight_decay,
        muon_beta2;
    std::optional<int64_t> muon_momentum_warmup_steps;
    std::string muon_weight_decay_schedule = "recipe", muon_coefficients = "polar-express";
    std::string muon_equal_rows = "recipe", muon_fixed_norm = "recipe", muon_second_moment = "recipe";
    std::string muon_cautious = "recipe";
    std::string muon_norms = "free";
    double muon_floor = 0.35, muon_radius = 1;
    int muon_iterations = 5;
    double tail_average = 0, tail_average_memory = 0.25;
    double dropout = 0;
    int lora_rank = 0;
    double lora_alpha = 8;
    std::string lora_targets = "qkv,projection,up,down";
    bool scale_hyperparameters = false;
    int64_t reference_batch_size = 524288, reference_tokens = 0;

    int64_t val_every = 250, val_tokens = 131072, checkpoint_every = 500, sample_every = 0;
    std::string eval_tasks;
    int64_t eval_tasks_every = 0;
    int keep = 2, print_every = 10;
    bool save_best = false;
    int64_t patience = 0;
    bool async_checkpoint = true, summary = false, activation_sizes = false;
    std::string results, description;
    std::string checkpoint_to = "auto", log_to = "none", profile, after_checkpoint, before_resume;
    int64_t profile_steps = 3;

    std::string prompt = "\n";
    int sample_tokens = 256, top_k = 0;
    double temperature = 0.8, top_p = 1;

    std::string out_dir = "run/default", resume, init_from, device = "auto", dtype = "auto", recompute = "none",
                memory = "full", offload = "none", attention = "auto", tune_matmul, peak_flops = "auto",
                fp8_scaling = "current";
    bool deterministic = true, cuda_graph = false, dry_run = false;
    int threads = 0;
    int64_t fp8_amax_history = 1024;

    LaunchFlags launch;
    int virtual_ranks = 0;
    std::string balance = "equal", grad_sum = "fp32";
    int64_t bucket_mb = 0;
    int shard_ranks = 0, zero_stage = 1;
    int islands = 0;
    int64_t outer_every = 100;
    double outer_lr = 0.7, outer_momentum = 0.5;
    std::string outer_dtype = "fp32";
    bool overlap = true, noise_scale = false;
    int64_t check_replicas = 100;
    double comm_timeout_s = 600, io_timeout_s = 3600;

    uint64_t seed = 1337;

    std::vector<Field> fields();

    // Resets the flags that are about this process and not about the run, for a checkpoint.
    void reset_launch() {
        launch = {};
        virtual_ranks = 0;
        if (balance != "auto") balance = "equal";  // lists and logs are for a specific number of ranks
        // A path to write to, or a command, is not taken from a checkpoint, which may be a stranger's.
        profile = results = after_checkpoint = before_resume = fetch = "";
    }

    // Checks for contradictions between flags; throws an Error.
    void validate() const;

    bool evaluates() const { return command == Command::eval; }
    bool streams() const { return command == Command::generate || command == Command::chat; }  // text, to stdout
    bool generates() const { return streams() || command == Command::answer; }
    // Without training there is nothing to divide, whatever the checkpoint says.
    BalanceMode balance_mode() const { return trains() ? ::balance_mode(balance) : BalanceMode{}; }
    // Whether to advise --balance auto: not with flags that need equal shares.
    bool may_balance() const {
        return islands_of_run() == 0 && data_order != "llmc" && zero_stage == 1 && !sums_in_bf16() && !noise_scale &&
               !tree_sum();
    }
    // "" for a default.
    std::string source_of(const std::string& name) const {
        const auto found = sources.find(name);
        return found == sources.end() ? "" : found->second;
    }
    // Whether it trains, on --train-data.
    bool trains() const { return !evaluates() && !generates(); }

    int64_t seq_len(const GptShape& shape) const { return model.seq_len ? model.seq_len : shape.max_seq_len; }
    // The adapters that are trained instead of the model; is_split is not set.
    Lora lora() const;
    // The recipe with the flags' changes.
    Recipe chosen_recipe() const;
    Recomputation recomputation() const;
    // OptimizerConfig::stage_elements.
    int64_t stage_elements() const { return offload != "none" ? kStageElements : 0; }
    // OptimizerConfig::offload_percent; with optimizer:auto, before it is settled (least_offload), all.
    int offload_percent() const {
        const size_t number = offload.find_first_of("0123456789");
        return number < offload.size() ? std::stoi(offload.substr(number)) : 100;
    }
    bool settles_offload() const { return offload == "optimizer:auto"; }
    bool fp8() const { return dtype == "fp8"; }
    bool lean() const { return memory == "lean"; }
    // A tree has the same bits at any number of ranks only if its sums are not rounded.
    bool sums_in_bf16() const { return lean() && trains() && !tree_sum(); }
    bool mx() const { return fp8() && fp8_scaling == "mx"; }
    // Steps of delayed scaling's history; 0: scales are current.
    int64_t amax_history() const { return fp8() && fp8_scaling == "delayed" ? fp8_amax_history : 0; }
    bool tree_sum() const { return grad_sum.starts_with("tree"); }
    bool bf16_gradients() const { return grad_sum.starts_with("bf16"); }
    GradientSum gradient_sum() const {
        return grad_sum.ends_with("ordered")   ? GradientSum::all_to_all
               : grad_sum.ends_with("scatter") ? GradientSum::reduce_scatter
                                               : GradientSum::automatic;
    }
    int islands_of_run() const { return trains() ? islands : 0; }
    OuterConfig outer() const {
        return {.learning_rate = outer_lr,
                .momentum = outer_momentum,
                .type = outer_dtype == "bf16"   ? OuterType::bf16
                        : outer_dtype == "int8" ? OuterType::int8
                                                : OuterType::fp32};
    }
    // Tokens per step and per sequence; empty: those of --total-batch-size and --seq-len throughout.
    NumbersByStep batches() const;
    NumbersByStep lengths() const;
    bool grows() const { return trains() && !(batch_growth.empty() && length_growth.empty()); }
    Packing packing_mode() const {
        return packing == "best-fit" ? Packing::best_fit : packing == "pad" ? Packing::pad : Packing::stream;
    }
    SampleConfig sample() const;
    std::vector<std::string> task_files() const;  // of --eval-tasks
    std::string tokenizer_path() const;           // --tokenizer, or tokenizer.json beside the data
};

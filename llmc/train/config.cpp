// See config.h.
#include "llmc/train/config.h"
#include <algorithm>
#include <filesystem>
#include "llmc/base/check.h"  // require
#include "llmc/train/plan.h"  // plan_gpu_names

std::vector<Field> TrainConfig::fields() {
    std::vector<Field> all = {
        {"data", "train-data", &train_data, "token shards to learn from, a pattern"},
        {"data", "val-data", &val_data,
         "token shards to validate on, a pattern; empty, and with a --train-data of its own: no validation"},
        {"data", "tokenizer", &tokenizer, "empty: tokenizer.json beside the training data"},
        {"data", "shuffle", &shuffle, "in a new order every epoch"},
        {"data",
         "packing",
         &packing,
         "best-fit: rows begin where documents do, and whole documents fill them, the last one cropped; these begin "
         "with --document-token or the tokenizer's separator. stream: rows begin anywhere",
         {"stream", "best-fit"}},
        {"data",
         "document-token",
         &document_token,
         "stands in front of each document, as 50256 does in GPT-2's shards; attention stays inside documents (-1: it "
         "sees the whole row)",
         {},
         -1},
    };
    for (const Field& field : model.fields()) all.push_back(field);
    std::vector<std::string> all_recipes = recipe_names();
    all_recipes.insert(all_recipes.begin(), "model");
    const std::vector<Field> rest = {
        {"batch",
         "batch-size",
         &batch_size,
         "sequences per micro-batch (B); auto: the largest that fits in the memory and divides --total-batch-size (-1: "
         "12, with --depth auto)",
         {"auto"},
         -1,
         1 << 20},
        {"batch",
         "total-batch-size",
         &total_batch_size,
         "tokens per step, by gradient accumulation (0: one micro-batch, with --depth by its scaling law)",
         {},
         0},
        {"length", "steps", &steps, "optimizer steps (-1: those of the targets below; without any 2000)", {}, -1},
        {"length",
         "window-warmup-steps",
         &window_warmup_steps,
         "in which what attention sees grows linearly to the model's windows, those above 128 tokens in multiples of "
         "128; "
         "validation and samples see them whole",
         {},
         0},
        {"length",
         "target-param-data-ratio",
         &target_param_data_ratio,
         "tokens to learn from for each parameter of matrices and head (0: none; with --depth 12)",
         {},
         0},
        {"length", "target-flops", &target_flops, "FLOPs to train with (0: any)", {}, 0},
        {"length",
         "time-budget",
         &time_budget_s,
         "seconds of training after which the run ends as if it were the last step (0: none)",
         {},
         0},
        {"optimizer", "recipe", &recipe,
         "learning rates and rules of each group of parameters, and their schedules, in the tables below; the flags "
         "of this section change parts of it, and `recipe` or -1 leaves them. model: that of the model's architecture",
         all_recipes},
        {"optimizer",
         "optimizer",
         &optimizer,
         "muon: for the matrices inside the blocks, and AdamW for the rest",
         {"recipe", "adamw", "muon"}},
        {"optimizer",
         "learning-rate",
         &learning_rate,
         "of all that is AdamW's, after warm-up; of --recipe gpt2",
         {},
         -1},
        {"optimizer",
         "embedding-learning-rate",
         &embedding_learning_rate,
         "of tokens and positions; value embeddings follow in proportion",
         {},
         -1},
        {"optimizer", "unembedding-learning-rate", &unembedding_learning_rate, "of a head of its own", {}, -1},
        {"optimizer",
         "scalar-learning-rate",
         &scalar_learning_rate,
         "of the x0 lambdas; those of the residual stream, gains and biases follow in proportion",
         {},
         -1},
        {"optimizer",
         "lr-schedule",
         &lr_schedule,
         "after warm-up",
         {"recipe", "cosine", "linear", "constant", "wsd", "trapezoid"}},
        {"optimizer",
         "warmup-steps",
         &warmup_steps,
         "of a linear rise (-1: the recipe's, but no more than a tenth of --steps)",
         {},
         -1},
        {"optimizer", "final-lr-fraction", &final_lr_fraction, "the last learning rate over the largest", {}, -1, 1},
        {"optimizer",
         "decay-fraction",
         &decay_fraction,
         "the part of all steps in which wsd and trapezoid decay",
         {},
         -1,
         1},
        {"optimizer", "beta1", &beta1, "decay of the first moment", {}, -1, 0.9999999},
        {"optimizer", "beta2", &beta2, "decay of the second moment", {}, -1, 0.9999999},
        {"optimizer", "adam-eps", &adam_eps, "added to the root of the second moment", {}, -1, 1},
        {"optimizer",
         "weight-decay",
         &weight_decay,
         "decoupled, on those groups that the recipe decays: matrices and embeddings",
         {},
         -1},
        {"optimizer", "muon-learning-rate", &muon_learning_rate, "Muon's, after warm-up", {}, -1},
        {"optimizer",
         "muon-momentum",
         &muon_momentum,
         "Muon's at its height, with Nesterov's look ahead",
         {},
         -1,
         0.9999999},
        {"optimizer", "muon-momentum-warmup-steps", &muon_momentum_warmup_steps, "in which it rises to that", {}, -1},
        {"optimizer", "muon-momentum-start", &muon_momentum_start, "where it rises from", {}, -1, 0.9999999},
        {"optimizer",
         "muon-momentum-end",
         &muon_momentum_end,
         "where it falls to, while wsd and trapezoid decay",
         {},
         -1,
         0.9999999},
        {"optimizer", "muon-weight-decay", &muon_weight_decay, "Muon's, decoupled", {}, -1},
        {"optimizer",
         "muon-weight-decay-schedule",
         &muon_weight_decay_schedule,
         "cosine: half a wave down to 0",
         {"recipe", "constant", "cosine"}},
        {"optimizer", "muon-cautious", &muon_cautious,
         "decay only where the update makes a weight no larger, if the recipe does"},
        {"optimizer", "muon-equal-rows", &muon_equal_rows,
         "MuonEq: rows of equal norm before Newton-Schulz, if the recipe has it"},
        {"optimizer", "muon-fixed-norm", &muon_fixed_norm,
         "Muon+: the norm of an exactly orthogonal matrix after, if the recipe has it"},
        {"optimizer", "muon-second-moment", &muon_second_moment,
         "NorMuon: divide rows or columns by their second moment, if the recipe has it"},
        {"optimizer", "muon-beta2", &muon_beta2, "decay of that second moment", {}, -1, 0.9999999},
        {"optimizer",
         "muon-coefficients",
         &muon_coefficients,
         "of the Newton-Schulz iterations",
         {"polar-express", "quintic"}},
        {"optimizer", "muon-iterations", &muon_iterations, "of Newton-Schulz in a step", {}, 1, 50},
        {"optimizer", "scale-hyperparameters", &scale_hyperparameters,
         "learning rates and weight decays, from where they were found to this batch size and length; --recipe "
         "nanochat always"},
        {"optimizer", "reference-batch-size", &reference_batch_size, "tokens per step where they were found", {}, 1},
        {"optimizer",
         "reference-tokens",
         &reference_tokens,
         "in all, where they were found (0: as in this run)",
         {},
         0},
        {"optimizer", "grad-clip", &grad_clip, "largest global norm of the gradient (0: none)", {}, -1},
        {"output", "out-dir", &out_dir, "of checkpoints and log.jsonl"},
        {"output", "resume", &resume,
         "continue: a run's folder, one of its checkpoints, or `auto` for the newest in --out-dir, if any"},
        {"output", "init-from", &init_from,
         "begin with the weights of another model: a folder of transformers (GPT-2, Llama), a checkpoint, a run, or a "
         "model file of llm.c; flags of the model that are not given follow it"},
        {"output",
         "export",
         &export_format,
         "write the model of --init-from or --resume to --out-dir in another format and end; weights that are NaN or "
         "infinite are refused",
         {"none", "hf", "llmc", "gguf"}},
        {"output", "checkpoint-every", &checkpoint_every, "steps (0: only at the end)", {}, 0},
        {"output", "async-checkpoint", &async_checkpoint,
         "write checkpoints while training goes on, from a copy in host memory"},
        {"output", "keep", &keep, "checkpoints to keep", {}, 1},
        {"output", "print-every", &print_every, "steps per line on the terminal; log.jsonl has all", {}, 1},
        {"output", "summary", &summary,
         "print the run's figures at its end, `name: value` a line, for programs to read (doc/formats.md)"},
        {"output", "tensorboard", &tensorboard,
         "write log.jsonl's numbers as TensorBoard's events, too: 150 bytes a step that say the same again"},
        {"output",
         "log-to",
         &log_to,
         "send log.jsonl there while the run goes on, by scripts/log_to_wandb.py (WANDB_MODE=offline: to files)",
         {"none", "wandb"}},
        {"output", "profile", &profile,
         "write where the time of a few steps goes, op by op, to this file, a trace for ui.perfetto.dev, and print a "
         "table of it; other ranks than the first write FILE with .rankN before its extension (empty: no)"},
        {"output", "profile-steps", &profile_steps, "to profile, after two that warm up", {}, 1, 1000},
        {"output", "val-every", &val_every, "steps (0: only at the end)", {}, 0},
        {"output",
         "val-tokens",
         &val_tokens,
         "tokens per validation, whole batches, the same ones each time (0: all)",
         {},
         0},
        {"output", "eval-tasks", &eval_tasks,
         "files of questions to score the model on, with commas between them; scripts/make_hellaswag.py and "
         "scripts/make_core.py make some"},
        {"output", "eval-tasks-every", &eval_tasks_every, "steps (0: only at the end)", {}, 0},
        {"output", "eval-only", &eval_only, "validate and score the model of --resume, without any step, and end"},
        {"output", "sample-every", &sample_every, "steps (0: only at the end)", {}, 0},
        {"sampling", "prompt", &prompt, "what samples begin with"},
        {"sampling", "sample-tokens", &sample_tokens, "length of a sample (0: no samples)", {}, 0},
        {"sampling", "temperature", &temperature, "of the softmax; 0 takes the likeliest token", {}, 0},
        {"sampling", "top-k", &top_k, "choose among the k likeliest tokens (0: all)", {}, 0},
        {"sampling",
         "top-p",
         &top_p,
         "choose among the likeliest tokens that make up this part of the probability (1: all)",
         {},
         0,
         1},
        {"sampling", "generate", &generate,
         "continue this text, or that of @FILE, with the model of --resume instead of training: up to --sample-tokens "
         "new tokens on stdout as they come, in UTF-8 (other bytes become U+FFFD); weights that are NaN or infinite "
         "are "
         "refused"},
        {"sampling", "num-samples", &num_samples, "continuations that --generate makes", {}, 1, 4096},
        {"machine", "device", &device, "auto takes the fastest there is", {"auto", "cuda", "cpu"}},
        {"machine",
         "dtype",
         &dtype,
         "of weights and activations; auto: bf16 on a GPU, and on a CPU whose products of bf16 prove 1.3 times as fast "
         "as those of fp32 or more, else fp32; fp8: bf16, on the CPU fp32, and a step's large linear layers in eight "
         "bits (GPUs from sm_89 on; the CPU has only its arithmetic)",
         {"auto", "fp32", "bf16", "fp8"}},
        {"machine",
         "recompute",
         &recompute,
         "in the backward pass instead of keeping it: the outputs of norms and GELU, or whole blocks",
         {"none", "norms", "block"}},
        {"machine",
         "attention",
         &attention,
         "whose kernels run on a GPU in bf16; auto: cuDNN's for the steps' batches, where it has any; cudnn: an error "
         "if "
         "it has none",
         {"auto", "own", "cudnn"}},
        {"machine", "deterministic", &deterministic,
         "the same bits each time from cuDNN's attention, too; false: its fastest backward (all else is "
         "deterministic)"},
        {"machine", "tune-matmul", &tune_matmul,
         "a file of matrix products timed on this GPU, made and added to in the first step (empty: cuBLASLt's own "
         "choice)"},
        {"machine", "dry-run", &dry_run, "print the memory plan and end"},
        {"machine", "doctor", &doctor,
         "check machine, libraries, launch, network, disk and data for this run, say what to do, and end"},
        {"plan", "plan", &plan.asked,
         "print parameters, memory, communication, time and cost for --world-size ranks and end; needs no data, no "
         "GPU"},
        {"plan", "plan-gpu", &plan.gpu, "whose figures are assumed", plan_gpu_names()},
        {"plan", "plan-memory", &plan.memory_gb, "GB of a GPU (0: that GPU's, so for all below)", {}, 0},
        {"plan", "plan-tflops", &plan.tflops, "TFLOP/s at most in bf16, dense", {}, 0},
        {"plan", "plan-mfu", &plan.mfu, "the part of that which forward and backward reach", {}, 0, 1},
        {"plan", "plan-bandwidth", &plan.bandwidth, "GB/s that collectives reach inside a server", {}, 0},
        {"plan", "plan-network", &plan.network, "GB/s that a GPU reaches to other servers", {}, 0},
        {"plan", "plan-price", &plan.usd_per_hour, "USD for a GPU-hour", {}, 0},
        {"machine", "threads", &threads, "0: OMP_NUM_THREADS, else one per core", {}, 0, 4096},
        {"ranks",
         "launcher",
         &launch.launcher,
         "whose variables say which rank this is; none: one rank, whatever they say",
         {"auto", "none", "mpi", "slurm", "torchrun"}},
        {"ranks", "rank", &launch.rank, "this process, where no launcher says it (-1: ask the launcher)", {}, -1},
        {"ranks",
         "world-size",
         &launch.world_size,
         "how many ranks there are, likewise, or of the --plan (0: ask the launcher)",
         {},
         0,
         1 << 16},
        {"ranks", "local-rank", &launch.local_rank, "the GPU to use (-1: by the order on this host)", {}, -1},
        {"ranks", "master", &launch.master, "HOST[:PORT] of rank 0, where ranks meet without MPI"},
        {"ranks",
         "virtual-ranks",
         &virtual_ranks,
         "in this one process, taking turns: sharding without a second machine (0: none)",
         {},
         0,
         64},
        {"ranks", "grad-comm", &grad_comm, "how gradients travel between ranks", {"fp32", "bf16"}},
        {"ranks",
         "sum-order",
         &sum_order,
         "of micro-batches; tree: the same bits at any number of ranks that have a power of two of them each, for log2 "
         "of "
         "that many gradient buffers more",
         {"in-place", "tree"}},
        {"ranks", "overlap", &overlap, "exchange gradients and weights while the device computes"},
        {"ranks",
         "check-replicas",
         &check_replicas,
         "steps between comparing all ranks' weights and speed (0: never)",
         {},
         0},
        {"ranks", "noise-scale", &noise_scale,
         "estimate the gradient noise scale from how the gradients of several ranks differ, a column of log.jsonl"},
        {"ranks", "bench-comm", &bench_comm, "print how fast collectives between the ranks are and end; needs no data"},
        {"ranks", "bench-comm-mib", &bench_comm_mib, "MiB of the largest buffer of --bench-comm", {}, 1, 1 << 14},
        {"ranks", "comm-timeout", &comm_timeout_s, "seconds to wait for another rank before giving up", {}, 0.1},
        {"ranks",
         "io-timeout",
         &io_timeout_s,
         "the same where that rank reads or writes files; not below --comm-timeout",
         {},
         0.1},
        {"machine", "seed", &seed, "of weights, data order and samples"},
    };
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
}

std::vector<std::pair<std::string, std::string>> TrainConfig::shared_flags() const {
    TrainConfig copy = *this;
    std::vector<std::pair<std::string, std::string>> all;
    for (const Field& field : copy.fields()) {
        const std::string name = field.name;
        const bool is_own = name == "rank" || name == "local-rank" || name == "threads" || name == "tune-matmul";
        if (!is_own) all.push_back({"--" + name, text_of(field)});
    }
    return all;
}

void TrainConfig::validate() const {
    require(target_flops == 0 || target_param_data_ratio == 0 || model.depth > 0,
            "--target-flops and --target-param-data-ratio both say how long to train: give one");
    require(!train_data.empty(), "--train-data is empty: give a pattern such as 'data/tinyshakespeare/train_*.bin'");
    require(!out_dir.empty(), "--out-dir is empty: give a folder for checkpoints and the log");
    require(learning_rate != 0 || steps == 0, "--learning-rate 0 learns nothing: give a positive one");
    TrainConfig copy = *this;
    for (const Field& field : copy.fields())  // all that -1 leaves to the recipe
        if (const auto* value = std::get_if<double*>(&field.value); value && field.min == -1)
            require(**value == -1 || **value >= 0, "--%s %g: expected at least 0, or -1 for the recipe's", field.name,
                    **value);
    const Recipe chosen = chosen_recipe();
    require(chosen.warmup_steps <= steps || steps <= 0,
            "--warmup-steps %ld is more than --steps %ld: lower one or raise the other", chosen.warmup_steps, steps);
    require(!prompt.empty() || sample_tokens == 0,
            "--prompt is empty, but a sample begins with one: give --prompt or --sample-tokens 0");
    require(top_p > 0, "--top-p 0 leaves no token to choose: give a part of the probability, up to 1");
    require(profile.empty() || (generate.empty() && !eval_only),
            "--profile looks at training steps, and %s makes none: leave one of them out",
            eval_only ? "--eval-only" : "--generate");
    require(generate.empty() || sample_tokens > 0,
            "--generate with --sample-tokens 0 has nothing to do: give a length");
    require(!chosen.decays_late() || chosen.decay_fraction > 0,
            "--lr-schedule %s needs a --decay-fraction above 0, such as 0.2", chosen.schedule_kind.c_str());
    require(!chosen.decays_late() || steps <= 0 ||
                double(chosen.warmup_steps) + chosen.decay_fraction * double(steps) <= double(steps) + 0.5,
            "--lr-schedule %s: --warmup-steps %ld and the last --decay-fraction %g of --steps %ld overlap: lower one "
            "of them",
            chosen.schedule_kind.c_str(), chosen.warmup_steps, chosen.decay_fraction, steps);
}

int64_t TrainConfig::grad_accumulation(int64_t seq_len, int64_t world_size) const {
    const int64_t B = batch_size > 0 ? batch_size : kDefaultBatchSize;
    const int64_t per_sequence = seq_len * world_size, micro_batches = B * per_sequence;  // one of each rank
    if (total_batch_size == 0) return 1;
    if (total_batch_size % micro_batches == 0) return total_batch_size / micro_batches;

    const auto either = [](int64_t below, int64_t above) {  // 0: there is none
        return below > 0 && above > 0 ? format("%ld and %ld", below, above) : std::to_string(below > 0 ? below : above);
    };
    const int64_t below = total_batch_size / micro_batches * micro_batches;
    std::string advice =
        format("the nearest %s %s", below > 0 ? "are" : "is", either(below, below + micro_batches).c_str());
    if (total_batch_size % per_sequence == 0) {
        const int64_t sequences = total_batch_size / per_sequence;  // of each rank
        int64_t smaller = B, larger = B;
        while (smaller > 0 && sequences % smaller != 0) smaller--;
        while (larger <= sequences && sequences % larger != 0) larger++;
        advice += format("; or --batch-size %s", either(smaller, larger <= sequences ? larger : 0).c_str());
    }
    const std::string ranks = world_size > 1 ? format(" x %ld ranks", world_size) : "";
    throw Error(
        kExitUsage,
        format("--total-batch-size %ld is not a multiple of --batch-size %ld x --seq-len %ld%s = %ld tokens: %s",
               total_batch_size, B, seq_len, ranks.c_str(), micro_batches, advice.c_str()));
}

std::string batch_text(const StepConfig& step) {
    const auto some = [](int64_t n, const char* one, const char* more) {
        return format("%ld %s", n, n == 1 ? one : more);
    };
    return some(step.B, "sequence", "sequences") + " x " + some(step.T, "token", "tokens") + " x " +
           some(step.accumulation, "micro-batch", "micro-batches") + " x " + some(step.world_size, "rank", "ranks") +
           " = " + some(step.num_tokens(), "token", "tokens") + " a step";
}

StepConfig TrainConfig::step(int64_t seq_len, int64_t world_size) const {
    return {.B = batch_size > 0 ? batch_size : kDefaultBatchSize,
            .T = seq_len,
            .accumulation = grad_accumulation(seq_len, world_size),
            .grad_clip = chosen_recipe().grad_clip,
            .world_size = world_size,
            .tree_sum = sum_order == "tree",
            .bf16_gradients = grad_comm == "bf16",
            .noise_scale = noise_scale && world_size > 1};
}

Recipe TrainConfig::chosen_recipe() const {
    using enum ParameterGroup;
    const std::string name = recipe != "model" ? recipe : model.recipe();
    Recipe r = find_recipe(name);
    const bool gpt2 = name == "gpt2";
    require(optimizer != "adamw" || gpt2,
            "--recipe %s has no AdamW for the matrices: leave --optimizer adamw out, or give --recipe gpt2",
            name.c_str());
    require(learning_rate < 0 || gpt2,
            "--recipe %s has a learning rate for each group: instead of --learning-rate give "
            "--embedding-learning-rate, --unembedding-learning-rate, --scalar-learning-rate or --muon-learning-rate",
            name.c_str());
    if (optimizer != "recipe") r.muon = optimizer == "muon";
    const auto replace = [](auto& value, auto by) {
        if (by >= 0) value = by;
    };
    const auto scale = [&](ParameterGroup first, double to, std::initializer_list<ParameterGroup> others) {
        if (to < 0) return;
        for (const ParameterGroup other : others)
            r.rule(other).learning_rate = to * (r.rule(other).learning_rate / r.rule(first).learning_rate);
        r.rule(first).learning_rate = to;
    };
    replace(r.learning_rate, learning_rate);
    for (GroupRule& rule : r.rules.groups) {
        replace(rule.learning_rate, learning_rate);
        replace(rule.beta1, beta1), replace(rule.beta2, beta2), replace(rule.eps, adam_eps);
        if (rule.weight_decay > 0) replace(rule.weight_decay, weight_decay);
    }
    scale(embedding, embedding_learning_rate, {positions, value_embeddings});
    scale(head, unembedding_learning_rate, {});
    scale(x0_lambdas, scalar_learning_rate, {resid_lambdas, vectors});

    if (lr_schedule != "recipe") r.schedule_kind = lr_schedule;
    // That of the recipe is made for long runs. How long an open length is, resolve() finds out, and asks again.
    if (steps >= 0) r.warmup_steps = std::min(r.warmup_steps, steps / 10);
    replace(r.warmup_steps, warmup_steps);
    replace(r.final_fraction, final_lr_fraction), replace(r.decay_fraction, decay_fraction);
    replace(r.grad_clip, grad_clip);

    MuonConfig& muon = r.rules.muon;
    replace(r.rules.muon_learning_rate, muon_learning_rate);
    if (muon_momentum >= 0) {
        // A constant momentum stays one.
        if (r.momentum.start == r.momentum.peak) r.momentum.start = muon_momentum;
        if (r.momentum.end == r.momentum.peak) r.momentum.end = muon_momentum;
        r.momentum.peak = muon_momentum;
    }
    replace(r.momentum.start, muon_momentum_start), replace(r.momentum.end, muon_momentum_end);
    replace(r.momentum.warmup_steps, muon_momentum_warmup_steps);
    replace(muon.weight_decay, muon_weight_decay), replace(muon.beta2, muon_beta2);
    if (muon_weight_decay_schedule != "recipe") r.cosine_muon_decay = muon_weight_decay_schedule == "cosine";
    muon.equal_rows &= muon_equal_rows, muon.fixed_norm &= muon_fixed_norm;
    muon.second_moment &= muon_second_moment, muon.cautious &= muon_cautious;
    muon.newton_schulz = muon_coefficients == "quintic" ? NewtonSchulzOptions::quintic(muon_iterations)
                                                        : NewtonSchulzOptions::polar_express(muon_iterations);
    return r;
}

Recompute TrainConfig::recompute_mode() const {
    return recompute == "block" ? Recompute::block : recompute == "norms" ? Recompute::norms : Recompute::none;
}

SampleConfig TrainConfig::sample() const {
    return {.num_tokens = sample_tokens, .temperature = temperature, .top_k = top_k, .top_p = top_p};
}

std::vector<std::string> TrainConfig::task_files() const {
    std::vector<std::string> files;
    for (size_t begin = 0, end; begin < eval_tasks.size(); begin = end + 1) {
        end = std::min(eval_tasks.find(',', begin), eval_tasks.size());
        files.push_back(eval_tasks.substr(begin, end - begin));
    }
    return files;
}

std::string TrainConfig::tokenizer_path() const {
    if (!tokenizer.empty()) return tokenizer;
    const std::string& data = eval_only && !val_data.empty() ? val_data : train_data;
    return std::filesystem::path(data).parent_path() / "tokenizer.json";
}

std::string flags_document() {
    TrainConfig defaults;
    std::string recipes = "\n## Recipes\n";
    for (const std::string& name : recipe_names()) recipes += "\n### " + name + "\n\n" + find_recipe(name).table(true);
    return "# Flags of train_gpt\n\n"
           "Made by `./train_gpt --help-markdown`; `make test` checks that it is up to date. The same names work in a "
           "file given\n"
           "with `--config FILE` (`batch-size = 8`); the command line wins. With `--resume`, flags that are not given "
           "keep the values of\n"
           "the run that is continued.\n\n" +
           markdown_table(defaults.fields()) + recipes +
           "\n## Exit codes\n\n"
           "| code | meaning |\n"
           "|---|---|\n"
           "| 0 | finished, or stopped by `--time-budget`, SIGTERM, SIGHUP, SIGUSR1 or Ctrl-C after saving a "
           "checkpoint |\n"
           "| 1 | a bug of Anvil's: please report it |\n"
           "| 2 | a bad flag or input file, no space, a missing device or library; data that go bad during a run "
           "cost no step, since a checkpoint is saved first |\n"
           "| 3 | another rank died or did not answer within `--comm-timeout`, or a signal came while ranks still met "
           "|\n"
           "| 4 | the loss or the gradients were not finite ten steps in a row |\n"
           "| 5 | the ranks' weights are no longer the same (`--check-replicas`) |\n";
}

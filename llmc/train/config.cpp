// See config.h.
#include "llmc/train/config.h"
#include <algorithm>
#include <filesystem>
#include "llmc/base/check.h"  // require

std::vector<Field> TrainConfig::fields() {
    std::vector<Field> all = {
        {"data", "train-data", &train_data, "token shards to learn from, a pattern"},
        {"data", "val-data", &val_data, "token shards to validate on, a pattern; empty: no validation"},
        {"data", "tokenizer", &tokenizer, "empty: tokenizer.json beside the training data"},
        {"data", "shuffle", &shuffle, "in a new order every epoch"},
    };
    for (const Field& field : model.fields()) all.push_back(field);
    const std::vector<Field> rest = {
        {"batch", "batch-size", &batch_size, "sequences per micro-batch (B)", {}, 1, 1 << 20},
        {"batch",
         "total-batch-size",
         &total_batch_size,
         "tokens per step, by gradient accumulation (0: one micro-batch)",
         {},
         0},
        {"length", "steps", &steps, "optimizer steps", {}, 0},
        {"length",
         "time-budget",
         &time_budget_s,
         "seconds of training after which the run ends as if it were the last step (0: none)",
         {},
         0},
        {"optimizer", "optimizer", &optimizer, "for all parameters", {"adamw"}},
        {"optimizer", "learning-rate", &learning_rate, "after warm-up", {}, 0},
        {"optimizer", "lr-schedule", &lr_schedule, "after warm-up", {"cosine", "linear", "constant", "wsd"}},
        {"optimizer", "warmup-steps", &warmup_steps, "of a linear rise", {}, 0},
        {"optimizer", "final-lr-fraction", &final_lr_fraction, "the last learning rate over the largest", {}, 0, 1},
        {"optimizer", "decay-fraction", &decay_fraction, "the part of all steps in which wsd decays", {}, 0, 1},
        {"optimizer", "beta1", &adamw.beta1, "decay of the first moment", {}, 0, 0.9999999},
        {"optimizer", "beta2", &adamw.beta2, "decay of the second moment", {}, 0, 0.9999999},
        {"optimizer", "adam-eps", &adamw.eps, "added to the root of the second moment", {}, 0},
        {"optimizer", "weight-decay", &adamw.weight_decay, "decoupled, on matrices and embeddings only", {}, 0},
        {"optimizer", "grad-clip", &grad_clip, "largest global norm of the gradient (0: none)", {}, 0},
        {"output", "out-dir", &out_dir, "of checkpoints and log.jsonl"},
        {"output", "resume", &resume,
         "continue: a run's folder, one of its checkpoints, or `auto` for the newest in --out-dir, if any"},
        {"output", "checkpoint-every", &checkpoint_every, "steps (0: only at the end)", {}, 0},
        {"output", "keep", &keep, "checkpoints to keep", {}, 1},
        {"output", "print-every", &print_every, "steps per line on the terminal; log.jsonl has all", {}, 1},
        {"output", "val-every", &val_every, "steps (0: only at the end)", {}, 0},
        {"output",
         "val-tokens",
         &val_tokens,
         "tokens per validation, whole batches, the same ones each time (0: all)",
         {},
         0},
        {"output", "sample-every", &sample_every, "steps (0: only at the end)", {}, 0},
        {"sampling", "prompt", &prompt, "what samples begin with"},
        {"sampling", "sample-tokens", &sample_tokens, "length of a sample (0: no samples)", {}, 0},
        {"sampling", "temperature", &temperature, "of the softmax; 0 takes the likeliest token", {}, 0},
        {"sampling", "top-k", &top_k, "choose among the k likeliest tokens (0: all)", {}, 0},
        {"machine", "device", &device, "auto takes the fastest there is", {"auto", "cuda", "cpu"}},
        {"machine",
         "dtype",
         &dtype,
         "of weights and activations; auto: bf16 on a GPU, fp32 on the CPU",
         {"auto", "fp32", "bf16"}},
        {"machine",
         "recompute",
         &recompute,
         "in the backward pass instead of keeping it: the outputs of norms and GELU, or whole blocks",
         {"none", "norms", "block"}},
        {"machine",
         "attention",
         &attention,
         "whose kernels run on a GPU in bf16; auto: cuDNN's where it has any",
         {"auto", "own", "cudnn"}},
        {"machine", "tune-matmul", &tune_matmul,
         "a file of matrix products timed on this GPU, made and added to as needed (empty: cuBLASLt's own choice)"},
        {"machine", "dry-run", &dry_run, "print the memory plan and end"},
        {"machine", "threads", &threads, "0: OMP_NUM_THREADS, else one per core", {}, 0, 4096},
        {"machine", "seed", &seed, "of weights, data order and samples"},
    };
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
}

void TrainConfig::validate() const {
    require(!train_data.empty(), "--train-data is empty: give a pattern such as 'data/tinyshakespeare/train_*.bin'");
    require(!out_dir.empty(), "--out-dir is empty: give a folder for checkpoints and the log");
    require(learning_rate > 0 || steps == 0, "--learning-rate 0 learns nothing: give a positive one");
    require(warmup_steps <= steps || steps == 0,
            "--warmup-steps %ld is more than --steps %ld: lower one or raise the other", warmup_steps, steps);
    require(!prompt.empty() || sample_tokens == 0,
            "--prompt is empty, but a sample begins with one: give --prompt or --sample-tokens 0");
    require(lr_schedule != "wsd" || decay_fraction > 0,
            "--lr-schedule wsd needs a --decay-fraction above 0, such as 0.2");
    require(lr_schedule != "wsd" || steps == 0 ||
                double(warmup_steps) + decay_fraction * double(steps) <= double(steps) + 0.5,
            "--lr-schedule wsd: --warmup-steps %ld and the last --decay-fraction %g of --steps %ld overlap: lower one "
            "of them",
            warmup_steps, decay_fraction, steps);
}

int64_t TrainConfig::grad_accumulation(int64_t seq_len) const {
    const int64_t micro_batch = batch_size * seq_len;
    if (total_batch_size == 0) return 1;
    const int64_t below = total_batch_size / micro_batch * micro_batch;
    const std::string nearest =
        below > 0 ? format("%ld and %ld", below, below + micro_batch) : std::to_string(micro_batch);
    require(total_batch_size == below,
            "--total-batch-size %ld is not a multiple of --batch-size %d x --seq-len %ld = %ld tokens: the nearest %s",
            total_batch_size, batch_size, seq_len, micro_batch,
            (below > 0 ? "are " + nearest : "is " + nearest).c_str());
    return total_batch_size / micro_batch;
}

Schedule TrainConfig::schedule() const {
    return {.kind = lr_schedule,
            .max = learning_rate,
            .min = learning_rate * final_lr_fraction,
            .warmup_steps = warmup_steps,
            .steps = steps,
            .decay_fraction = decay_fraction};
}

Recompute TrainConfig::recompute_mode() const {
    return recompute == "block" ? Recompute::block : recompute == "norms" ? Recompute::norms : Recompute::none;
}

SampleConfig TrainConfig::sample() const {
    return {.num_tokens = sample_tokens, .temperature = temperature, .top_k = top_k};
}

std::string TrainConfig::tokenizer_path() const {
    if (!tokenizer.empty()) return tokenizer;
    return std::filesystem::path(train_data).parent_path() / "tokenizer.json";
}

std::string flags_document() {
    TrainConfig defaults;
    return "# Flags of train_gpt\n\n"
           "Made by `./train_gpt --help-markdown`; `make lint` checks that it is up to date. The same names work in a "
           "file given\n"
           "with `--config FILE` (`batch-size = 8`); the command line wins. With `--resume`, flags that are not given "
           "keep the values of\n"
           "the run that is continued.\n\n" +
           markdown_table(defaults.fields()) +
           "\n## Exit codes\n\n"
           "| code | meaning |\n"
           "|---|---|\n"
           "| 0 | finished, or stopped by `--time-budget`, SIGTERM, SIGHUP or Ctrl-C after saving a checkpoint |\n"
           "| 1 | a bug of Anvil's: please report it |\n"
           "| 2 | a bad flag or input file, no space, a missing device or library |\n"
           "| 3 | another rank died or did not answer in time (for runs of many ranks, which this version does not "
           "have) |\n"
           "| 4 | the loss or the gradients were not finite ten steps in a row |\n";
}

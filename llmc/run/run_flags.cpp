// See run_flags.h.
#include "llmc/run/run_flags.h"
#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>
#include <sstream>
#include "llmc/base/check.h"      // require
#include "llmc/base/json.h"       // OrderedJson
#include "llmc/data/mixture.h"    // data_sources
#include "llmc/run/peak_flops.h"  // given_peak

namespace {

std::vector<std::string> recipe_choices() {
    std::vector<std::string> all = {"model"};
    for (const std::string& name : recipe_names()) all.push_back(name);
    return all;
}

void append(std::vector<Field>& all, const std::vector<Field>& more) {
    all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

bool is_of_one_process(const Field& field) {
    static const std::set<std::string> names = {
        "rank",       "local-rank",  "node-rank",  "max-restarts",     "interface",     "threads",
        "batch-size", "tune-matmul", "train-data", "val-data",         "tokenizer",     "out-dir",
        "resume",     "eval-tasks",  "peak-flops", "after-checkpoint", "before-resume", "fetch"};
    return names.contains(field.name);
}

std::string by_new_names(const std::string& json) {
    OrderedJson flags = parse_ordered_json(json);
    // What only removed parts of a recipe was true or false.
    for (const char* name : {"muon-cautious", "muon-equal-rows", "muon-fixed-norm", "muon-second-moment"})
        if (flags.is_object() && flags.contains(name) && flags[name].is_boolean())
            flags[name] = flags[name] == true ? "recipe" : "false";
    // grad-comm, reduce and sum-order are grad-sum now, in which bf16 has no tree: rounding undoes what it is for.
    if (!flags.is_object() || flags.contains("grad-sum")) return json_text(flags);
    const auto is = [&](const char* name, const char* value) { return flags.contains(name) && flags[name] == value; };
    const std::string type = is("grad-comm", "bf16") ? "bf16" : is("sum-order", "tree") ? "tree" : "fp32";
    const bool ordered = is("reduce", "all-to-all"), scattered = is("reduce", "reduce-scatter");
    const std::string sum = ordered                       ? (type == "fp32" ? "ordered" : type + "-ordered")
                            : type == "bf16" && scattered ? "bf16-scatter"
                                                          : type;
    if (sum != "fp32") flags["grad-sum"] = sum;
    return json_text(flags);
}

// The flag whose file has this line; "": it is a flag itself.
static const char* file_of(const std::string& name) {
    static const std::set<std::string> of_recipe = {
        "adam-eps", "decay-power",    "embedding-learning-rate", "unembedding-learning-rate", "scalar-learning-rate",
        "outer-lr", "outer-momentum", "scale-hyperparameters",   "window-warmup-steps",       "schedule-by"};
    static const std::set<std::string> of_config = {
        "async-checkpoint", "checkpoint-to", "profile-steps", "activation-sizes", "temperature", "top-k",     "top-p",
        "fp8-amax-history", "peak-flops",    "max-restarts",  "bucket-mb",        "overlap",     "io-timeout"};
    if (of_config.contains(name)) return "config";
    const bool is_of_recipe = of_recipe.contains(name) || name.starts_with("reference-") || name.ends_with("-growth") ||
                              name.starts_with("tail-average") ||
                              (name.starts_with("muon-") && name != "muon-learning-rate");
    return is_of_recipe ? "recipe" : "";
}

constexpr double kBelowOne = 0.9999999;

// A number that is the recipe's unless it is given.
static Field yes_or_no(Field field) { return field.one_of({"recipe", "true", "false"}); }
static Field or_recipe(const Field& field, double highest = std::numeric_limits<double>::infinity()) {
    return field.from(0, highest).or_else("recipe");
}

// The order is that of --help and doc/flags.md.
std::vector<Field> RunFlags::fields() {
    std::vector<Field> all = {
        {"data", "train-data", &train_data,
         "token shards to train on, a glob pattern; several with weights: 'a/*.bin:0.7,b/*.bin:0.3' (doc/formats.md)"},
        {"data", "val-data", &val_data,
         "token shards to validate on, a glob pattern (empty: no validation, as by default with a --train-data of your "
         "own)"},
        {"data", "tokenizer", &tokenizer, "tokenizer.json; empty: the one beside the training data"},
        {"data", "shuffle", &shuffle, "read the training data in a new order in every epoch"},
        Field{"data", "packing", &packing,
              "how documents fill the rows of a batch; stream: rows start anywhere in the text; best-fit: rows start "
              "at document boundaries and are filled with whole documents, the last one truncated (documents start "
              "with --document-token or the tokenizer's separator); pad, for conversations: only whole documents, then "
              "padding, and attention stays inside each document; with --depth best-fit, if it keeps at least half of "
              "the tokens"}
            .one_of({"stream", "best-fit", "pad"}),
        Field{"data", "data-order", &data_order,
              "own: a shuffle over all shards, the same at any --batch-size and number of ranks; shards: the same, but "
              "one shard after the other, each shuffled; llmc: the batches that llm.c would read, which depend on "
              "both, skip the ends of shards and ignore --seed"}
            .one_of({"own", "shards", "llmc"}),
        {"data", "fetch", &fetch,
         "shell command that each host runs to bring the shard $ANVIL_SHARD to the file $ANVIL_SHARD_PATH, ahead of "
         "its "
         "use; it is removed after it. Without room for all (doc/formats.md)"},
        Field{"data", "document-token", &document_token,
              "the token before each document, 50256 in GPT-2's shards; attention is masked to stay inside documents"}
            .from(0)
            .or_else("none"),
    };
    append(all, model.fields());
    append(
        all,
        {
            Field{"batch", "batch-size", &batch_size,
                  "sequences per micro-batch (B); auto: the largest that fits in memory and divides "
                  "--total-batch-size; default: 12, but auto with --depth, or with --model and --total-batch-size; CPU "
                  "ranks may have different numbers"}
                .from(1, 1 << 20)
                .zero_is("auto")
                .or_else("default"),
            Field{"batch", "total-batch-size", &total_batch_size,
                  "tokens per step over all ranks, by gradient accumulation (0: one micro-batch per rank, with --depth "
                  "from its scaling law; a resumed run keeps its number)"}
                .from(0),
            Field{"length", "steps", &steps, "optimizer steps (auto: from the targets below, else 2000)"}
                .from(0)
                .or_else("auto"),
            Field{"length", "window-warmup-steps", &window_warmup_steps,
                  "grow attention's windows linearly to full size over these steps, windows above 128 tokens in "
                  "multiples of 128; validation and samples use full windows"}
                .from(0),
            {"length", "batch-growth", &batch_growth,
             "tokens per step from steps on, as in `0:65536, 1000:131072`: micro-batches are added; learning rates are "
             "not scaled; before the first step of the list, --total-batch-size"},
            {"length", "length-growth", &length_growth,
             "tokens per sequence from steps on, as in `0:256, 2000:1024`: the rows of --seq-len are cut into such "
             "parts; validation and samples use --seq-len"},
            Field{"length", "target-param-data-ratio", &target_param_data_ratio,
                  "train for this many tokens per parameter, counting matrices and lm_head (0: none; with --depth 12)"}
                .from(0),
            Field{"length", "target-flops", &target_flops, "train for this many FLOPs (0: no target)"}.from(0),
            Field{"length", "patience", &patience,
                  "stop after this many validations in a row without a lower loss than before (0: do not)"}
                .from(0),
            Field{"length", "time-budget", &time_budget_s,
                  "stop after this many seconds of training, as if at the last step (0: no limit)"}
                .from(0),
            Field{"length", "schedule-by", &schedule_by,
                  "what learning rates and other schedules follow: steps, or the part of --time-budget that has "
                  "passed, so that a run ends fully decayed on any machine (its first 10 steps do not count); auto: "
                  "time if --time-budget is given and --steps is not"}
                .one_of({"auto", "steps", "time"}),

            Field{"optimizer", "recipe", &recipe,
                  "a recipe, whose tables are below, or a file of lines, of which one may name a recipe (`recipe = "
                  "gpt2`); flags override both; model: the recipe of the model's architecture"}
                .one_of(recipe_choices())
                .or_file(),
            Field{"optimizer", "optimizer", &optimizer,
                  "muon: Muon for the matrices inside the blocks, AdamW for everything else; adamw only with --recipe "
                  "gpt2"}
                .one_of(optimizer_names()),
            or_recipe({"optimizer", "learning-rate", &learning_rate,
                       "peak learning rate of AdamW (only with --recipe gpt2)"}),
            or_recipe({"optimizer", "embedding-learning-rate", &embedding_learning_rate,
                       "peak learning rate of token and position embeddings; value embeddings scale with it"}),
            or_recipe({"optimizer", "unembedding-learning-rate", &unembedding_learning_rate,
                       "peak learning rate of an untied lm_head"}),
            or_recipe(
                {"optimizer", "scalar-learning-rate", &scalar_learning_rate,
                 "peak learning rate of the x0 lambdas; residual lambdas, norm weights and biases scale with it"}),
            Field{"optimizer", "lr-schedule", &lr_schedule, "learning-rate schedule after warm-up"}.one_of(
                {"recipe", "cosine", "linear", "constant", "wsd", "trapezoid", "powercool"}),
            or_recipe({"optimizer", "warmup-steps", &warmup_steps,
                       "steps of linear warm-up (recipe: the recipe's, at most a tenth of the run's first --steps)"}),
            or_recipe(
                {"optimizer", "final-lr-fraction", &final_lr_fraction, "final learning rate as a fraction of the peak"},
                1),
            or_recipe({"optimizer", "decay-fraction", &decay_fraction,
                       "fraction of all steps in which wsd, trapezoid and powercool decay"},
                      1),
            or_recipe({"optimizer", "decay-power", &decay_power,
                       "powercool: the power of what is left of these steps, 1.2 in all recipes; 1: trapezoid"}),
            or_recipe({"optimizer", "beta1", &beta1, "AdamW: decay of the first moment"}, kBelowOne),
            or_recipe({"optimizer", "beta2", &beta2, "AdamW: decay of the second moment"}, kBelowOne),
            or_recipe(
                {"optimizer", "adam-eps", &adam_eps, "AdamW: epsilon, added to the square root of the second moment"},
                1),
            or_recipe({"optimizer", "weight-decay", &weight_decay,
                       "AdamW: decoupled weight decay of the groups that the recipe decays, matrices and embeddings"}),
            or_recipe({"optimizer", "muon-learning-rate", &muon_learning_rate, "Muon: peak learning rate"}),
            or_recipe({"optimizer", "muon-momentum", &muon_momentum, "Muon: Nesterov momentum at its peak"}, kBelowOne),
            or_recipe({"optimizer", "muon-momentum-warmup-steps", &muon_momentum_warmup_steps,
                       "Muon: steps in which momentum rises to its peak"}),
            or_recipe({"optimizer", "muon-momentum-start", &muon_momentum_start, "Muon: momentum at the first step"},
                      kBelowOne),
            or_recipe({"optimizer", "muon-momentum-end", &muon_momentum_end,
                       "Muon: momentum at the last step, reached while wsd, trapezoid and powercool decay"},
                      kBelowOne),
            or_recipe({"optimizer", "muon-weight-decay", &muon_weight_decay, "Muon: decoupled weight decay"}),
            Field{"optimizer", "muon-weight-decay-schedule", &muon_weight_decay_schedule,
                  "Muon: cosine decays the weight decay to 0"}
                .one_of({"recipe", "constant", "cosine"}),
            yes_or_no({"optimizer", "muon-cautious", &muon_cautious,
                       "Muon: decay only where the update does not increase the weight's magnitude"}),
            yes_or_no(
                {"optimizer", "muon-equal-rows", &muon_equal_rows, "MuonEq: normalize rows before Newton-Schulz"}),
            yes_or_no({"optimizer", "muon-fixed-norm", &muon_fixed_norm,
                       "Muon+: rescale the update to the norm of an orthogonal matrix"}),
            yes_or_no({"optimizer", "muon-second-moment", &muon_second_moment,
                       "NorMuon: divide rows or columns by their second moment"}),
            or_recipe({"optimizer", "muon-beta2", &muon_beta2, "NorMuon: decay of that second moment"}, kBelowOne),
            Field{
                "optimizer", "muon-norms", &muon_norms,
                "Muon: hyperball keeps the norm of each matrix, in steps of the learning rate times it, without weight "
                "decay; floor: updates have at least muon-floor times the norm of the matrix before the learning "
                "rate, row-floor: each of their rows of its row"}
                .one_of({"free", "hyperball", "floor", "row-floor"}),
            Field{"optimizer", "muon-floor", &muon_floor, "Muon: that fraction"}.from(0),
            Field{"optimizer", "muon-radius", &muon_radius,
                  "Muon: under hyperball matrices of a smaller norm, zeros among them, first grow to this, in roots of "
                  "their rows"}
                .from(0),
            Field{"optimizer", "muon-coefficients", &muon_coefficients, "Muon: coefficients of Newton-Schulz"}.one_of(
                {"polar-express", "quintic"}),
            Field{"optimizer", "muon-iterations", &muon_iterations, "Muon: Newton-Schulz iterations per step"}.from(1,
                                                                                                                    50),
            Field{"optimizer", "tail-average", &tail_average,
                  "average the weights over this last fraction of all steps, 4 bytes per parameter; the average is "
                  "validated, and exported from checkpoints (0: none)"}
                .from(0, 1),
            Field{"optimizer", "tail-average-memory", &tail_average_memory,
                  "the average's time constant, as a fraction of those steps"}
                .from(0, 1),
            {"optimizer", "scale-hyperparameters", &scale_hyperparameters,
             "scale learning rates and weight decays from the reference batch size and length to this run's; --recipe "
             "nanochat always does"},
            Field{"optimizer", "reference-batch-size", &reference_batch_size,
                  "tokens per step that the hyperparameters were tuned with"}
                .from(1),
            Field{"optimizer", "reference-tokens", &reference_tokens,
                  "training tokens that the hyperparameters were tuned with (0: as in this run)"}
                .from(0),
            Field{"optimizer", "moments", &moments,
                  "type in which AdamW's two moments and Muon's momentum are stored; bf16: half of the memory, rounded "
                  "stochastically"}
                .one_of({"fp32", "bf16"}),
            Field{"optimizer", "dropout", &dropout,
                  "dropout probability in training, of the embeddings and of what attention and MLP add to the "
                  "residual stream (0: none); attention probabilities are not dropped; with --lora-rank of the "
                  "adapters' inputs alone"}
                .from(0, 0.99),
            Field{"optimizer", "lora-rank", &lora_rank,
                  "train adapters of this rank (LoRA) beside the matrices of --init-from, which stay as they are "
                  "(0: train the model itself)"}
                .from(0, 1 << 16),
            Field{"optimizer", "lora-alpha", &lora_alpha,
                  "adapters are multiplied by this, divided by the rank; 8 is PEFT's default"}
                .from(0),
            {"optimizer", "lora-targets", &lora_targets,
             "which matrices have adapters, separated by commas: qkv, projection (attention's output), up (with a "
             "gate, both) and down (the MLP)"},
            or_recipe({"optimizer", "grad-clip", &grad_clip, "clip the gradient to this global norm (0: no clipping)"}),

            {"output", "out-dir", &out_dir, "folder for checkpoints and log.jsonl"},
            {"output", "resume", &resume,
             "resume from a run's folder, from one of its checkpoints, or with `auto` from the newest in --out-dir, if "
             "any; flags that are not given keep the run's values"},
            {"output", "init-from", &init_from,
             "start from the weights of another model: a name that data/model.sh knows on the Hugging Face hub (gpt2, "
             "SmolLM2-135M, ...), a folder of transformers (GPT-2, Llama, Mistral, NanoChat), a checkpoint, a run, or "
             "a model file of llm.c; the model's flags follow it unless given"},
            Field{"output", "checkpoint-every", &checkpoint_every, "steps between checkpoints (0: only at the end)"}
                .from(0),
            {"output", "async-checkpoint", &async_checkpoint,
             "write checkpoints in the background, from a copy in host memory"},
            Field{"output", "checkpoint-to", &checkpoint_to,
                  "where ranks on several hosts save: rank0: parts travel to rank 0's --out-dir; shared: each rank "
                  "writes to that folder; auto: shared where ranks see it, else rank0"}
                .one_of({"auto", "shared", "rank0"}),
            Field{"output", "keep", &keep, "number of checkpoints to keep"}.from(1),
            {"output", "after-checkpoint", &after_checkpoint,
             "shell command that rank 0 runs beside the training for each checkpoint, the folder $ANVIL_CHECKPOINT: to "
             "copy it to a bucket (scripts/bucket.sh); up to four that are not copied yet are kept beyond --keep"},
            {"output", "before-resume", &before_resume,
             "shell command that rank 0 runs before --resume looks for checkpoints: to bring the newest into the "
             "folder $ANVIL_OUT_DIR"},
            {"output", "save-best", &save_best,
             "also keep the checkpoint with the lowest validation loss; the link OUT/best points to it"},
            Field{"output", "print-every", &print_every, "steps per line on the terminal; log.jsonl has every step"}
                .from(1),
            {"output", "summary", &summary,
             "print the run's figures at the end as `name: value` lines, for scripts (doc/formats.md)"},
            {"output", "results", &results,
             "append a row to this table at the end of the run: commit, hash of the config, seed, bits per byte, ..."},
            {"output", "description", &description, "description of this run in its row of --results"},
            Field{
                "output", "log-to", &log_to,
                "services that get log.jsonl during the run, too, by scripts/log_to.py: wandb (WANDB_MODE=offline: to "
                "files), tensorboard, mlflow, trackio, prometheus:PORT (/metrics); with commas between them"},
            {"output", "profile", &profile,
             "profile a few steps op by op: write a trace for ui.perfetto.dev to this file and print a table; ranks "
             "after the first write FILE with .rankN before its extension (empty: off)"},
            Field{"output", "profile-steps", &profile_steps, "steps to profile, after two of warm-up"}.from(1, 1000),
            Field{"output", "val-every", &val_every, "steps between validations (0: only at the end)"}.from(0),
            Field{"output", "val-tokens", &val_tokens,
                  "tokens per validation, in whole sequences, the same ones at any --batch-size and number of ranks "
                  "(0: all)"}
                .from(0),
            {"output", "activation-sizes", &activation_sizes,
             "validations also write the root mean square of activations to log.jsonl (scripts/coordinate_check.py)"},
            {"output", "eval-tasks", &eval_tasks,
             "task files to score the model on, separated by commas; made by scripts/make_hellaswag.py and "
             "scripts/make_core.py"},
            Field{"output", "eval-tasks-every", &eval_tasks_every, "steps between scores (0: only at the end)"}.from(0),
            Field{"output", "sample-every", &sample_every, "steps between samples (0: only at the end)"}.from(0),

            {"sampling", "prompt", &prompt, "text that samples start with"},
            Field{"sampling", "sample-tokens", &sample_tokens, "tokens per sample (0: no samples)"}.from(0),
            Field{"sampling", "temperature", &temperature, "softmax temperature; 0: greedy"}.from(0),
            Field{"sampling", "top-k", &top_k, "sample from the k most likely tokens (0: all)"}.from(0),
            Field{"sampling", "top-p", &top_p,
                  "sample from the most likely tokens that add up to this probability (1: all)"}
                .from(0, 1),

            Field{"machine", "device", &device, "auto: a GPU if there is one"}.one_of({"auto", "cuda", "cpu"}),
            Field{
                "machine", "dtype", &dtype,
                "type of weights and activations; auto: bf16 on a GPU and on CPUs whose bf16 GEMMs are measured to be "
                "1.3 times as fast or more, else fp32, and in a resumed run its type; fp8: bf16 (fp32 on the CPU) with "
                "the blocks' large linear layers in FP8 (GPUs from sm_89; the CPU emulates the arithmetic)"}
                .one_of({"auto", "fp32", "bf16", "fp8"}),
            Field{"machine", "fp8-scaling", &fp8_scaling,
                  "scales of FP8 tensors; current: from the tensor itself; delayed: of inputs and gradients from the "
                  "largest magnitudes of earlier steps, so that each is read once instead of twice; mx: MXFP8, a power "
                  "of two for each 32 elements (GPUs from sm_100)"}
                .one_of({"current", "delayed", "mx"}),
            Field{"machine", "fp8-amax-history", &fp8_amax_history,
                  "steps whose largest magnitudes make a delayed scale: their maximum counts (1: the most recent one)"}
                .from(1, 1 << 16),
            Field{"machine", "recompute", &recompute,
                  "activation checkpointing: recompute norms and GELU, or whole blocks, or the first N blocks, in the "
                  "backward pass"}
                .one_of({"none", "norms", "block", "block:N"}),
            Field{"machine", "memory", &memory,
                  "memory of a parameter in bf16; full: its weight with an fp32 master, fp32 gradient and --moments; "
                  "lean: no master, the weight itself is rounded stochastically, bf16 moments, and gradients summed as "
                  "with --zero-stage 2 and kept in bf16 (fp32 with --grad-sum tree)"}
                .one_of({"full", "lean"}),
            Field{
                "machine", "offload", &offload,
                "optimizer: moments and master weights lie in pinned host memory and are copied to the GPU and back "
                "around the update, beside it; :N: N percent of them; :auto: what the GPU has no memory for; the same "
                "bits, for the time that PCIe takes"}
                .one_of({"none", "optimizer", "optimizer:auto", "optimizer:N"}),
            Field{"machine", "attention", &attention,
                  "attention kernels on a GPU in bf16; auto: cuDNN's for training shapes that it supports, but Anvil's "
                  "backward pass where it is the faster one, on Hopper for heads of 64 and for windows; cudnn: "
                  "cuDNN's, or "
                  "an error; own: Anvil's; mixed: cuDNN's forward and Anvil's backward pass"}
                .one_of({"auto", "own", "cudnn", "mixed"}),
            {"machine", "deterministic", &deterministic,
             "bit-reproducible backward pass in cuDNN's attention; false: its fastest (everything else is always "
             "deterministic)"},
            {"machine", "cuda-graph", &cuda_graph,
             "capture forward and backward pass as a CUDA graph in the third step and replay it from then on: one "
             "launch per step, the same bits; on one GPU, without dropout"},
            {"machine", "tune-matmul", &tune_matmul,
             "time GEMM algorithms on this GPU in the first step and keep the fastest in this file, for later runs "
             "too; auto: in ~/.cache/anvil (empty or off: cuBLASLt's heuristics)"},
            {"machine", "peak-flops", &peak_flops,
             "FLOP/s of this rank's device, of which MFU is a part; auto: the vendor's figure of a known GPU in bf16, "
             "else measured and kept in ~/.cache/anvil; measure: measured again; a number (165e12); 0: no MFU"},
            {"machine", "dry-run", &dry_run, "print the memory plan and exit"},
            Field{"machine", "threads", &threads,
                  "CPU threads (0: OMP_NUM_THREADS, else one per core, within the container's CPU quota)"}
                .from(0, 4096),
            {"machine", "seed", &seed, "seed of weights, data order and samples"},

            Field{"ranks", "launcher", &launch.launcher,
                  "which launcher's environment variables give rank and world size; none: a single rank"}
                .one_of({"auto", "none", "mpi", "slurm", "torchrun"}),
            Field{"ranks", "rank", &launch.rank, "this process's rank, without a launcher (-1: from the launcher)"}
                .from(-1),
            Field{"ranks", "world-size", &launch.world_size,
                  "number of ranks, without a launcher or for `plan` (0: from the launcher)"}
                .from(0, 1 << 16),
            Field{"ranks", "local-rank", &launch.local_rank, "GPU to use on this host (-1: by order of the ranks)"}
                .from(-1),
            Field{"ranks", "nproc-per-node", &launch.nproc_per_node,
                  "start this many ranks on this host, each a process, as torchrun does (0: this process is a rank)"}
                .from(0, 1 << 12),
            Field{"ranks", "nnodes", &launch.nnodes,
                  "number of hosts, on each of which --nproc-per-node is given (0: from the launcher, or one)"}
                .from(0, 1 << 16),
            Field{"ranks", "node-rank", &launch.node_rank, "which of them this host is, from 0 (-1: from the launcher)"}
                .from(-1),
            {"ranks", "master", &launch.master, "HOST[:PORT] of rank 0, where ranks meet without MPI"},
            {"ranks", "interface", &launch.interface,
             "this host's network interface for traffic to other hosts without MPI, such as eth0, also for NCCL "
             "(empty: the one that reaches rank 0)"},
            {"ranks", "supervise", &launch.supervise,
             "train in a child process, and restart it from the newest checkpoint in --out-dir when a rank is lost, "
             "without the ranks that do not come back within --comm-timeout. For one process, or ranks that were each "
             "started with --rank"},
            Field{"ranks", "max-restarts", &launch.max_restarts,
                  "how often --supervise restarts; it also gives up after four restarts in a row without a new "
                  "checkpoint"}
                .from(0),
            Field{"ranks", "virtual-ranks", &virtual_ranks,
                  "run this many ranks in one process, taking turns, to try sharding without a second machine (0: off)"}
                .from(0, 64),
            {"ranks", "balance", &balance,
             "how micro-batches are divided among CPU ranks; equal: the same number for all; auto: by each rank's "
             "measured speed, again when that changes; 3,1: three for rank 0 and one for rank 1; FILE.jsonl: as in the "
             "log of another run"},
            Field{"ranks", "grad-sum", &grad_sum,
                  "how gradients are sent between ranks and summed; bf16: half the bytes; ordered: in fp32 and in the "
                  "order of ranks, the same bits on any device and network; tree: the same bits on any number of CPU "
                  "ranks, if each has a power of two of micro-batches, for log2 of that number more gradient buffers; "
                  "tree-ordered: on GPUs, too; bf16-ordered, bf16-scatter: bf16 in the order of ranks or of the "
                  "network, of which bf16 takes the faster"}
                .one_of({"fp32", "bf16", "ordered", "tree", "tree-ordered", "bf16-ordered", "bf16-scatter"}),
            Field{"ranks", "shard-ranks", &shard_ranks,
                  "number of consecutive ranks among which the optimizer's state is sharded: with the ranks of one "
                  "host, weights are gathered inside the host, and only sums of gradients cross between hosts; must "
                  "divide the number of ranks (0, or more than there are: all)"}
                .from(0, 1 << 16),
            Field{"ranks", "zero-stage", &zero_stage,
                  "what is sharded over the ranks: the optimizer's state (1), or gradients as well (2), of which a "
                  "rank then holds only its own part and those of a few layers; gradients are then summed over the "
                  "ranks in every micro-batch, not only in a step's last"}
                .from(1, 2),
            Field{
                "ranks", "islands", &islands,
                "experimental: number of groups of consecutive ranks that train on their own and average weights only "
                "every --outer-every steps, for slow links (DiLoCo, doc/distributed/islands.md); must divide the "
                "number of ranks (0: all ranks make each step together)"}
                .from(0, 1 << 16),
            Field{"ranks", "outer-every", &outer_every,
                  "steps between two exchanges of the islands; validation, checkpoints and stops wait for the next one"}
                .from(1),
            Field{"ranks", "outer-lr", &outer_lr,
                  "islands: learning rate of the outer step, which moves from the last common weights toward the "
                  "islands' mean"}
                .from(0),
            Field{"ranks", "outer-momentum", &outer_momentum,
                  "islands: Nesterov momentum of the outer step; more than 0.5 needs hundreds of outer steps"}
                .from(0, kBelowOne),
            Field{"ranks", "outer-dtype", &outer_dtype,
                  "islands: type of what they exchange; in bf16 and int8 (one scale per 64 values) the rounding error "
                  "is carried over to the next time"}
                .one_of({"fp32", "bf16", "int8"}),
            Field{"ranks", "bucket-mb", &bucket_mb,
                  "size of a gradient bucket: whole layers are communicated together up to this many MiB, counted in "
                  "fp32 (0: 32, from 8 ranks on 4 per rank); does not apply to matrices under Muon"}
                .from(0, 1 << 20),
            {"ranks", "overlap", &overlap, "overlap communication of gradients and weights with computation"},
            Field{"ranks", "check-replicas", &check_replicas,
                  "steps between comparisons of all ranks' weights and speed (0: never)"}
                .from(0),
            {"ranks", "noise-scale", &noise_scale,
             "estimate the gradient noise scale from how the gradients of ranks differ, or those of one rank's "
             "micro-batches, and write it to log.jsonl"},
            Field{"ranks", "comm-timeout", &comm_timeout_s, "seconds to wait for another rank before giving up"}.from(
                0.1),
            Field{"ranks", "io-timeout", &io_timeout_s,
                  "seconds to wait for a rank that reads or writes files; at least --comm-timeout"}
                .from(0.1),
        });
    for (Field& field : all)
        if (field.is_flag()) field.in_file = file_of(field.name);
    return all;
}

static NumbersByStep numbers_by_step(const char* name, const std::string& text) {
    NumbersByStep all;
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) {
        std::erase(part, ' ');
        if (const size_t colon = part.find(':'); colon != std::string::npos) part[colon] = ',';
        const std::vector<int64_t> pair = numbers_in(part);
        require(pair.size() == 2 && pair[1] > 0 && (all.empty() || pair[0] > all.back().first),
                "%s = %s: expected a step and a number from it on, and so forth with rising steps, as in 0:256, "
                "2000:1024",
                name, text.c_str());
        all.push_back({pair[0], pair[1]});
    }
    return all;
}

NumbersByStep RunFlags::batches() const {
    return trains() ? numbers_by_step("batch-growth", batch_growth) : NumbersByStep();
}
NumbersByStep RunFlags::lengths() const {
    return trains() ? numbers_by_step("length-growth", length_growth) : NumbersByStep();
}

// Throws an Error unless --log-to names services of scripts/log_to.py.
static void check_services(const std::string& log_to) {
    static const std::set<std::string> names = {"wandb", "tensorboard", "mlflow", "trackio", "prometheus"};
    std::istringstream words(log_to == "none" ? "" : log_to);
    for (std::string word; std::getline(words, word, ',');) {
        const size_t colon = std::min(word.find(':'), word.size());
        const bool has_port = colon + 1 < word.size() && word.size() < colon + 7 &&
                              word.find_first_not_of("0123456789", colon + 1) == std::string::npos;
        require(names.contains(word.substr(0, colon)) &&
                    (colon == word.size() || (has_port && word.starts_with("prometheus"))),
                "--log-to %s: expected none, or wandb, tensorboard, mlflow, trackio and prometheus or prometheus:PORT, "
                "with commas between them",
                log_to.c_str());
    }
}

void RunFlags::validate() const {
    require(fp8() || fp8_scaling == "current" || source_of("fp8-scaling") == "the checkpoint",
            "--fp8-scaling %s without --dtype fp8: give both, or leave it out", fp8_scaling.c_str());
    require(target_flops == 0 || target_param_data_ratio == 0 || model.depth > 0,
            "--target-flops and --target-param-data-ratio both say how long to train: give one");
    given_peak(peak_flops);
    check_services(log_to);
    require(!lora().is_on() || !mx(),
            "--lora-rank with --fp8-scaling mx: beside adapters a weight in FP8 has one scale: choose another");
    require(!train_data.empty(), "--train-data is empty: give a pattern such as 'data/tinyshakespeare/train_*.bin'");
    if (trains()) data_sources(train_data);
    for (const auto& [flag, asked] : {std::pair{"--packing", packing != "stream"},
                                      {"weights", has_weights(train_data)},
                                      {"batch-growth", !batch_growth.empty()}})
        require(data_order != "llmc" || !asked || !trains(),
                "--data-order llmc with %s: llm.c has windows of one data set only, in steps of one size; leave one of "
                "them out",
                flag);
    require(fetch.empty() || !trains() || !shuffle || packing != "stream" || data_order != "own",
            "--fetch with --data-order own: a shuffle over all shards needs all of them all the time: give "
            "--data-order shards, or --no-shuffle");
    batches(), lengths();
    const char* const by_micro_batch = zero_stage == 1 ? "--memory lean" : "--zero-stage 2";
    require(data_order != "llmc" || (zero_stage == 1 && !sums_in_bf16()),
            "--data-order llmc with %s: each assigns a step's batches to ranks in its own way; leave one of them out",
            by_micro_batch);
    require(!has_weights(val_data),
            "--val-data %s: expected one pattern without weights, the same tokens in every validation",
            val_data.c_str());
    require(!out_dir.empty(), "--out-dir is empty: give a folder for checkpoints and the log");
    require(!lean() || !trains() || dtype != "fp32",
            "--memory lean rounds weights to bf16, and --dtype is fp32: give --dtype bf16");
    require(!lean() || moments == "bf16" || source_of("moments").empty(),
            "--memory lean has moments in bf16: leave --moments %s out", moments.c_str());
    require(learning_rate != 0.0 || steps == int64_t(0), "--learning-rate 0 learns nothing: give a positive one");
    require(offload_percent() <= 100, "--offload %s: expected up to 100 percent", offload.c_str());
    const BalanceMode mode = balance_mode();
    require(
        !mode.moves() || !tree_sum(),
        "--grad-sum %s has the same bits whatever the ranks, and --balance %s moves work between them: leave one of "
        "them out",
        grad_sum.c_str(), balance.c_str());
    require(mode.is_equal() || !noise_scale,
            "--noise-scale compares ranks with equal shares of a step: leave it or --balance %s out", balance.c_str());
    const Recipe chosen = chosen_recipe();
    const int64_t num_steps = steps.value_or(0);
    // A run that is resumed and shortened keeps its warm-up.
    require(chosen.warmup_steps <= num_steps || num_steps == 0 || source_of("warmup-steps") == "the checkpoint",
            "--warmup-steps %ld is more than --steps %ld: lower one or raise the other", chosen.warmup_steps,
            num_steps);
    require(schedule_by != "time" || time_budget_s > 0,
            "schedule-by = time needs a --time-budget: give its seconds, or leave the line out");
    require(patience == 0 || val_every > 0,
            "--patience %ld counts validations during the run, and --val-every is 0: give the steps between them",
            patience);
    require(!lean() || tail_average == 0,
            "tail-average: the average is of fp32 weights, which --memory lean does not have: leave one of them out");
    if (islands_of_run() > 0) {
        require(shard_ranks == 0,
                "--islands and --shard-ranks: an island shards the optimizer's state among all of its ranks; leave "
                "--shard-ranks out");
        require(!lean(),
                "--islands average fp32 master weights, which --memory lean does not have: leave one of them out");
        require(
            offload == "none",
            "--islands: an outer step reads and writes master weights in the device's memory; leave --offload %s out",
            offload.c_str());
        require(zero_stage == 1, "--islands: an island shards the optimizer's state alone; leave --zero-stage 2 out");
        require(schedule_by != "time",
                "--islands: each has a clock of its own, which schedules cannot follow: give --steps, or schedule-by = "
                "steps in a file for --recipe");
    }
    for (const auto& [flag, asked] : {std::pair{"--save-best", save_best}, {"--patience", patience > 0}})
        require(!asked || !trains() || !val_data.empty(), "%s needs a validation loss: give --val-data", flag);
    require(!prompt.empty() || sample_tokens == 0,
            "--prompt is empty, but a sample begins with one: give --prompt or --sample-tokens 0");
    require(!noise_scale || (zero_stage == 1 && !sums_in_bf16()),
            "--noise-scale needs each rank's own gradient of a step, which no rank has with %s: leave one of them out",
            by_micro_batch);
    require(top_p > 0, "--top-p 0 leaves no token to choose: give a probability above 0, up to 1");
    require(!chosen.decays_late() || chosen.decay_fraction > 0,
            "--lr-schedule %s needs a --decay-fraction above 0, such as 0.2", chosen.schedule_kind.c_str());
    require(!chosen.decays_late() || num_steps == 0 ||
                double(chosen.warmup_steps) + chosen.decay_fraction * double(num_steps) <= double(num_steps) + 0.5,
            "--lr-schedule %s: --warmup-steps %ld and the last --decay-fraction %g of --steps %ld overlap: lower one "
            "of them",
            chosen.schedule_kind.c_str(), chosen.warmup_steps, chosen.decay_fraction, num_steps);
}

Lora RunFlags::lora() const {
    Lora lora{.rank = lora_rank, .alpha = lora_alpha, .dropout = dropout, .fp8_base = fp8()};
    if (!lora.is_on()) return {};
    for (size_t begin = 0, end; begin <= lora_targets.size(); begin = end + 1) {
        end = std::min(lora_targets.find(',', begin), lora_targets.size());
        const std::string name = lora_targets.substr(begin, end - begin);
        const auto* const found = std::find(std::begin(kLinearNames), std::end(kLinearNames), name);
        require(found != std::end(kLinearNames),
                "--lora-targets %s: '%s' is no target: expected some of qkv, projection, up and down, with commas "
                "between",
                lora_targets.c_str(), name.c_str());
        lora.targets[found - std::begin(kLinearNames)] = true;
    }
    return lora;
}

Recipe RunFlags::chosen_recipe() const {
    using enum ParameterGroup;
    const std::string name = recipe != "model" ? recipe : model.recipe();
    Recipe r = find_recipe(name);
    const bool gpt2 = name == "gpt2";
    require(
        !learning_rate || gpt2,
        "--recipe %s has a learning rate for each group: instead of --learning-rate give --muon-learning-rate, or in "
        "a file for --recipe embedding-learning-rate, unembedding-learning-rate or scalar-learning-rate",
        name.c_str());
    if (optimizer != "recipe") r.set_optimizer(optimizer);
    const auto replace = [](auto& value, const auto& by) { value = by.value_or(value); };
    const auto scale = [&](ParameterGroup first, std::optional<double> to,
                           std::initializer_list<ParameterGroup> others) {
        if (!to) return;
        for (const ParameterGroup other : others)
            r.rule(other).learning_rate = *to * (r.rule(other).learning_rate / r.rule(first).learning_rate);
        r.rule(first).learning_rate = *to;
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
    // The recipe's warm-up is for long runs. RunConfig calls this again once it knows the length.
    if (steps) r.warmup_steps = std::min(r.warmup_steps, *steps / 10);
    replace(r.warmup_steps, warmup_steps);
    replace(r.final_fraction, final_lr_fraction), replace(r.decay_fraction, decay_fraction);
    replace(r.decay_power, decay_power);
    replace(r.grad_clip, grad_clip);

    MuonConfig& muon = r.rules.muon;
    replace(r.rules.muon_learning_rate, muon_learning_rate);
    if (muon_momentum) {
        // If the momentum is constant, it stays constant.
        if (r.momentum.start == r.momentum.peak) r.momentum.start = *muon_momentum;
        if (r.momentum.end == r.momentum.peak) r.momentum.end = *muon_momentum;
        r.momentum.peak = *muon_momentum;
    }
    replace(r.momentum.start, muon_momentum_start), replace(r.momentum.end, muon_momentum_end);
    replace(r.momentum.warmup_steps, muon_momentum_warmup_steps);
    replace(muon.weight_decay, muon_weight_decay), replace(muon.beta2, muon_beta2);
    if (muon_weight_decay_schedule != "recipe") r.cosine_muon_decay = muon_weight_decay_schedule == "cosine";
    for (auto& [value, asked] : {std::pair{&muon.equal_rows, &muon_equal_rows},
                                 {&muon.fixed_norm, &muon_fixed_norm},
                                 {&muon.second_moment, &muon_second_moment},
                                 {&muon.cautious, &muon_cautious}})
        if (*asked != "recipe") *value = *asked == "true";
    muon.norms = muon_norms == "hyperball"   ? MuonNorms::hyperball
                 : muon_norms == "floor"     ? MuonNorms::floor
                 : muon_norms == "row-floor" ? MuonNorms::row_floor
                                             : MuonNorms::none;
    muon.floor = muon_floor, muon.radius = muon_radius;
    muon.newton_schulz = muon_coefficients == "quintic" ? NewtonSchulzOptions::quintic(muon_iterations)
                                                        : NewtonSchulzOptions::polar_express(muon_iterations);
    r.tail_average = tail_average, r.average_memory = tail_average_memory, r.rules.averages = tail_average > 0;
    r.rules.bf16_moments = moments == "bf16" || lean(), r.rules.master_weights = !lean(), r.rules.seed = uint64_t(seed);
    r.rules.stage_elements = stage_elements(), r.rules.offload_percent = offload_percent();
    return r;
}

Recomputation RunFlags::recomputation() const {
    if (recompute.starts_with("block:")) return {Recompute::block, std::stol(recompute.substr(6))};
    return recompute == "block" ? Recompute::block : recompute == "norms" ? Recompute::norms : Recompute::none;
}

SampleConfig RunFlags::sample() const {
    return {.num_tokens = sample_tokens, .temperature = temperature, .top_k = top_k, .top_p = top_p};
}

std::vector<std::string> RunFlags::task_files() const {
    std::vector<std::string> files;
    for (size_t begin = 0, end; begin < eval_tasks.size(); begin = end + 1) {
        end = std::min(eval_tasks.find(',', begin), eval_tasks.size());
        files.push_back(eval_tasks.substr(begin, end - begin));
    }
    return files;
}

std::string RunFlags::tokenizer_path() const {
    if (!tokenizer.empty()) return tokenizer;
    const std::string data = evaluates() && !val_data.empty() ? val_data : data_sources(train_data)[0].pattern;
    return std::filesystem::path(data).parent_path() / "tokenizer.json";
}

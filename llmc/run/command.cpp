// See command.h.
#include "llmc/run/command.h"
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include "llmc/base/build_id.h"  // anvil_version, build_id
#include "llmc/base/check.h"     // require, ensure
#include "llmc/io/checkpoint.h"  // checkpoint_path

namespace {

using Names = std::vector<std::string>;

struct CommandInfo {
    Command command;
    const char* name;
    const char* description;
    const char* example;
    Names flags;   // the flags of a run that the command accepts besides its own; empty: all
    Names common;  // the flags that --help shows; empty: all
};

const Names kLaunch = {"launcher", "rank", "world-size", "local-rank", "master", "interface", "comm-timeout"};
const Names kOfAModel = {"model",   "depth",        "num-layers", "num-heads",        "channels",
                         "seq-len", "architecture", "batch-size", "total-batch-size", "steps",
                         "recipe",  "dtype",        "recompute"};
const Names kGenerate = {"resume", "init-from", "out-dir", "tokenizer", "document-token", "seq-len", "device",
                         "dtype",  "attention", "threads", "seed"};

Names operator+(Names a, const Names& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

const std::vector<CommandInfo>& commands() {
    static const std::vector<CommandInfo> all = {
        {Command::train,
         "train",
         "Train a GPT on token shards, which data/tokenize makes from text.",
         "./train_gpt --depth 4 --out-dir run/d4",
         {},
         kOfAModel + Names{"train-data", "val-data", "learning-rate", "out-dir", "resume", "init-from",
                           "checkpoint-every", "val-every", "sample-every", "eval-tasks", "prompt", "device", "dry-run",
                           "seed", "nproc-per-node", "rank", "world-size", "master"}},
        {Command::generate,
         "generate",
         "Continue a text with a trained model; new tokens go to stdout as they come.",
         "./train_gpt generate --resume run/default --prompt \"Once upon a time\"",
         kGenerate + kLaunch,
         {}},
        {Command::chat,
         "chat",
         "Chat with a fine-tuned model; each line of standard input is a message.",
         "./train_gpt chat --resume run/chat",
         kGenerate + Names{"packing"} + kLaunch,
         {}},
        {Command::answer,
         "answer",
         "Answer a program's requests, such as lm-eval's: log-probabilities of texts, and continuations.",
         "./train_gpt answer --resume run/default --requests requests.jsonl",
         kGenerate + Names{"batch-size"} + kLaunch,
         {}},
        {Command::eval,
         "eval",
         "Validate a model and score it on tasks, without training.",
         "./train_gpt eval --resume run/default --eval-tasks hellaswag.tasks",
         Names{"resume",         "init-from",     "out-dir",    "val-data",         "tokenizer",     "packing",
               "document-token", "seq-len",       "batch-size", "total-batch-size", "val-tokens",    "eval-tasks",
               "summary",        "device",        "dtype",      "attention",        "deterministic", "threads",
               "seed",           "virtual-ranks", "io-timeout"} +
             kLaunch,
         {}},
        {Command::plan,
         "plan",
         "Print parameters, memory, communication, and predicted time and cost of a run; needs neither data nor a GPU.",
         "./train_gpt plan --gpu H100 --world-size 64 --model gpt2-1558M --optimizer muon",
         {},
         kOfAModel + Names{"gpu", "world-size", "trace", "memory", "memory-gb", "tflops", "bandwidth", "network",
                           "price", "target-param-data-ratio", "optimizer", "keep"}},
        {Command::export_model,
         "export",
         "Write a model to --out-dir in another program's format, an adapter merged into its base; weights that are "
         "NaN or infinite are refused.",
         "./train_gpt export --resume run/default --format gguf --out-dir model",
         {"resume", "init-from", "out-dir", "dtype"},
         {}},
        {Command::doctor,
         "doctor",
         "Check whether this machine, its libraries, network, disk and data are ready for the run that these flags "
         "describe, and say what to fix; with --rank and --master, on all ranks, measure the links between them, too.",
         "./train_gpt doctor --train-data 'data/mine/train_*.bin'",
         {},
         {"train-data", "val-data", "tokenizer", "out-dir", "resume", "init-from", "device", "dtype", "rank",
          "world-size", "master", "comm-timeout"}},
        {Command::bench_comm,
         "bench-comm",
         "Measure how fast collectives between the ranks are; needs no data.",
         "mpirun -np 8 ./train_gpt bench-comm",
         Names{"device", "dtype", "threads", "overlap", "virtual-ranks", "io-timeout"} + kLaunch +
             Names{"nproc-per-node", "nnodes", "node-rank"},
         {}},
    };
    return all;
}

const CommandInfo& info_of(Command command) {
    for (const CommandInfo& info : commands())
        if (info.command == command) return info;
    ensure(false);
    return commands()[0];
}

const CommandInfo* command_named(const char* name) {
    for (const CommandInfo& info : commands())
        if (!std::strcmp(name, info.name)) return &info;
    return nullptr;
}

bool contains(const Names& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// These fields, and those of sampling, of which `train` takes all but one from a file, as flags.
std::vector<Field> with_sampling(std::vector<Field> all, RunFlags& run) {
    for (Field& field : run.fields())
        if (contains({"sample-tokens", "temperature", "top-k", "top-p"}, field.name))
            field.in_file = "", all.push_back(field);
    return all;
}

// The flags of this command only.
std::vector<Field> own_fields(CommandLine& line) {
    switch (line.run.command) {
        case Command::generate:
            return with_sampling(
                {{"sampling", "prompt", &line.generate.prompt, "text to continue, or @FILE for that of a file"},
                 Field{"sampling", "num-samples", &line.generate.num_samples, "number of continuations"}.from(1, 4096)},
                line.run);
        case Command::chat:
            return with_sampling(
                {{"chat", "message", &line.chat.message, "send this one message, print the answer and exit"},
                 {"chat", "system", &line.chat.system, "system prompt: what the model is told before the conversation"},
                 Field{"chat", "chat-template", &line.chat.chat_template,
                       "how a conversation is written; auto: as the template beside the tokenizer says, or by its "
                       "special tokens"}
                     .one_of({"auto", "nanochat", "chatml", "llama3"})},
                line.run);
        case Command::answer:
            return with_sampling({{"requests", "requests", &line.answer.requests,
                                   "a file of JSON objects, one per line: {\"tokens\": IDS, \"start\": S} asks for the "
                                   "log-probability of the tokens from S on, {\"tokens\": IDS, \"until\": TEXTS} for a "
                                   "continuation"}},
                                 line.run);
        case Command::plan:
            return {
                {"plan", "gpu", &line.plan.gpu,
                 "GPUs to plan for, separated by commas: A100, H100, H200, B200, 4090, 4070, 5090, L40S, PRO 6000, "
                 "MI300X-like"},
                {"plan", "world-size", &line.plan.world_size, "numbers of ranks, one GPU each, separated by commas"},
                {"plan", "fit", &line.plan.fit,
                 "search for the fastest run that fits: micro-batch, recomputation and what else saves memory, unless "
                 "flags say it"},
                {"plan", "trace", &line.plan.trace,
                 "write the predicted step to this file, launch by launch, as JSON for Perfetto, and print a table"},
                {"plan", "calibrate", &line.plan.calibrate,
                 "replace the model's constants by what benchmarks of such a card measured, and print how far off it "
                 "was: rows of dev/bench (--json) or a folder of scripts/gpu_check.sh, or several with commas between "
                 "them"},
                Field{"plan", "memory-gb", &line.plan.memory_gb, "GB per GPU (0, here and below: the value of --gpu)"}
                    .from(0),
                Field{"plan", "tflops", &line.plan.tflops, "peak dense bf16 TFLOP/s per GPU"}.from(0),
                Field{"plan", "bandwidth", &line.plan.bandwidth, "GB/s of collectives inside a server"}.from(0),
                Field{"plan", "network", &line.plan.network, "GB/s per GPU to other servers"}.from(0),
                Field{"plan", "price", &line.plan.usd_per_hour, "USD per GPU-hour"}.from(0)};
        case Command::export_model:
            return {Field{
                "output", "format", &line.exported.format,
                "hf: safetensors for transformers; llmc: llm.c's model.bin; gguf: for llama.cpp; peft: an adapter "
                "alone; the others have it merged into its base"}
                        .one_of({"hf", "llmc", "gguf", "peft"})};
        case Command::bench_comm:
            return {Field{"ranks", "mib", &line.bench_comm.mib, "MiB of the largest buffer"}.from(1, 1 << 14),
                    Field{"ranks", "json", &line.bench_comm.json,
                          "a file to which rank 0 appends a row per collective and size, for `plan --calibrate`"}};
        default:
            return {};
    }
}

// The names of flags in nanochat (scripts/base_train.py), nanoGPT (train.py) and torchrun, where they mean the same.
const std::vector<Alias> kAliases = {
    {"device-batch-size", "batch-size"},
    {"max-seq-len", "seq-len"},
    {"device-type", "device"},
    {"num-iterations", "steps", "auto"},
    {"eval-every", "val-every"},
    {"eval-tokens", "val-tokens"},
    {"save-every", "checkpoint-every", "0"},
    {"resume-from-step", "resume", ""},
    {"warmdown-ratio", "decay-fraction"},
    {"final-lr-frac", "final-lr-fraction"},
    {"fp8", "dtype=fp8"},
    {"lr", "learning-rate"},
    {"max-iters", "steps"},
    {"block-size", "seq-len"},
    {"n-layer", "num-layers"},
    {"n-head", "num-heads"},
    {"n-embd", "channels"},
    {"eval-interval", "val-every"},
    {"log-interval", "print-every"},
    {"warmup-iters", "warmup-steps"},
    {"master-addr", "master"},
};

// Flags of other programs for which there is something else.
struct Foreign {
    const char *name, *instead;
};
constexpr const char* kMeet = "--master HOST:PORT, where rank 0 is";
constexpr const char* kMicroBatches = "--total-batch-size, the tokens of a step on all ranks";
constexpr const char* kWandb = "--log-to wandb";
constexpr const char* kFolder = "--out-dir, the run's folder";
constexpr const char* kNothing = "nothing: leave it out";
constexpr Foreign kForeign[] = {
    // torchrun's
    {"standalone", "nothing: --nproc-per-node is of one host unless --nnodes says more"},
    {"master-port", kMeet},
    {"rdzv-backend", kMeet},
    {"rdzv-endpoint", kMeet},
    {"rdzv-id", kMeet},
    {"backend", "nothing: NCCL on GPUs, shared memory and TCP on CPUs"},
    // nanochat's and nanoGPT's
    {"grad-accum", kMicroBatches},
    {"grad-accum-steps", kMicroBatches},
    {"gradient-accumulation-steps", kMicroBatches},
    {"run", kWandb},
    {"wandb-log", kWandb},
    {"wandb-project", kWandb},
    {"wandb-run-name", kWandb},
    {"model-tag", kFolder},
    {"matrix-lr", "--muon-learning-rate"},
    {"embedding-lr", "embedding-learning-rate in a file for --recipe"},
    {"unembedding-lr", "unembedding-learning-rate in a file for --recipe"},
    {"scalar-lr", "scalar-learning-rate in a file for --recipe"},
    {"head-dim", "head-size, with --depth, or head-channels, in a file for --model"},
    {"fp8-recipe", "--dtype fp8, and --fp8-scaling"},
    {"core-metric-every", "--eval-tasks-every, and --eval-tasks"},
    {"eval-iters", "--val-tokens"},
    {"min-lr", "--final-lr-fraction, a part of the peak"},
    {"lr-decay-iters", "nothing: schedules end with --steps"},
    {"decay-lr", "--lr-schedule"},
    {"compile", kNothing},
    {"always-save-checkpoint", "nothing: all are saved; --save-best keeps the best as well"},
    {"bias", "--architecture, or biases in a file for --model"},
    {"dataset", "--train-data"},
    {"data-dir", "--train-data"},
    // llm.c's
    {"-i", "--train-data"},
    {"-j", "--val-data"},
    {"-e", "--model or --depth; --init-from for weights"},
    {"-o", "--out-dir"},
    {"-n", "--checkpoint-every"},
    {"-y", "--resume auto"},
    {"-b", "--batch-size"},
    {"-t", "--seq-len"},
    {"-d", "--total-batch-size"},
    {"-x", "--steps"},
    {"-l", "--learning-rate"},
    {"-u", "--warmup-steps"},
    {"-q", "--final-lr-fraction"},
    {"-c", "--weight-decay"},
    {"-v", "--val-every"},
    {"-m", "--val-tokens"},
    {"-s", "--sample-every"},
    {"-g", "--sample-tokens"},
    {"-z", "--zero-stage"},
    {"-r", "--recompute"},
};

// Former flags, and what is there instead.
struct OldFlag {
    const char *name, *now;
};
constexpr const char* kNoLocal = "gone: leave it out, and lower --checkpoint-every to lose fewer steps";
constexpr OldFlag kOldFlags[] = {
    {"generate", "a command: ./train_gpt generate --prompt TEXT"},
    {"eval-only", "a command: ./train_gpt eval"},
    {"plan", "a command: ./train_gpt plan"},
    {"plan-gpu", "--gpu of ./train_gpt plan"},
    {"plan-memory", "--memory-gb of ./train_gpt plan"},
    {"plan-tflops", "--tflops of ./train_gpt plan"},
    {"plan-mfu", "predicted by ./train_gpt plan itself"},
    {"mfu", "predicted by ./train_gpt plan itself"},
    {"plan-bandwidth", "--bandwidth of ./train_gpt plan"},
    {"plan-network", "--network of ./train_gpt plan"},
    {"plan-price", "--price of ./train_gpt plan"},
    {"export", "a command: ./train_gpt export --format FORMAT"},
    {"doctor", "a command: ./train_gpt doctor"},
    {"bench-comm", "a command: ./train_gpt bench-comm"},
    {"bench-comm-mib", "--mib of ./train_gpt bench-comm"},
    {"tensorboard", "--log-to tensorboard, or wandb,tensorboard for both"},
    {"checkpoint-local", kNoLocal},
    {"local-every", kNoLocal},
    {"dependent-launch", "gone: leave it out"},
    {"grad-comm", "--grad-sum, with bf16 or fp32"},
    {"reduce", "--grad-sum, with ordered or bf16-ordered for all-to-all"},
    {"sum-order", "--grad-sum, with tree"},
};

// Why this command does not have the flag; "": no command has it.
std::string why_unknown(Command asked, std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    for (const Foreign& other : kForeign)
        if (name == other.name)
            return format("%s%s is no flag of Anvil's; instead: %s", name[0] == '-' ? "" : "--", other.name,
                          other.instead);
    for (const OldFlag& old : kOldFlags)
        if (name == old.name) return format("--%s is now %s", old.name, old.now);
    std::string flag_of, line_of;
    for (const CommandInfo& info : commands()) {
        CommandLine other;
        other.run.command = info.command;
        for (const Field& field : other.fields())
            if (name == field.name || name == std::string("no-") + field.name) {
                std::string& others = field.is_flag() ? flag_of : line_of;
                others += (others.empty() ? "" : ", ") + std::string(info.name);
            }
    }
    if (flag_of.empty() && line_of.empty()) return "";
    const char* const here = info_of(asked).name;
    return format("--%s is no flag of `%s`, but %s: %s; see ./train_gpt %s --help", name.c_str(), here,
                  flag_of.empty() ? "a line of a file for" : "of", (flag_of.empty() ? line_of : flag_of).c_str(), here);
}

std::string description_of(const CommandInfo& info) {
    std::string text = std::string(info.description) + "\n\n  " + info.example;
    if (info.command != Command::train) return text;
    text += "\n\ncommands, each with its own --help (--version prints the version and commit):";
    for (const CommandInfo& other : commands())
        text += format("\n  %-12s%s", other.name, in_brief(other.description, 66).c_str());
    return text;
}

std::string exit_codes() {
    return "\n## Exit codes\n\n"
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

}  // namespace

std::vector<Field> CommandLine::fields() {
    const CommandInfo& info = info_of(run.command);
    std::vector<Field> all = own_fields(*this);
    Names own;
    for (const Field& field : all) own.push_back(field.name);
    for (const Field& field : run.fields())
        if ((info.flags.empty() || contains(info.flags, field.name)) && !contains(own, field.name))
            all.push_back(field);
    return all;
}

std::vector<std::pair<std::string, std::string>> CommandLine::shared_flags() const {
    CommandLine copy = *this;
    std::vector<std::pair<std::string, std::string>> all = {{"the command", info_of(run.command).name}};
    for (const Field& field : copy.fields())
        if (!is_of_one_process(field)) all.push_back({std::string("--") + field.name, text_of(field)});
    // Paths may differ between hosts, but either all ranks resume or none.
    const std::string& resume = run.resume;
    all.push_back({"--resume", resume.empty() || resume == "auto" ? resume : "a folder"});
    return all;
}

void note_given(RunFlags& flags, const Flags& given) {
    for (const Field& field : flags.fields())
        if (const auto found = given.given.find(field.name); found != given.given.end())
            flags.sources[field.name] = found->second.file.empty() ? "the command line" : found->second.file;
}

CommandLine parse_command_line(int argc, const char* const* argv) {
    CommandLine line;
    std::vector<const char*> arguments(argv, argv + argc);
    if (argc > 1 && argv[1][0] != '-') {
        const CommandInfo* const found = command_named(argv[1]);
        std::string names;
        for (const CommandInfo& info : commands()) names += (names.empty() ? "" : ", ") + std::string(info.name);
        require(found, "unexpected argument '%s': expected a command (%s) or --flag value pairs; see --help", argv[1],
                names.c_str());
        line.run.command = found->command;
        arguments.erase(arguments.begin() + 1);
    } else {
        for (int i = 3; i < argc; i++)
            require(argv[i - 1][0] == '-' || !command_named(argv[i]), "'%s' comes first: ./train_gpt %s --flag value",
                    argv[i], argv[i]);
    }
    const CommandInfo& info = info_of(line.run.command);
    const bool is_train = info.command == Command::train;
    line.given = parse_flags(line.fields(), int(arguments.size()), arguments.data(),
                             {.description = description_of(info),
                              .usage = std::string(is_train ? "[COMMAND]" : info.name) + " [--flag value]...",
                              .common = info.common,
                              .explain = [&](const std::string& name) { return why_unknown(info.command, name); },
                              .aliases = kAliases,
                              .by_new_names = by_new_names});
    line.is_done = line.given.help;
    // A number is a step of the run in --out-dir.
    std::string& resume = line.run.resume;
    std::error_code ignored;
    if (!resume.empty() && resume.find_first_not_of("0123456789") == std::string::npos && resume.size() < 10 &&
        !std::filesystem::exists(resume, ignored))
        line.given.given["resume"].text = resume = checkpoint_path(line.run.out_dir, std::stol(resume));
    if (is_train && line.run.launch.supervise && resume.empty()) resume = "auto";
    require(line.run.before_resume.empty() || resume == "auto",
            "--before-resume brings the newest checkpoint of a run for --resume auto, and --resume is '%s': give "
            "--resume auto, or leave --before-resume out",
            resume.c_str());
    note_given(line.run, line.given);
    // With the user's own training data, tiny Shakespeare is not a validation set.
    if (line.given.has("train-data") && !line.given.has("val-data")) line.run.val_data.clear();
    return line;
}

CommandLine read_command_line(int argc, const char* const* argv) {
    constexpr double kMeetingS = 10;  // how long to wait for the other ranks if this one cannot read its flags
    CommandLine line;
    const std::string only = argc == 2 ? argv[1] : "";
    line.is_done = only == "--help-markdown" || only == "--version";
    if (only == "--help-markdown") std::printf("%s", flags_document().c_str());
    if (only == "--version") std::printf("train_gpt %s (build %s)\n", anvil_version(), build_id());
    if (line.is_done) return line;
    try {
        return parse_command_line(argc, argv);
    } catch (const Error&) {
        for (int i = 1; i < argc; i++)
            for (const char* flag :
                 {"--rank", "--world-size", "--master", "--launcher", "--virtual-ranks", "--nproc-per-node"})
                if (std::string(argv[i]).starts_with(flag)) throw;
        line.error = std::current_exception();
        line.run.comm_timeout_s = kMeetingS;
        return line;
    }
}

std::string flags_document() {
    std::string text =
        "# Flags of train_gpt\n\n"
        "Made by `./train_gpt --help-markdown`; `make test` checks that it is up to date. The same names work in a "
        "file given\n"
        "with `--config FILE` (`batch-size = 8`, or a checkpoint's `train_config.json`); the command line wins, and of "
        "a flag given\n"
        "twice the last one. With `--resume`, flags that are not given keep the values of the run that is resumed. "
        "`--help` shows a\n"
        "command's most used flags, `--help-all` all of them. Underscores are accepted for dashes, and nanochat's and "
        "nanoGPT's\n"
        "names for flags that mean the same (`--device-batch-size`, `--max_iters`).\n\n"
        "What is rarely changed is no flag, but a line of a file, as in `configs/`: of `--model FILE`, beside flags of "
        "section model,\n"
        "of `--recipe FILE`, beside those of optimizer, or of `--config`. Flags override `--config`, and both the "
        "other files.\n";
    for (const CommandInfo& info : commands()) {
        CommandLine line;
        line.run.command = info.command;
        text += format("\n## %s\n\n%s\n\n    %s\n", info.name, info.description, info.example);
        const bool has_own = info.command == Command::train;
        const std::vector<Field> all = line.fields(), own = has_own ? all : own_fields(line);
        if (!own.empty()) text += "\n" + markdown_table(own);
        if (has_own) continue;
        std::string others;
        for (const std::string& name : info.flags)
            if (field_named(all, name, name).is_flag()) others += (others.empty() ? "`--" : ", `--") + name + "`";
        text += own.empty() ? "\nFlags of `train`: " : "\nAnd of `train`'s flags: ";
        text += (others.empty() ? "all" : others) + ".\n";
    }
    text += "\n## Recipes\n";
    for (const std::string& name : recipe_names()) text += "\n### " + name + "\n\n" + find_recipe(name).table(true);
    return text + exit_codes();
}

/*
Trains a GPT. One optimizer step:

  tokens (B,T) -> forward -> loss -> backward (gradients +=) [x gradient accumulation] -> norm -> clip -> AdamW

Files in reading order: this one, llmc/model/gpt.h, llmc/cpu/layernorm.h (an op), llmc/train/checkpointing.h.
The map of the house is doc/design.md; what can be asked is in llmc/train/config.cpp and doc/flags.md.
*/
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include "llmc/base/build_id.h"        // build_id
#include "llmc/base/log.h"             // RunLog
#include "llmc/cpu/ops.h"              // the device Cpu
#include "llmc/data/loader.h"          // DataLoader
#include "llmc/data/tokenizer.h"       // Tokenizer
#include "llmc/eval/loss.h"            // evaluate
#include "llmc/eval/sample.h"          // sample
#include "llmc/model/gpt.h"            // Gpt
#include "llmc/optim/adamw.h"          // AdamW
#include "llmc/optim/clip.h"           // gradient_norm, clip_scale
#include "llmc/train/checkpointing.h"  // save_run, load_run
#include "llmc/train/config.h"         // TrainConfig
#include "llmc/train/stop.h"           // stop_signal

namespace {

constexpr int64_t kMostSkippedInARow = 10;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool due(int64_t step, int64_t every) { return every > 0 && step > 0 && step % every == 0; }

// Where a run starts: from nothing, or from a checkpoint whose flags it takes over.
struct Start {
    TrainConfig config;
    FoundCheckpoint from;  // from.path is empty for a new run
};

Start find_start(int argc, char** argv) {
    const char* description =
        "Trains a GPT on token shards (data/prepare makes them). Examples: README.md; all flags: doc/flags.md.";
    Start start;
    const Flags flags = parse_flags(start.config.fields(), argc, argv, description);
    if (flags.help) throw Error(kExitOk, "");
    const std::string asked = start.config.resume;
    if (asked.empty()) {
        const std::vector<int64_t> steps = checkpoint_steps(start.config.out_dir);
        require(steps.empty(),
                "%s holds checkpoints of a run: continue it with --resume auto, or give another --out-dir",
                start.config.out_dir.c_str());
        return start;
    }
    const std::string where = asked == "auto" ? start.config.out_dir : asked;
    start.from = find_checkpoint(where);
    for (const PassedOver& other : start.from.passed_over)
        std::fprintf(stderr, "warning: passed over %s: %s\n", other.path.c_str(), other.why.c_str());
    if (start.from.path.empty()) {
        require(asked == "auto" && start.from.passed_over.empty(), "--resume %s: no checkpoint there that verifies%s",
                asked.c_str(), asked == "auto" ? "; remove the damaged ones to start anew" : "");
        return start;
    }
    TrainConfig config;  // the run's flags, then this command line's
    const std::string stored = start.from.path + "/train_config.json";
    from_json(config.fields(), read_file(stored), stored);
    parse_flags(config.fields(), argc, argv, description);
    if (!flags.has("out-dir") && asked != "auto") config.out_dir = std::filesystem::path(start.from.path).parent_path();
    start.config = config;
    return start;
}

GptShape find_shape(const Start& start, const std::optional<Tokenizer>& tokenizer) {
    if (start.from.path.empty()) return start.config.model.shape(tokenizer ? tokenizer->vocab_size() : 0);
    const GptShape stored = checkpoint_shape(start.from.path);
    ModelConfig asked = start.config.model;
    if (!asked.vocab_size) asked.vocab_size = int(stored.vocab_size);
    const GptShape shape = asked.shape(tokenizer ? tokenizer->vocab_size() : 0);
    require(asked.seq_len <= stored.max_seq_len, "--seq-len %d is above the %lld positions of the model in %s",
            asked.seq_len, static_cast<long long>(stored.max_seq_len), start.from.path.c_str());
    GptShape same_positions = shape;
    same_positions.max_seq_len = stored.max_seq_len;  // a model may go on with shorter sequences
    require(same_positions == stored,
            "%s is of another model: %lld layers, %lld heads, %lld channels, vocabulary %lld; the flags ask for %lld, "
            "%lld, %lld, %lld",
            start.from.path.c_str(), static_cast<long long>(stored.num_layers),
            static_cast<long long>(stored.num_heads), static_cast<long long>(stored.channels),
            static_cast<long long>(stored.vocab_size), static_cast<long long>(shape.num_layers),
            static_cast<long long>(shape.num_heads), static_cast<long long>(shape.channels),
            static_cast<long long>(shape.vocab_size));
    return stored;
}

template <class Device>
void train(Device& device, const Start& start) {
    // What was asked, and what we learn from
    const TrainConfig& config = start.config;
    config.validate();
    std::optional<Tokenizer> tokenizer;
    std::string tokenizer_json;
    if (!config.tokenizer.empty() || std::filesystem::exists(config.tokenizer_path())) {
        tokenizer = load_tokenizer(config.tokenizer_path());
        tokenizer_json = read_file(config.tokenizer_path());
    }
    const GptShape shape = find_shape(start, tokenizer);
    const int64_t B = config.batch_size, T = config.seq_len(shape), accumulation = config.grad_accumulation(T);
    LoaderConfig loader{.pattern = config.train_data,
                        .batch_size = int(B),
                        .seq_len = int(T),
                        .shuffle = config.shuffle,
                        .seed = config.seed,
                        .vocab_size = int(shape.vocab_size)};
    DataLoader train_data(loader);
    std::optional<DataLoader> val_data;
    loader.pattern = config.val_data;
    loader.shuffle = false;
    if (!config.val_data.empty()) val_data.emplace(loader);
    std::vector<int32_t> prompt;
    if (tokenizer && config.sample_tokens > 0) {
        prompt = tokenizer->encode(config.prompt, "--prompt");
        require(!prompt.empty(), "--prompt is empty: a sample needs something to begin with, or --sample-tokens 0");
    }

    // What we learn, and where we start
    Gpt<Device> model(device, shape, B, T);
    AdamW<Device> adamw(device, model.parameters, config.adamw);
    RunState state;
    state.sampling_rng = Rng(config.seed, Stream::sampling).state;
    if (start.from.path.empty()) {
        model.initialize_weights(config.seed);
    } else {
        state = load_run(start.from.path, model, adamw);
        train_data.restore({state.epoch, state.position});
    }
    const int64_t first_step = state.step, tokens_per_step = B * T * accumulation;
    const Schedule schedule = config.schedule();

    TrainConfig shown = config;
    std::printf("%s", config_table(shown.fields()).c_str());
    std::printf(
        "\nmodel: %.2fM parameters; batch: %lld x %lld tokens x %lld micro-batches = %lld; data: %s tokens; threads: "
        "%d\n",
        double(model.parameters.num_parameters) * 1e-6, static_cast<long long>(B), static_cast<long long>(T),
        static_cast<long long>(accumulation), static_cast<long long>(tokens_per_step),
        count_text(double(train_data.num_tokens())).c_str(), device.num_threads);
    RunLog::Options log_options{.steps = config.steps, .print_every = config.print_every};
    if (config.time_budget_s > 0) log_options.time_budget_s = std::max(0.0, config.time_budget_s - state.training_s);
    const bool resumed = !start.from.path.empty();
    RunLog log(config.out_dir, resumed ? RunLog::Mode::resume : RunLog::Mode::fresh, log_options);
    const std::string data_hash = hex64(train_data.data_hash());
    if (resumed) {
        std::vector<std::string> passed_over;
        for (const PassedOver& other : start.from.passed_over) passed_over.push_back(other.path + ": " + other.why);
        log.resume(to_json(shown.fields()), device.num_threads, data_hash, state.step, start.from.path, passed_over);
    } else {
        log.start(to_json(shown.fields()), device.num_threads, data_hash);
    }

    // The loop. Looking at the model comes before the step, so that the first and the last state are seen as well.
    for (;; state.step++) {
        const char* signal = stop_signal();
        const bool out_of_time = config.time_budget_s > 0 && state.training_s >= config.time_budget_s;
        const bool last = state.step >= config.steps || out_of_time;
        const bool seen = resumed && state.step == first_step && !last;  // by the run that is continued
        if (val_data && !signal && (last || (due(state.step, config.val_every) && !seen))) {
            const double loss = evaluate(model, *val_data, B, T, config.val_tokens);
            state.best_val_loss = std::min(state.best_val_loss, loss);
            log.validation(state.step, loss);
        }
        if (!prompt.empty() && !signal && (last || (due(state.step, config.sample_every) && !seen))) {
            Rng rng(0, Stream::sampling);
            rng.state = state.sampling_rng;
            const SampleConfig how{
                .num_tokens = config.sample_tokens, .temperature = config.temperature, .top_k = config.top_k};
            log.sample(state.step, config.prompt, tokenizer->decode(sample(model, prompt, T, how, rng)));
            state.sampling_rng = rng.state;
        }
        if ((last || signal || due(state.step, config.checkpoint_every)) && !(resumed && state.step == first_step)) {
            const double begin = now_s();
            state.epoch = train_data.state().epoch;
            state.position = train_data.state().position;
            const std::string path = save_run(config.out_dir, config, state, tokenizer_json, model, adamw);
            prune(config.out_dir, config.keep);
            log.checkpoint(state.step, path, (now_s() - begin) * 1e3);
        }
        if (last || signal) {
            log.end(state.step, signal ? signal : out_of_time ? "time budget" : "finished");
            return;
        }

        const double begin = now_s();
        model.zero_gradients();
        double loss = 0;
        for (int64_t micro = 0; micro < accumulation; micro++) {
            const Batch& batch = train_data.next();
            model.forward(batch.tokens.data(), B, T);
            loss += model.loss_and_gradient(batch.targets.data(), float(1 / double(tokens_per_step))) /
                    double(accumulation);
            model.backward(batch.tokens.data());
        }
        const double norm = gradient_norm(device, model.gradients), rate = learning_rate(schedule, state.step);
        const bool finite = std::isfinite(loss) && std::isfinite(norm);
        if (finite) {
            adamw.step(model.weights, model.gradients, rate, clip_scale(norm, config.grad_clip), ++state.updates);
            state.skipped_in_a_row = 0;
        } else {
            log.skip(state.step + 1, loss, norm, "not finite");
            if (++state.skipped_in_a_row >= kMostSkippedInARow)
                throw Error(
                    kExitDiverged,
                    format("the loss or the gradients were not finite in %lld steps in a row, up to step %lld: lower "
                           "--learning-rate or --grad-clip and resume from a checkpoint before it",
                           static_cast<long long>(kMostSkippedInARow), static_cast<long long>(state.step + 1)));
        }
        const double step_s = now_s() - begin;
        state.training_s += step_s;
        state.tokens += tokens_per_step;
        log.step({.step = state.step + 1,
                  .loss = loss,
                  .norm = norm,
                  .lr = rate,
                  .ms = step_s * 1e3,
                  .tokens = tokens_per_step});
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        if (argc == 2 && !std::strcmp(argv[1], "--help-markdown")) {
            std::printf("%s", flags_document().c_str());
            return kExitOk;
        }
        if (argc == 2 && !std::strcmp(argv[1], "--version")) {
            std::printf("train_gpt %s\n", build_id());
            return kExitOk;
        }
        const Start start = find_start(argc, argv);
        catch_stop_signals();
        Cpu cpu(start.config.threads);
        train(cpu, start);
        return kExitOk;
    } catch (const Error& error) {
        std::fflush(stdout);
        if (error.exit_code != kExitOk) std::fprintf(stderr, "error: %s\n", error.what());
        return error.exit_code;
    } catch (const std::exception& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "error: %s\n", error.what());
        return kExitInternal;
    }
}

/*
Trains a GPT. One optimizer step:

  tokens (B,T) -> forward -> loss -> backward (gradients +=) [x gradient accumulation] -> norm -> clip -> AdamW

Files in reading order: this one, llmc/model/gpt.h, llmc/cpu/layernorm.h (an op), llmc/train/checkpointing.h.
The map of the house is doc/design.md; what can be asked is in llmc/train/config.cpp and doc/flags.md.
*/
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include "llmc/base/build_id.h"        // build_id
#include "llmc/base/hash.h"            // hex64
#include "llmc/base/log.h"             // RunLog
#include "llmc/cpu/ops.h"              // the device Cpu
#include "llmc/cpu/waiting.h"          // wait_briefly
#include "llmc/data/loader.h"          // DataLoader
#include "llmc/data/tokenizer.h"       // Tokenizer
#include "llmc/eval/loss.h"            // evaluate
#include "llmc/eval/sample.h"          // sample
#include "llmc/model/gpt.h"            // Gpt
#include "llmc/optim/optimizer.h"      // AdamW
#include "llmc/optim/schedule.h"       // learning_rate
#include "llmc/train/checkpointing.h"  // save_run, load_run
#include "llmc/train/config.h"         // TrainConfig
#include "llmc/train/start.h"          // find_start, find_shape
#include "llmc/train/step.h"           // train_step
#include "llmc/train/stop.h"           // stop_signal

namespace {

constexpr int64_t kMostSkippedInARow = 10;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool due(int64_t step, int64_t every) { return every > 0 && step > 0 && step % every == 0; }

RunLog open_log(const Start& start, const RunState& state, int threads, uint64_t data_hash) {
    TrainConfig config = start.config;
    RunLog::Options options{.steps = config.steps, .print_every = config.print_every};
    if (config.time_budget_s > 0) options.time_budget_s = std::max(0.0, config.time_budget_s - state.training_s);
    RunLog log(config.out_dir, start.resumed() ? RunLog::Mode::resume : RunLog::Mode::fresh, options);
    std::printf("%s\n", config_table(config.fields()).c_str());
    std::vector<std::string> passed_over;
    for (const PassedOver& other : start.from.passed_over) passed_over.push_back(other.path + ": " + other.why);
    if (start.resumed())
        log.resume(to_json(config.fields()), threads, hex64(data_hash), state.step, start.from.path, passed_over);
    else
        log.start(to_json(config.fields()), threads, hex64(data_hash));
    return log;
}

template <class Device>
void train(Device& device, const Start& start) {
    const TrainConfig& config = start.config;

    // What we learn from. That it is there comes first: without it there is no tokenizer beside it either.
    open_shards(config.train_data);
    std::optional<Tokenizer> tokenizer;
    std::string tokenizer_json;
    if (!config.tokenizer.empty() || std::filesystem::exists(config.tokenizer_path())) {
        tokenizer = load_tokenizer(config.tokenizer_path());
        tokenizer_json = read_file(config.tokenizer_path());
    }
    const GptShape shape = find_shape(start, tokenizer ? tokenizer->vocab_size() : 0);
    const int64_t B = config.batch_size, T = config.seq_len(shape);
    const StepConfig how{B, T, config.grad_accumulation(T), config.grad_clip};
    LoaderConfig loader{.pattern = config.train_data,
                        .batch_size = int(B),
                        .seq_len = int(T),
                        .shuffle = config.shuffle,
                        .seed = config.seed,
                        .vocab_size = int(shape.vocab_size)};
    DataLoader train_data(loader);
    loader.pattern = config.val_data, loader.shuffle = false;
    std::optional<DataLoader> val_data;
    if (!config.val_data.empty()) val_data.emplace(loader);
    std::vector<int32_t> prompt;
    if (tokenizer && config.sample_tokens > 0) prompt = tokenizer->encode(config.prompt, "--prompt");

    // What we learn, and where we start
    Gpt<Device> model(device, shape, B, T);
    AdamW<Device> adamw(device, model.parameters, config.adamw);
    const Schedule schedule = config.schedule();
    const uint64_t key = data_key(config, train_data.data_hash(), T);
    RunState state;
    if (start.resumed()) {
        state = load_run(start.from.path, model, adamw);
        if (state.data_key == key)
            train_data.restore({state.epoch, state.position});
        else
            std::fprintf(stderr,
                         "warning: not the data, --seq-len, --shuffle or --seed that %s was trained with: reading the "
                         "data from their start\n",
                         start.from.path.c_str());
    } else {
        model.initialize_weights(config.seed);
    }
    const int64_t first_step = state.step;
    RunLog log = open_log(start, state, device.num_threads, train_data.data_hash());
    std::printf("model: %.2fM parameters, %.1f MFLOP a token; batch: %ld x %ld tokens x %ld micro-batches = %ld\n",
                double(model.parameters.num_parameters) * 1e-6, model.flops_per_token(T) * 1e-6, B, T, how.accumulation,
                how.num_tokens());
    std::printf("data: %s tokens; threads: %d\n", count_text(double(train_data.num_tokens())).c_str(),
                device.num_threads);

    const auto validate = [&] { log.validation(state.step, evaluate(model, *val_data, B, T, config.val_tokens)); };
    const auto show_sample = [&] {
        Rng rng(mix64(config.seed) + uint64_t(state.step), Stream::sampling);  // the same after any interruption
        const std::vector<int32_t> tokens = sample(model, prompt, T, config.sample(), rng);
        log.sample(state.step, config.prompt, tokenizer->decode(tokens));
    };
    const auto save = [&] {
        const double begin = now_s();
        state.data_key = key;
        state.epoch = train_data.state().epoch;
        state.position = train_data.state().position;
        const std::string path = save_run(config.out_dir, config, state, tokenizer_json, model, adamw);
        prune(config.out_dir, config.keep);
        log.checkpoint(state.step, path, (now_s() - begin) * 1e3);
    };

    // The loop. Looking at the model comes before the step, so that the last state is seen as well. After a resume it
    // is looked at again, because a run that was told to stop did not wait for that.
    for (;; state.step++) {
        const char* signal = stop_signal();
        const bool out_of_time = config.time_budget_s > 0 && state.training_s >= config.time_budget_s;
        const bool last = state.step >= config.steps || out_of_time;
        const auto now = [&](int64_t every) { return last || due(state.step, every); };
        if (val_data && !signal && now(config.val_every)) validate();
        if (!prompt.empty() && !signal && now(config.sample_every)) show_sample();
        // While steps are skipped, the weights may be ruined: the checkpoints from before must not be pruned for them.
        const bool good = state.skipped_in_a_row == 0;
        const bool saved =
            state.step == first_step && std::filesystem::exists(checkpoint_path(config.out_dir, state.step));
        if (!saved && (signal || last || (good && due(state.step, config.checkpoint_every)))) save();
        if (last || signal) {
            log.end(state.step, signal ? signal : out_of_time ? "time budget" : "finished");
            return;
        }

        const double begin = now_s(), rate = learning_rate(schedule, state.step);
        const StepResult step = train_step(model, adamw, train_data, how, rate, state.updates + 1);
        const double step_s = now_s() - begin;
        state.training_s += step_s;
        state.tokens += how.num_tokens();
        log.step({.step = state.step + 1,
                  .loss = step.loss,
                  .norm = step.norm,
                  .lr = rate,
                  .ms = step_s * 1e3,
                  .tokens = how.num_tokens()});
        state.updates += step.applied;
        state.skipped_in_a_row = step.applied ? 0 : state.skipped_in_a_row + 1;
        if (!step.applied) log.skip(state.step + 1, step.loss, step.norm, "not finite");
        if (state.skipped_in_a_row >= kMostSkippedInARow)
            throw Error(kExitDiverged,
                        format("the loss or the gradient was not finite in %ld steps in a row, up to step %ld: resume "
                               "from an earlier checkpoint with a lower --learning-rate or a --grad-clip",
                               kMostSkippedInARow, state.step + 1));
    }
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
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
        if (start.help) return kExitOk;
        catch_stop_signals();
        Cpu cpu(start.config.threads);
        train(cpu, start);
        return kExitOk;
    } catch (const std::exception& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "error: %s\n", error.what());
        const Error* ours = dynamic_cast<const Error*>(&error);
        const bool of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error);  // a folder not readable
        return ours ? ours->exit_code : of_files ? kExitUsage : kExitInternal;
    }
}

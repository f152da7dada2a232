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
#include "llmc/train/devices.h"        // on_device
#include "llmc/train/memory_plan.h"    // memory_plan, check_fits
#include "llmc/train/start.h"          // find_start, find_shape
#include "llmc/train/step.h"           // Stepper
#include "llmc/train/stop.h"           // stop_signal

namespace {

constexpr int64_t kMostSkippedInARow = 10;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool due(int64_t step, int64_t every) { return every > 0 && step > 0 && step % every == 0; }

RunLog open_log(const Start& start, const RunState& state, const std::string& device, uint64_t data_hash) {
    TrainConfig config = start.config;
    RunLog::Options options{.steps = config.steps, .print_every = config.print_every};
    if (config.time_budget_s > 0) options.time_budget_s = std::max(0.0, config.time_budget_s - state.training_s);
    RunLog log(config.out_dir, start.resumed() ? RunLog::Mode::resume : RunLog::Mode::fresh, options);
    std::printf("%s\n", config_table(config.fields()).c_str());
    std::vector<std::string> passed_over;
    for (const PassedOver& other : start.from.passed_over) passed_over.push_back(other.path + ": " + other.why);
    if (start.resumed())
        log.resume(to_json(config.fields()), device, hex64(data_hash), state.step, start.from.path, passed_over);
    else
        log.start(to_json(config.fields()), device, hex64(data_hash));
    return log;
}

template <class T, class Device>
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
    const int64_t B = config.batch_size, seq_len = config.seq_len(shape);
    const StepConfig how{B, seq_len, config.grad_accumulation(seq_len), config.grad_clip};
    const auto plan = [&](int64_t batch_size, Recompute recompute) {
        return memory_plan<T>(shape, batch_size, seq_len, recompute,
                              workspace_bytes<T>(device, shape, batch_size, seq_len));
    };
    if (config.dry_run) {
        std::printf("%s\n", plan(B, config.recompute_mode()).table(free_memory(device)).c_str());
        return;
    }
    check_fits(B, config.recompute_mode(), free_memory(device), plan);
    LoaderConfig loader{.pattern = config.train_data,
                        .batch_size = int(B),
                        .seq_len = int(seq_len),
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
    device.reserve_workspace(workspace_bytes<T>(device, shape, B, seq_len));
    Gpt<Device, T> model(device, shape, B, seq_len, config.recompute_mode());
    AdamW<Device, T> adamw(device, model.parameters, config.adamw);
    const Schedule schedule = config.schedule();
    const uint64_t key = data_key(config, train_data.data_hash(), seq_len);
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
        model.initialize_weights(config.seed,
                                 [&](const Parameter& p, const float* values) { adamw.set_master(p, values); });
    }
    Stepper<Device, T> stepper(model, adamw, how, state.updates);
    const int64_t first_step = state.step;
    RunLog log = open_log(start, state, describe(device), train_data.data_hash());
    std::printf("model: %.2fM parameters, %.1f MFLOP a token; batch: %ld x %ld tokens x %ld micro-batches = %ld\n",
                double(model.parameters.num_parameters) * 1e-6, model.flops_per_token(seq_len) * 1e-6, B, seq_len,
                how.accumulation, how.num_tokens());
    std::printf("data: %s tokens; device: %s\n", count_text(double(train_data.num_tokens())).c_str(),
                describe(device).c_str());

    const auto validate = [&] {
        log.validation(state.step, evaluate(model, *val_data, B, seq_len, config.val_tokens));
    };
    const auto show_sample = [&] {
        Rng rng(mix64(config.seed) + uint64_t(state.step), Stream::sampling);  // the same after any interruption
        const std::vector<int32_t> tokens = sample(model, prompt, seq_len, config.sample(), rng);
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

    // A finished step's result, which comes back while the next one is under way.
    double last_s = now_s();
    const auto finish_step = [&] {
        const StepResult step = stepper.finish();
        const double finished_s = now_s(), step_s = finished_s - last_s;
        last_s = finished_s;
        state.training_s += step_s;
        state.tokens += how.num_tokens();
        log.step({.step = state.step + 1,
                  .loss = step.loss,
                  .norm = step.norm,
                  .lr = learning_rate(schedule, state.step),
                  .ms = step_s * 1e3,
                  .tokens = how.num_tokens()});
        state.updates = step.updates;
        state.skipped_in_a_row = step.applied ? 0 : state.skipped_in_a_row + 1;
        state.step++;
        if (!step.applied) log.skip(state.step, step.loss, step.norm, "not finite");
        if (state.skipped_in_a_row >= kMostSkippedInARow)
            throw Error(kExitDiverged,
                        format("the loss or the gradient was not finite in %ld steps in a row, up to step %ld: resume "
                               "from an earlier checkpoint with a lower --learning-rate or a --grad-clip",
                               kMostSkippedInARow, state.step));
    };

    // The loop. Looking at the model comes before the step, so that the last state is seen as well. After a resume it
    // is looked at again, because a run that was told to stop did not wait for that.
    for (;;) {
        const int64_t next = state.step + stepper.under_way();  // the step to start
        const char* signal = stop_signal();
        const auto out_of_time = [&] { return config.time_budget_s > 0 && state.training_s >= config.time_budget_s; };
        const auto is_due = [&](int64_t every) { return next >= config.steps || due(next, every); };
        const bool look = (val_data && is_due(config.val_every)) || (!prompt.empty() && is_due(config.sample_every)) ||
                          is_due(config.checkpoint_every);
        // Whoever looks at the state sees that of a step which is over, and so does the clock.
        if (look || signal || out_of_time())
            while (stepper.under_way() > 0) finish_step();
        const bool idle = stepper.under_way() == 0;
        const bool last = idle && (state.step >= config.steps || out_of_time());
        const auto now = [&](int64_t every) { return idle && (last || due(state.step, every)); };
        if (val_data && !signal && now(config.val_every)) validate();
        if (!prompt.empty() && !signal && now(config.sample_every)) show_sample();
        // While steps are skipped, the weights may be ruined: the checkpoints from before must not be pruned for them.
        const bool good = state.skipped_in_a_row == 0;
        const bool saved =
            state.step == first_step && std::filesystem::exists(checkpoint_path(config.out_dir, state.step));
        if (!saved && idle && (signal || last || (good && now(config.checkpoint_every)))) save();
        if (last || signal) {
            log.end(state.step, signal ? signal : out_of_time() ? "time budget" : "finished");
            return;
        }

        if (idle) last_s = now_s();
        stepper.start(train_data, learning_rate(schedule, next));
        if (stepper.under_way() == stepper.kMostUnderWay) finish_step();
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
        on_device(start.config, [&](auto& device, auto element) { train<decltype(element)>(device, start); });
        return kExitOk;
    } catch (const std::exception& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "error: %s\n", error.what());
        const Error* ours = dynamic_cast<const Error*>(&error);
        const bool of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error);  // a folder not readable
        return ours ? ours->exit_code : of_files ? kExitUsage : kExitInternal;
    }
}

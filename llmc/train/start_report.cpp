// The report of a run before its first step.
#include "llmc/train/start_report.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>
#include "llmc/base/check.h"         // format
#include "llmc/base/flags.h"         // to_json
#include "llmc/base/hash.h"          // hex64, xxh3
#include "llmc/base/number_text.h"   // count_text
#include "llmc/base/terminal.h"      // fitted_lines
#include "llmc/data/utf8.h"          // printable
#include "llmc/optim/outer_state.h"  // OuterState
#include "llmc/optim/schedule.h"     // learning_rate
#include "llmc/run/step_config.h"    // why_no_graph

RunFacts StartReport::facts() const {
    RunFlags flags = config.flags;  // a copy, because fields() gives mutable access
    const std::string& json = tokenizer.json;
    return {.config_json = to_json(flags.fields()),
            .device = device,
            .ranks = num_ranks,
            .data_hash = hex64(data.train->data_hash()),
            .val_hash = data.val ? hex64(data.val->data_hash()) : "",
            .tokenizer_hash = json.empty() ? "" : hex64(xxh3(json.data(), json.size())),
            .attention = kernels.attention,
            .gemm = kernels.gemm,
            .head_rows = head_rows,
            .num_parameters = num_parameters,
            .flops_per_token = flops_per_token,
            .peak_flops = all_peak_flops,
            .peak = peak.how,
            .sources = flags.sources};
}

RunLog StartReport::begin_log(const RunState& state, const ReadBytes& read_bytes) const {
    RunFlags flags = config.flags;
    const RunLog::Options options{
        .steps = config.shown_steps(), .print_every = flags.print_every, .time_budget_s = flags.time_budget_s};
    const int64_t before = request.resumed() ? 0 : last_step(flags.out_dir);
    RunLog log(flags.out_dir, request.resumed() ? RunLog::Mode::resume : RunLog::Mode::fresh, options);
    if (before > 0)
        std::printf("%s: the log of a run that made %ld steps and saved no checkpoint is replaced\n",
                    log.path().c_str(), before);
    say(printable(flags_by_source(flags.fields(), flags.sources)));
    std::vector<std::string> passed_over;
    for (const PassedOver& other : request.checkpoint.passed_over) passed_over.push_back(other.path + ": " + other.why);
    if (request.resumed())
        log.resume(facts(), state.step, request.checkpoint.path, passed_over, read_bytes), say(rate_line(state));
    else
        log.start(facts());
    return log;
}

void StartReport::print_evaluated() const {
    say(format("model: %s, %.2fM parameters; device: %s\n", request.path().c_str(), double(num_parameters) * 1e-6,
               device.c_str()));
    say(kernel_line());
}

void StartReport::say(const std::string& text) const {
    std::printf("%s", fitted_lines(terminal_of(stdout), text).c_str());
}

// That the learning rate jumps, because the flags draw another schedule than the run has followed so far; "" if it does
// not.
std::string StartReport::rate_line(const RunState& state) const {
    if (config.by_time() || state.learning_rate == 0 || state.step >= config.steps) return "";
    const double same = learning_rate(config.schedule, state.step - 1),
                 next = learning_rate(config.schedule, state.step);
    const auto is_near = [&](double rate) { return std::fabs(rate / state.learning_rate - 1) < 0.02; };
    if (is_near(same) || is_near(next)) return "";
    RunFlags flags = config.flags;
    std::vector<const char*> names;
    for (const Field& field : flags.fields())
        if (std::string(field.section) == "length" || std::string(field.section) == "optimizer")
            names.push_back(field.name);
    const std::string changed = request.changed(names);
    return format("learning rate: %.2e in step %ld, %.2e in step %ld, by another schedule (%s)\n", state.learning_rate,
                  state.step, next, state.step + 1, changed.empty() ? "of this version" : changed.c_str());
}

std::string StartReport::data_line() const {
    const auto tokens = double(data.train->num_tokens()), unread = double(data.train->num_unread_tokens());
    const double passes = config.tokens_of(config.steps) / tokens;
    std::string text = format("data: %s tokens", count_text(tokens).c_str());
    if (!config.by_time() && data.mixture().empty() && passes > 1) text += format(", %.3g passes", passes);
    text += "; device: " + device;
    if (unread == 0) return text;
    return format("data: %s of %s tokens are not read: their shards are shorter than --seq-len + 1\n",
                  count_text(unread).c_str(), count_text(tokens).c_str()) +
           text;
}

void StartReport::print(const std::string& ranks, const std::string& placement) const {
    const RunFlags& flags = config.flags;
    const Recipe& recipe = config.recipe;
    say(format("model: %.2fM parameters in %s, %.1f MFLOP per token; batch: %s\n", double(num_parameters) * 1e-6,
               flags.mx()    ? "mxfp8"
               : flags.fp8() ? "fp8"
                             : type,
               flops_per_token * 1e-6, batch_text(config).c_str()));
    if (num_learned < num_parameters)
        say(format("adapters: %.3fM parameters of rank %d learn, beside %s\n", double(num_learned) * 1e-6,
                   flags.lora_rank, printable(flags.init_from).c_str()));
    say(config.derivation);
    if (config.step.graph)
        if (const std::string why = why_no_graph(config.step, on_gpu); !why.empty())
            say(format("--cuda-graph: without one: %s\n", why.c_str()));
    if (flags.stage_elements() > 0 && !on_gpu)
        say(format("--offload %s: saves nothing on a CPU, whose memory is the host's\n", flags.offload.c_str()));
    else if (flags.stage_elements() > 0)
        say(format("--offload %s: %d %% of the optimizer's state in host memory\n", flags.offload.c_str(),
                   recipe.rules.offload_percent));
    const std::string length = config.by_time()
                                   ? format("%g s, of which schedules are %ld steps", flags.time_budget_s, config.steps)
                                   : format("%ld steps", config.steps);
    say(format("recipe: %s, %s; %s", recipe.name, length.c_str(), recipe.text().c_str()));
    double weights = 0;
    for (const SourceFacts& facts : data.mixture()) weights += facts.source.weight;
    for (const SourceFacts& facts : data.mixture())
        say(format("data: %.2f%% of all rows from the %s tokens of %s\n", 100 * facts.source.weight / weights,
                   count_text(double(facts.num_tokens)).c_str(), printable(facts.source.pattern).c_str()));
    say(data_line() + "; " + ranks + "\n");
    say(peak_line() + islands_line() + kernel_line() + placement);
}

std::string StartReport::peak_line() const {
    if (all_peak_flops <= 0) return "";
    if (all_peak_flops == peak.flops) return "MFU: of " + peak.text() + "\n";
    return format("MFU: of %.3g TFLOP/s of all ranks, rank 0's %s\n", all_peak_flops * 1e-12, peak.text().c_str());
}

std::string StartReport::kernel_line() const {
    if (kernels.attention.empty()) return "";
    return format("attention: %s; GEMM: %s; head: %ld of %ld rows of logits at a time\n", kernels.attention.c_str(),
                  kernels.gemm.c_str(), long(head_rows), long(config.step.B * config.step.T));
}

std::string StartReport::islands_line() const {
    const RunFlags& flags = config.flags;
    if (place.islands == 0) return "";
    return format(
        "islands: %d of %d %s each, every %ld steps a mean (rate %g, momentum %g) of %.1f MB in %s from each rank to "
        "each other island\n",
        place.count(), place.size(), place.size() == 1 ? "rank" : "ranks", flags.outer_every, flags.outer_lr,
        flags.outer_momentum, double(OuterState::encoded_bytes(outer_size, flags.outer().type)) * 1e-6,
        flags.outer_dtype.c_str());
}

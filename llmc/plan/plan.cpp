// See plan.h.
#include "llmc/plan/plan.h"
#include <algorithm>
#include <cstdio>
#include "llmc/base/check.h"          // require, ensure, format
#include "llmc/base/file.h"           // write_file_atomically
#include "llmc/base/head_rows.h"      // forced_head_rows
#include "llmc/base/json.h"           // Json
#include "llmc/cpu/kernels.h"         // the device Cpu
#include "llmc/model/flops.h"         // flops_per_token
#include "llmc/interop/adapter.h"     // splits_adapters
#include "llmc/optim/state_layout.h"  // optimizer_memory, least_offload, state_bytes
#include "llmc/plan/trace_report.h"   // parts_text, launch_table, limits_text, predicted_chrome_trace
#include "llmc/plan/traced_step.h"    // trace_step, traced_workspace
#include "llmc/run/step_config.h"     // gradient_bytes
#include "llmc/train/tokens.h"        // planned_vocab_size, assumes_vocabulary

namespace {

const Recomputation kRecomputes[] = {Recompute::none, Recompute::norms, Recompute::block};

// "1.558 G"; with a unit "418.3 TFLOP".
std::string amount_text(double n, const std::string& unit = "", int digits = 4) {
    for (const auto& [size, letter] :
         {std::pair{1e18, 'E'}, {1e15, 'P'}, {1e12, 'T'}, {1e9, 'G'}, {1e6, 'M'}, {1e3, 'k'}})
        if (n >= size) return format("%.*g %c%s", digits, n / size, letter, unit.c_str());
    return format("%.*g", digits, n) + (unit.empty() ? "" : " " + unit);
}

std::string time_text(double s) {
    return s < 1      ? format("%.3g ms", s * 1e3)
           : s < 600  ? format("%.3g s", s)
           : s < 7200 ? format("%.1f min", s / 60)
           : s < 2e5  ? format("%.1f h", s / 3600)
                      : format("%.1f days", s / 86400);
}

// A range with three digits, mid first: "298 ms (270 ms to 331 ms)".
template <class Text>
std::string range_text(double low, double mid, double high, Text&& text) {
    return text(mid) + " (" + text(std::min(low, high)) + " to " + text(std::max(low, high)) + ")";
}
std::string three_digits(double x) { return amount_text(x, "", 3); }

std::vector<std::string> words_of(const std::string& list) {
    std::vector<std::string> words;
    for (size_t begin = 0; begin <= list.size();) {
        const size_t end = std::min(list.find(',', begin), list.size());
        words.push_back(list.substr(begin, end - begin));
        begin = end + 1;
    }
    return words;
}

DescribedGpu described(const Gpu& gpu) {
    return {.name = gpu.name,
            .compute_capability = gpu.compute_capability,
            .num_sms = gpu.num_sms,
            .memory_bytes = size_t(gpu.memory_gb * 1e9),
            .l2_bytes = size_t(gpu.l2_mb * 1e6)};
}

// "fits; the largest --batch-size that would: 69, ..."
std::string fit_text(const RunPlan& plan) {
    const double missing = double(plan.memory.total_bytes()) - plan.gpu.memory_gb * 1e9;
    const char* const forced = forced_head_rows() > 0 ? " (without ANVIL_HEAD_ROWS it may)" : "";
    return (plan.fits() ? "fits" : format("DOES NOT FIT, by %.1f MiB%s", missing / (1 << 20), forced)) +
           (plan.largest_batches[2] == 0
                ? "; no --batch-size does: take more ranks, --zero-stage 2, --memory lean or --offload optimizer"
                : format("; the largest --batch-size that would: %ld, with --recompute norms %ld, with block %ld",
                         plan.largest_batches[0], plan.largest_batches[1], plan.largest_batches[2]));
}

}  // namespace

Gpu planned_gpu(const PlanOptions& options, const std::string& name) {
    const Gpu* const found = find_gpu(name);
    std::string names;
    for (const std::string& one : gpu_names()) names += (names.empty() ? "" : ", ") + one;
    require(found, "--gpu %s: expected a name, or several with commas between them, of: %s", name.c_str(),
            names.c_str());
    Gpu gpu = *found;
    if (options.memory_gb > 0) gpu.memory_gb = options.memory_gb;
    if (options.tflops > 0) gpu.tflops = options.tflops;
    if (options.bandwidth > 0) gpu.collective = options.bandwidth;
    if (options.network > 0) gpu.network = options.network;
    if (options.usd_per_hour > 0) gpu.usd_per_hour = options.usd_per_hour;
    return gpu;
}

RunPlan plan_run(const RunFlags& asked, const GptShape& shape, const Gpu& assumed, int world_size,
                 std::shared_ptr<const Calibration> calibration) {
    const Gpu& gpu = calibration ? calibration->gpu : assumed;
    require(asked.dtype != "fp32", "`plan` assumes --dtype bf16, in which GPUs train: leave --dtype fp32 out");
    require(asked.balance_mode().is_equal(), "`plan` is for GPUs, whose ranks have equal shares: leave --balance out");
    require(asked.islands == 0,
            "`plan` is of ranks that take every step together: leave --islands out, and give an island's --world-size");
    require(!asked.fp8() || gpu.fp8_tflops > 0, "--dtype fp8: %s has no FP8 GEMMs", gpu.name);
    require(!asked.mx() || gpu.has_mx(),
            "--fp8-scaling mx: %s has no products in MX, which begin with Blackwell: choose another", gpu.name);
    const int64_t seq_len = asked.seq_len(shape);
    RunPlan plan;
    plan.shape = shape, plan.gpu = gpu, plan.calibration = calibration;

    ParameterList list(shape);
    OptimizerConfig rules = asked.chosen_recipe().rules;
    plan.num_parameters = list.num_parameters;
    plan.sharding = plan_sharding(list, sharding_options(asked, world_size));
    list.place(plan.sharding.offsets, plan.sharding.buffer_size);

    plan.state_bytes = state_bytes(list, plan.sharding, rules, true);
    OptimizerMemory optimizer = optimizer_memory(list, plan.sharding, rules, sizeof(bf16));
    int busiest = 0;
    for (int r = 0; r < world_size; r++)
        if (plan.sharding.newton_schulz_flops(r) > plan.sharding.newton_schulz_flops(busiest)) busiest = r;
    TracedRun run{.parameters = list,
                  .sharding = plan.sharding,
                  .rank = busiest,
                  .rules = rules,
                  .rates = {},
                  .step = {},
                  .passes = {asked.recomputation(), asked.fp8(), 0, asked.amax_history(), asked.mx()},
                  .has_documents = asked.document_token.has_value(),
                  .attention = asked.attention,
                  .deterministic = asked.deterministic,
                  .gpu = described(gpu)};
    const TracedWorkspace workspace(run);
    const size_t bytes = run.gpu.memory_bytes;
    const auto memory_of = [&](const StepConfig& step, int64_t least_head_rows = kLeastHeadRows) {
        const int64_t most = gpu_head_rows(step.B * seq_len, shape.padded_vocab_size(), sizeof(bf16), bytes);
        const size_t ops = workspace.bytes(step.B, seq_len);
        return plan_head_rows(most, std::min(most, least_head_rows), bytes, [&](int64_t head_rows) {
            return memory_plan<bf16>(list, step.B, seq_len,
                                     {step.recompute, asked.fp8(), head_rows, asked.amax_history(), asked.mx()},
                                     {.optimizer = optimizer,
                                      .gradients = gradient_bytes(plan.sharding, step, true),
                                      .bf16_sums = step.bf16_sums,
                                      .workspace = ops});
        });
    };
    const auto fits = [&](const StepConfig& step) {
        return memory_of(step, kGpuHeadRows).memory.total_bytes() <= bytes;
    };
    const auto speed = [&](const RunFlags& with) {
        return plan_run(with, shape, assumed, world_size, calibration).tokens_per_s(1);
    };
    const Decision decision = decide(asked, shape, world_size, fits, {}, speed);
    plan.config = RunConfig(decision, shape, world_size);
    const RunFlags& flags = plan.config.flags;
    const StepConfig& step = plan.config.step;
    if (flags.fp8()) check_fp8_model(shape, step.B, step.T, flags.mx());
    const HeadPlan head = memory_of(step);
    for (const Recomputation& how : kRecomputes) {
        const auto fits = [&](int64_t B) {
            StepConfig other = step;
            other.B = B, other.recompute = how;
            return memory_of(other).memory.total_bytes() <= bytes;
        };
        int64_t low = 0, high = 1;
        while (high < (1 << 20) && fits(high)) high *= 2;
        while (high - low > 1) (fits((low + high) / 2) ? low : high) = (low + high) / 2;
        plan.largest_batches[int(how.what)] = low;
    }

    if (flags.settles_offload())
        optimizer = least_offload(list, plan.sharding, rules, sizeof(bf16), [&](const OptimizerMemory& with) {
            optimizer = with;
            return memory_of(step, head.head_rows).memory.total_bytes() <= bytes;
        });
    plan.config.recipe.rules.offload_percent = rules.offload_percent;
    plan.memory = memory_of(step, head.head_rows).memory;
    plan.copied_bytes = double(optimizer.host);
    plan.offloaded_bytes = plan.copied_bytes * std::min(world_size, kGpusPerServer);

    run.step = step, run.passes.recompute = step.recompute, run.passes.head_rows = head.head_rows;
    run.rules = plan.config.recipe.rules, run.rates = plan.config.recipe.rates(0, plan.config.steps);
    plan.trace = trace_step(run);
    for (size_t i = 0; i < 3; i++)
        plan.times[i] = step_time(plan.trace, gpu, calibration ? calibration->cases[i] : *kCases[i], world_size);

    const double n = plan.sharding.shards, groups = world_size / n, size = double(plan.sharding.learned_size());
    // Within the group, and of the rank's own shard between groups.
    plan.sent_gradient_bytes = ((n - 1) / n + 2 * (groups - 1) / groups / n) * size * (step.bf16_gradients ? 2 : 4) *
                               double(step.shards_gradients() ? step.accumulation : 1);
    plan.sent_weight_bytes = (n - 1) / n * size * 2;
    plan.bandwidth = wire_bytes_per_s(gpu, world_size);

    // The optimizer's state of every rank and, on the first one, the weights (saving.h).
    plan.host_bytes = 2 * size;
    plan.checkpoint_bytes = 2 * double(list.num_learned);
    for (int r = 0; r < plan.sharding.shards; r++) {
        const double state = double(plan.state_bytes[size_t(r)]);
        plan.checkpoint_bytes += state;
        if (r < kGpusPerServer) plan.host_bytes += state;
    }
    plan.flops_per_token = flops_per_token(list, step.T);
    plan.flops = plan.flops_per_token * double(step.num_tokens());
    plan.tokens = plan.config.tokens_of(plan.config.steps);
    return plan;
}

double predicted_tokens_per_s(const RunFlags& flags, const GptShape& shape, int world_size, const std::string& gpu) {
    const Gpu* const found = gpu_in_name(gpu);
    const bool can_be_planned = flags.dtype != "fp32" && flags.islands == 0 && flags.balance_mode().is_equal();
    return found && can_be_planned ? plan_run(flags, shape, *found, world_size).tokens_per_s(1) : 0;
}

namespace {

// Calls make(gpu, world_size, calibration) for every GPU of --gpu at every number of --world-size.
template <class Make>
void each_machine(const PlanOptions& options, Make&& make) {
    for (const std::string& name : words_of(options.gpu)) {
        const Gpu gpu = planned_gpu(options, name);
        const std::shared_ptr<const Calibration> calibration =
            options.calibrate.empty() ? nullptr : calibrate(options.calibrate, gpu);
        for (const std::string& number : words_of(options.world_size)) {
            int world_size = 0;
            set_field(Field{"", "world-size", &world_size, ""}.from(1, 1 << 20), number, "--world-size " + number);
            make(gpu, world_size, calibration);
        }
    }
}

}  // namespace

std::vector<RunPlan> plan_runs(const RunFlags& asked, const PlanOptions& options, const GptShape& shape) {
    std::vector<RunPlan> plans;
    each_machine(options, [&](const Gpu& gpu, int world_size, const auto& calibration) {
        plans.push_back(plan_run(asked, shape, gpu, world_size, calibration));
    });
    require(options.trace.empty() || plans.size() == 1, "--trace is of one plan: give one --gpu and one --world-size");
    return plans;
}

std::string text_of(const RunPlan& plan) {
    const RunFlags& flags = plan.config.flags;
    const Gpu& gpu = plan.gpu;
    const GptShape& s = plan.shape;
    const double W = plan.sharding.world_size, mib = 1 << 20;
    std::string text = format(
        "model: %s parameters: %ld layers, %ld heads, %ld channels, a vocabulary of %ld (architecture: %s)\n"
        "  %s per token, forward and backward\n"
        "batch: %s\n%s%s\n",
        amount_text(double(plan.num_parameters)).c_str(), s.num_layers, s.num_heads, s.channels, s.vocab_size,
        flags.model.architecture_name().c_str(), amount_text(plan.flops_per_token, "FLOP").c_str(),
        batch_text(plan.config).c_str(), plan.config.derivation.c_str(), plan.sharding.table(plan.state_bytes).c_str());

    text += "of the rank that needs most: " + plan.memory.table(size_t(gpu.memory_gb * 1e9));
    text += "\n  " + fit_text(plan) + "\n";

    text += format(
        "checkpoint: %.1f MiB on the disk, %.1f with --keep %d and the one being written; %.1f MiB of a server's own "
        "memory to write it from\n",
        plan.checkpoint_bytes / mib, (flags.keep + 1) * plan.checkpoint_bytes / mib, flags.keep, plan.host_bytes / mib);
    if (plan.copied_bytes > 0)
        text += format(
            "offload: %d %% of the optimizer's state, %.1f MiB of a server's memory beside it, pinned; a rank copies "
            "%.1f "
            "MiB to the GPU in a step and as many back, at %g GB/s each way\n",
            plan.config.recipe.rules.offload_percent, plan.offloaded_bytes / mib, plan.copied_bytes / mib, gpu.host);
    text += format(
        "communication of a rank in a step, as a ring at %.4g GB/s: %.1f MiB of gradients in %s, %.1f of weights in "
        "bf16\n",
        plan.bandwidth * 1e-9, plan.sent_gradient_bytes / mib, plan.config.step.bf16_gradients ? "bf16" : "fp32",
        plan.sent_weight_bytes / mib);
    const std::string run = format("run: %ld steps, %s tokens, %s", plan.config.steps, amount_text(plan.tokens).c_str(),
                                   amount_text(plan.flops * double(plan.config.steps), "FLOP").c_str());
    if (!plan.fits()) return text + run + ": no time and no price, because it does not fit";
    const auto range = [&](auto&& value, auto&& text_of_value) {
        return range_text(value(0), value(1), value(2), text_of_value);
    };
    const StepTime& mid = plan.times[1];
    text += format("step, predicted for %s: %s, %ld launches%s\n  %s\n", gpu.name,
                   range([&](int i) { return plan.times[i].step_s; }, time_text).c_str(), long(mid.launches),
                   mid.host_bound() ? ", bound by the host that makes them" : "", parts_text(plan.trace, mid).c_str());
    text += format("  %s tokens/s, %s a GPU; MFU %s %%\n",
                   range([&](int i) { return plan.tokens_per_s(i); }, three_digits).c_str(),
                   range([&](int i) { return plan.tokens_per_s(i) / W; }, three_digits).c_str(),
                   range([&](int i) { return 100 * plan.mfu(i); }, [](double x) { return format("%.0f", x); }).c_str());
    if (plan.sharding.world_size > 1)
        text += format("  parallel efficiency %.0f %%: %s in collectives, %s of it exposed\n", 100 * mid.efficiency(),
                       time_text(mid.wire_s).c_str(), time_text(mid.exposed_s).c_str());
    if (plan.copied_bytes > 0)
        text += format("  offload: %s of copies, both ways; %s of the step waits for them\n",
                       time_text(mid.copies_s).c_str(), time_text(mid.exposed_copies_s).c_str());
    text += format("%s, %s, %s USD for %s GPU-hours\n", run.c_str(),
                   range([&](int i) { return plan.run_s(i); }, time_text).c_str(),
                   range([&](int i) { return plan.usd(i); }, three_digits).c_str(),
                   three_digits(plan.run_s(1) / 3600 * W).c_str());
    text += format(
        "assumed, %s: --memory-gb %g at %.3g TB/s, --tflops %g of which a large GEMM holds %.3g, --bandwidth %g GB/s "
        "and --network %g GB/s, --price %g USD per hour; %d GPUs per server. %s",
        gpu.name, gpu.memory_gb, gpu.copy_bytes_per_s() * 1e-12, gpu.tflops, gpu.tflops * gpu.sustained, gpu.collective,
        gpu.network, gpu.usd_per_hour, kGpusPerServer,
        plan.calibration
            ? format("The step is predicted by rates measured on %s; it was not run", plan.calibration->device.c_str())
                  .c_str()
            : "Nothing here is measured");
    return text;
}

std::string facts_json(const RunPlan& plan) {
    const StepConfig& step = plan.config.step;
    Json memory;
    for (const MemoryPlan::Line& line : plan.memory.lines) memory[line.name] = line.bytes;
    Json cases;
    for (int i = 0; i < 3; i++) {
        const StepTime& time = plan.times[i];
        cases[kCases[i]->name] = {
            {"step_ms", time.step_s * 1e3}, {"tokens_per_s", plan.tokens_per_s(i)}, {"mfu", plan.mfu(i)},
            {"gaps_ms", time.gaps_s * 1e3}, {"exposed_ms", time.exposed_s * 1e3},   {"wire_ms", time.wire_s * 1e3},
            {"host_ms", time.host_s * 1e3}, {"efficiency", time.efficiency()}};
        if (plan.copied_bytes > 0)
            cases[kCases[i]->name]["copies_ms"] = time.copies_s * 1e3,
            cases[kCases[i]->name]["exposed_copies_ms"] = time.exposed_copies_s * 1e3;
    }
    // Of the second micro-batch, or the only one: the first one overwrites gradients, and later ones add to them.
    const int64_t typical = plan.trace.traced_micro_batches > 1 ? 1 : 0;
    int64_t launches = 0;
    double bytes = 0;
    for (const StepTime::Slice& slice : plan.times[1].slices) {
        const TracedWork& work = plan.trace.work[slice.work];
        if (work.stream != 0) continue;
        if (work.micro_batch == typical) launches++;
        bytes += double(plan.trace.repeats(work)) * work.cost.bytes;
    }
    Json facts = {{"gpu", plan.gpu.name},
                  {"predicted", true},
                  {"ranks", plan.sharding.world_size},
                  {"parameters", plan.num_parameters},
                  {"batch_size", step.B},
                  {"seq_len", step.T},
                  {"micro_batches", step.accumulation},
                  {"tokens_per_step", step.num_tokens()},
                  {"flops_per_token", plan.flops_per_token},
                  {"memory_bytes", memory},
                  {"fits", plan.fits()},
                  {"sent_gradient_bytes", plan.sent_gradient_bytes},
                  {"sent_weight_bytes", plan.sent_weight_bytes},
                  {"launches_per_step", plan.times[1].launches},
                  {"launches_per_micro_batch", launches},
                  {"bytes_per_token", bytes * double(step.world_size) / double(step.num_tokens())},
                  {"cases", cases},
                  {"micro_batches_recorded", plan.trace.traced_micro_batches},
                  {"middle_micro_batch_counts", plan.trace.middle_repeats}};
    if (const Calibration* const c = plan.calibration.get()) {
        Json rows = Json::array();
        for (const CalibrationRow& row : c->rows)
            rows.push_back({{"what", row.what},
                            {"shape", row.shape},
                            {"predicted_ms", row.predicted_s * 1e3},
                            {"measured_ms", row.measured_s * 1e3},
                            {"calibrated_ms", row.calibrated_s * 1e3}});
        facts["calibration"] = {{"device", c->device}, {"rows", rows}};
    }
    return json_text(facts);
}

std::string text_of(const std::vector<RunPlan>& plans) {
    if (plans.size() == 1) return text_of(plans[0]);
    const RunPlan& first = plans[0];
    std::string text =
        format("model: %s parameters, %s per token; %s tokens\n", amount_text(double(first.num_parameters)).c_str(),
               amount_text(first.flops_per_token, "FLOP").c_str(), amount_text(first.tokens).c_str());
    text += format("%-6s %5s %6s %6s %11s %22s %9s %10s %16s %26s %s\n", "GPU", "ranks", "batch", "micro", "GiB",
                   "tokens/s, low to high", "parallel", "exposed", "MFU", "run", "USD");
    for (const RunPlan& plan : plans) {
        const auto range = [](double a, double b, auto&& text_of_value) {
            return text_of_value(std::min(a, b)) + " to " + text_of_value(std::max(a, b));
        };
        if (!plan.fits()) {
            text += format("%-6s %5d %6ld %6ld %6.1f %s\n", plan.gpu.name, plan.sharding.world_size, plan.config.step.B,
                           plan.config.step.accumulation, double(plan.memory.total_bytes()) / (1 << 30),
                           fit_text(plan).c_str());
            continue;
        }
        text += format("%-6s %5d %6ld %6ld %11.1f %22s %7.0f %% %10s %16s %26s %s\n", plan.gpu.name,
                       plan.sharding.world_size, plan.config.step.B, plan.config.step.accumulation,
                       double(plan.memory.total_bytes()) / (1 << 30),
                       range(plan.tokens_per_s(0), plan.tokens_per_s(2), three_digits).c_str(),
                       100 * plan.times[1].efficiency(), time_text(plan.times[1].exposed_s).c_str(),
                       range(100 * plan.mfu(0), 100 * plan.mfu(2), [](double x) { return format("%.0f", x); }).c_str(),
                       range(plan.run_s(0), plan.run_s(2), time_text).c_str(),
                       range(plan.usd(0), plan.usd(2), three_digits).c_str());
    }
    text += first.calibration ? "predicted by rates that --calibrate gives" : "predicted, nothing here is measured";
    text +=
        "; one plan alone says more.\n"
        "parallel: the step's time without communication over its time; exposed: of it, waiting for communication";
    return text;
}

void print_plan(const RunFlags& flags, const PlanOptions& options) {
    flags.validate();
    if (flags.device == "cpu")
        std::fprintf(stderr,
                     "warning: `plan` is for GPUs, and these are the figures of --gpu %s; for a CPU --dry-run of "
                     "`train` prints the memory plan\n",
                     options.gpu.c_str());
    const int64_t found = flags.model.vocab_size ? 0 : planned_vocab_size(flags);
    GptShape shape = flags.model.shape(found);
    shape.lora = flags.lora(), shape.lora.is_split = splits_adapters(shape);
    check_lora(shape);
    if (options.fit) {
        require(options.trace.empty(), "--trace is of one plan: give it the flags that --fit prints");
        each_machine(options, [&](const Gpu& gpu, int world_size, const auto& calibration) {
            std::printf("%s\n", text_of(fit_run(flags, shape, gpu, world_size, calibration)).c_str());
        });
        if (assumes_vocabulary(flags)) std::printf("%s", kAssumedVocabulary);
        return;
    }
    const std::vector<RunPlan> plans = plan_runs(flags, options, shape);
    std::printf("%s\n", text_of(plans).c_str());
    // Once per GPU.
    for (size_t i = 0; i < plans.size(); i++)
        if (plans[i].calibration && (i == 0 || plans[i].calibration != plans[i - 1].calibration))
            std::printf("\n%s", text_of(*plans[i].calibration).c_str());
    const std::string path = flags.tokenizer_path();
    if (assumes_vocabulary(flags))
        std::printf("%s", kAssumedVocabulary);
    else if (found == plans[0].shape.vocab_size)
        std::printf("vocabulary: that of %s; --vocab-size plans for another\n", path.c_str());
    if (options.trace.empty()) return;
    const RunPlan& plan = plans[0];
    require(plan.fits(), "--trace: the run %s", fit_text(plan).c_str());
    std::printf("\n%s\n%s", launch_table(plan.trace, plan.times[1], plan.gpu, 0).c_str(),
                limits_text(plan.trace, plan.times[1]).c_str());
    write_file_atomically(options.trace, predicted_chrome_trace(plan.trace, plan.times[1], plan.gpu, facts_json(plan)));
}

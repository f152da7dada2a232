// See plan.h.
#include "llmc/train/plan.h"
#include <algorithm>
#include "llmc/base/check.h"          // require, ensure, format
#include "llmc/cpu/kernels.h"         // the device Cpu
#include "llmc/model/flops.h"         // flops_per_token
#include "llmc/optim/state_layout.h"  // StateLayout, state_bytes
#include "llmc/train/step.h"          // Stepper

namespace {

constexpr Recompute kRecomputes[] = {Recompute::none, Recompute::norms, Recompute::block};

// "1.558 G", and with a unit "418.3 TFLOP".
std::string count_text(double n, const std::string& unit = "") {
    for (const auto& [size, letter] :
         {std::pair{1e18, 'E'}, {1e15, 'P'}, {1e12, 'T'}, {1e9, 'G'}, {1e6, 'M'}, {1e3, 'k'}})
        if (n >= size) return format("%.4g %c%s", n / size, letter, unit.c_str());
    return format("%.4g", n) + (unit.empty() ? "" : " " + unit);
}

std::string time_text(double s) {
    return s < 1      ? format("%.3g ms", s * 1e3)
           : s < 600  ? format("%.3g s", s)
           : s < 7200 ? format("%.1f min", s / 60)
           : s < 2e5  ? format("%.1f h", s / 3600)
                      : format("%.1f days", s / 86400);
}

}  // namespace

std::vector<std::string> plan_gpu_names() {
    std::vector<std::string> names;
    for (const PlannedGpu& gpu : kPlannedGpus) names.push_back(gpu.name);
    return names;
}

PlannedGpu planned_gpu(const PlanOptions& options) {
    PlannedGpu result = kPlannedGpus[0];
    for (const PlannedGpu& gpu : kPlannedGpus)
        if (options.gpu == gpu.name) result = gpu;
    ensure(options.gpu == result.name);
    if (options.memory_gb > 0) result.memory_gb = options.memory_gb;
    if (options.tflops > 0) result.tflops = options.tflops;
    if (options.mfu > 0) result.mfu = options.mfu;
    if (options.bandwidth > 0) result.bandwidth = options.bandwidth;
    if (options.network > 0) result.network = options.network;
    if (options.usd_per_hour > 0) result.usd_per_hour = options.usd_per_hour;
    return result;
}

RunPlan plan_run(const RunFlags& asked, const PlanOptions& options, const GptShape& shape, int world_size) {
    require(asked.dtype != "fp32", "`plan` assumes --dtype bf16, in which GPUs train: leave --dtype fp32 out");
    const PlannedGpu gpu = planned_gpu(options);
    const int64_t seq_len = asked.seq_len(shape);
    RunPlan plan;
    plan.shape = shape, plan.gpu = gpu;

    ParameterList list(shape);
    const OptimizerConfig rules = asked.chosen_recipe().rules;
    plan.num_parameters = list.num_parameters;
    plan.sharding = plan_sharding(list, {.world_size = world_size, .whole_matrices = shards_whole_matrices(rules)});
    list.place(plan.sharding.offsets, plan.sharding.buffer_size);

    plan.state_bytes = state_bytes(list, plan.sharding, rules, true);
    size_t optimizer_bytes = 0;
    double most_state = 0, most_work = 0;
    for (int r = 0; r < world_size; r++) {
        optimizer_bytes =
            std::max(optimizer_bytes, StateLayout(list, plan.sharding, r, rules).memory_bytes(sizeof(bf16)));
        most_state = std::max(most_state, double(plan.state_bytes[size_t(r)]));
        most_work = std::max(most_work, plan.sharding.newton_schulz_flops(r));
    }
    const auto bytes = size_t(gpu.memory_gb * 1e9);
    const auto memory_of = [&](const StepConfig& step, Recompute how, int64_t least_head_rows = kLeastHeadRows) {
        const int64_t most = gpu_head_rows(step.B * seq_len, shape.padded_vocab_size(), sizeof(bf16), bytes);
        return plan_head_rows(most, std::min(most, least_head_rows), bytes,
                              [&](int64_t head_rows) {
                                  return memory_plan<bf16>(list, optimizer_bytes,
                                                           Stepper<Cpu, bf16>::more_gradient_bytes(list, step), step.B,
                                                           seq_len, {how, asked.fp8(), head_rows}, 0);
                              })
            .memory;
    };
    const Decision decision = decide(asked, shape, world_size, [&](const StepConfig& step) {
        return memory_of(step, asked.recompute_mode(), kGpuHeadRows).total_bytes() <= bytes;
    });
    plan.config = RunConfig(decision, shape, world_size);
    const RunFlags& flags = plan.config.flags;
    const StepConfig& step = plan.config.step;
    const auto memory = [&](int64_t B, Recompute how) {
        StepConfig other = step;
        other.B = B;
        return memory_of(other, how);
    };
    if (flags.fp8()) check_fp8_model(shape, step.B, step.T);
    plan.memory = memory(step.B, flags.recompute_mode());
    for (const Recompute how : kRecomputes) {
        const auto fits = [&](int64_t B) { return double(memory(B, how).total_bytes()) <= gpu.memory_gb * 1e9; };
        int64_t low = 0, high = 1;
        while (high < (1 << 20) && fits(high)) high *= 2;
        while (high - low > 1) (fits((low + high) / 2) ? low : high) = (low + high) / 2;
        plan.largest_batches[int(how)] = low;
    }

    const double W = world_size, ring = (W - 1) / W, size = double(plan.sharding.buffer_size);
    const double gradient_bytes = step.bf16_gradients ? 2 : 4, weight_bytes = 2;
    plan.sent_gradient_bytes = ring * size * gradient_bytes;
    plan.sent_weight_bytes = ring * size * weight_bytes;
    plan.bandwidth =
        1e9 * (world_size <= kGpusPerServer ? gpu.bandwidth : std::min(gpu.bandwidth, kGpusPerServer * gpu.network));
    plan.gradients_s = plan.sent_gradient_bytes / plan.bandwidth;
    plan.last_bucket_s = ring * W * double(plan.sharding.buckets.back().shard) * gradient_bytes / plan.bandwidth;
    plan.weights_s = plan.sent_weight_bytes / plan.bandwidth;

    // The optimizer's state of every rank and, on the first one, the weights (saving.h).
    plan.host_bytes = double(plan.memory.lines[0].bytes);
    plan.checkpoint_bytes = 2 * double(plan.num_parameters);
    for (int r = 0; r < world_size; r++) {
        const double state = double(plan.state_bytes[size_t(r)]);
        plan.checkpoint_bytes += state;
        if (r < kGpusPerServer) plan.host_bytes += state;
    }

    plan.flops_per_token = flops_per_token(list, step.T);
    plan.flops = plan.flops_per_token * double(step.num_tokens());
    const double sustained = gpu.tflops * 1e12 * gpu.mfu;
    const double recomputed = flags.recompute_mode() == Recompute::block ? 4. / 3 : 1;
    plan.compute_s = recomputed * plan.flops / W / sustained;
    // State is read and written; the gradient (fp32) read and the weight (bf16) written, for a W-th of all.
    plan.update_s = (2 * most_state + size / W * 6) / (gpu.memory_tb_s * 1e12) + most_work / sustained;
    const double micro_batch_s = plan.compute_s / double(step.accumulation);
    plan.exposed_s = plan.last_bucket_s + std::max(0., plan.gradients_s - plan.last_bucket_s - micro_batch_s * 2 / 3) +
                     std::max(0., plan.weights_s - micro_batch_s / 3);
    plan.step_s = plan.compute_s + plan.update_s + plan.exposed_s;

    plan.tokens = double(plan.config.steps) * double(step.num_tokens());
    plan.run_s = double(plan.config.steps) * plan.step_s;
    plan.usd = plan.run_s / 3600 * W * gpu.usd_per_hour;
    return plan;
}

std::string text_of(const RunPlan& plan) {
    const RunFlags& flags = plan.config.flags;
    const PlannedGpu& gpu = plan.gpu;
    const GptShape& s = plan.shape;
    const double W = plan.sharding.world_size, total = double(plan.memory.total_bytes());
    const double mib = 1 << 20;
    std::string text = format(
        "model: %s parameters: %ld layers, %ld heads, %ld channels, a vocabulary of %ld (architecture: %s)\n"
        "  %s per token, forward and backward\n"
        "batch: %s\n%s%s\n",
        count_text(double(plan.num_parameters)).c_str(), s.num_layers, s.num_heads, s.channels, s.vocab_size,
        flags.model.architecture_name().c_str(), count_text(plan.flops_per_token, "FLOP").c_str(),
        batch_text(plan.config.step).c_str(), plan.config.derivation.c_str(),
        plan.sharding.table(plan.state_bytes).c_str());

    text += "of the rank that needs most, without the workspace of the ops: " +
            plan.memory.table(size_t(gpu.memory_gb * 1e9));
    text += format("\n  %s; the largest --batch-size that would: %ld, with --recompute norms %ld, with block %ld\n",
                   total <= gpu.memory_gb * 1e9 ? "fits" : "DOES NOT FIT", plan.largest_batches[0],
                   plan.largest_batches[1], plan.largest_batches[2]);

    text += format(
        "checkpoint: %.1f MiB on the disk, %.1f with --keep %d and the one being written; %.1f MiB of a server's own "
        "memory to write it from\n",
        plan.checkpoint_bytes / mib, (flags.keep + 1) * plan.checkpoint_bytes / mib, flags.keep, plan.host_bytes / mib);
    text += format(
        "communication of a rank in a step, as a ring at %.4g GB/s\n"
        "  gradients, %s: %.1f MiB sent by reduce-scatter, %s; of the last bucket %s\n"
        "  weights, bf16: %.1f MiB sent by all-gather, %s\n",
        plan.bandwidth * 1e-9, plan.config.step.bf16_gradients ? "bf16" : "fp32", plan.sent_gradient_bytes / mib,
        time_text(plan.gradients_s).c_str(), time_text(plan.last_bucket_s).c_str(), plan.sent_weight_bytes / mib,
        time_text(plan.weights_s).c_str());
    text += format(
        "step: %s = %s of %s at %.3g TFLOP/s per GPU + %s of updates + %s of communication that nothing hides\n"
        "  %s tokens/s, %s a GPU\n",
        time_text(plan.step_s).c_str(), time_text(plan.compute_s).c_str(), count_text(plan.flops, "FLOP").c_str(),
        gpu.tflops * gpu.mfu, time_text(plan.update_s).c_str(), time_text(plan.exposed_s).c_str(),
        count_text(double(plan.config.step.num_tokens()) / plan.step_s).c_str(),
        count_text(double(plan.config.step.num_tokens()) / plan.step_s / W).c_str());
    text += format("run: %ld steps, %s tokens, %s, %.4g USD for %.4g GPU-hours\n", plan.config.steps,
                   count_text(plan.tokens).c_str(), time_text(plan.run_s).c_str(), plan.usd, plan.run_s / 3600 * W);
    text += format(
        "assumed, %s: --memory %g GB, --tflops %g, --mfu %g, --bandwidth %g GB/s and --network %g GB/s, --price %g USD "
        "per hour; memory at %g TB/s; %d GPUs per server; no latency",
        gpu.name, gpu.memory_gb, gpu.tflops, gpu.mfu, gpu.bandwidth, gpu.network, gpu.usd_per_hour, gpu.memory_tb_s,
        kGpusPerServer);
    return text;
}

// See run_config.h.
#include "llmc/train/run_config.h"
#include <cmath>
#include "llmc/base/check.h"           // require, format
#include "llmc/base/json.h"            // OrderedJson
#include "llmc/model/flops.h"          // flops_per_token, matmul_parameters
#include "llmc/train/depth_scaling.h"  // depth_run

namespace {

constexpr int64_t kDefaultSteps = 2000;

// The largest micro-batch that divides a step's sequences per rank and fits in memory.
int64_t largest_batch(const RunFlags& flags, int64_t seq_len, int64_t world_size, const Fits& fits) {
    const int64_t total = flags.total_batch_size, per_sequence = seq_len * world_size;
    require(total > 0, "--batch-size auto divides --total-batch-size: give that, too");
    require(
        total % per_sequence == 0,
        "--total-batch-size %ld is no whole number of sequences of --seq-len %ld for each of %ld ranks: the nearest "
        "is %ld",
        total, seq_len, world_size, std::max(per_sequence, (total + per_sequence / 2) / per_sequence * per_sequence));
    const int64_t sequences = total / per_sequence;
    for (int64_t parts = 1; parts < sequences; parts++)
        if (sequences % parts == 0 && fits(step_config(flags, sequences / parts, seq_len, world_size)))
            return sequences / parts;
    return 1;  // if even that does not fit, the error about memory says what to do
}

DepthConfig depth_config_of(const RunFlags& flags, const GptShape& shape, int64_t world_size) {
    return {.depth = flags.model.depth,
            .aspect_ratio = flags.model.aspect_ratio,
            .head_size = flags.model.depth_head_size,
            .num_kv_heads = shape.kv_heads(),
            .seq_len = flags.seq_len(shape),
            .vocab_size = shape.vocab_size,
            .window_pattern = shape.architecture.windows,
            .param_data_ratio = flags.target_param_data_ratio > 0 ? flags.target_param_data_ratio : 12,
            .target_flops = flags.target_flops,
            .steps = flags.steps.value_or(0),
            .total_batch_size = flags.total_batch_size,
            .batch_size = 1,
            .world_size = world_size,
            .weight_decay = flags.chosen_recipe().rules.muon.weight_decay};
}

// The length of a run that nobody asked for by its steps, and where it is from.
struct Length {
    int64_t steps;
    const char* source;
    std::string derivation;
};

Length length_of(const RunFlags& flags, const GptShape& shape, const StepConfig& step) {
    const ParameterList list(shape);
    const auto tokens = double(step.tokens_of_all());
    if (flags.target_flops > 0) {
        const double step_flops = flops_per_token(list, step.T) * tokens;
        const int64_t steps = std::llround(flags.target_flops / step_flops);
        require(steps > 0, "--target-flops %g is less than half a step: the nearest that works is %.4g, one step",
                flags.target_flops, step_flops);
        return {steps, "--target-flops",
                format("steps: %ld = --target-flops %g / (%.4g FLOPs per token x %.0f tokens per step)\n", steps,
                       flags.target_flops, step_flops / tokens, tokens)};
    }
    if (flags.target_param_data_ratio > 0) {
        const auto N = double(matmul_parameters(list));
        const auto steps = int64_t(flags.target_param_data_ratio * N / tokens);
        require(steps > 0, "--target-param-data-ratio %g gives no step of %.0f tokens: it takes more than %.4g",
                flags.target_param_data_ratio, tokens, tokens / N);
        return {steps, "--target-param-data-ratio",
                format("steps: %ld = --target-param-data-ratio %g x %.0f parameters / %.0f tokens per step\n", steps,
                       flags.target_param_data_ratio, N, tokens)};
    }
    return {kDefaultSteps, "", ""};
}

}  // namespace

RunConfig::RunConfig(const Decision& decision, const GptShape& shape, int64_t world_size)
    : flags(decision.flags),
      shape(shape),
      step(step_config(flags, flags.batch_size.value(), flags.seq_len(shape), world_size)),
      steps(flags.steps.value()),
      scaling(decision.scaling),
      recipe(scaled(flags.chosen_recipe(), scaling)),
      schedule(recipe.schedule(steps)),
      derivation(decision.derivation) {}

Decision decide(const RunFlags& asked, const GptShape& shape, int64_t world_size, const Fits& fits) {
    Decision decision{.flags = asked, .derivation = ""};
    RunFlags& flags = decision.flags;
    const int64_t seq_len = flags.seq_len(shape);
    const bool by_depth = flags.model.depth > 0;
    if (flags.schedule_by == "auto") flags.schedule_by = flags.time_budget_s > 0 && !asked.steps ? "time" : "steps";
    if (flags.schedule_by == "time" && asked.schedule_by == "auto") flags.sources["schedule-by"] = "--time-budget";
    require(flags.document_token.value_or(0) < shape.vocab_size,
            "--document-token %d: the vocabulary has the tokens 0 to %ld", flags.document_token.value_or(0),
            shape.vocab_size - 1);
    if (by_depth) {
        if (flags.total_batch_size == 0) flags.sources["total-batch-size"] = "--depth";
        flags.total_batch_size = depth_run(depth_config_of(asked, shape, world_size)).batch;
    }
    if (flags.batch_size.value_or(by_depth ? 0 : kDefaultBatchSize) == 0) {
        flags.batch_size = int(largest_batch(flags, seq_len, world_size, fits));
        flags.sources["batch-size"] = "memory";
    }
    flags.batch_size = flags.batch_size.value_or(kDefaultBatchSize);
    const StepConfig step = step_config(flags, *flags.batch_size, seq_len, world_size);
    if (by_depth) {
        DepthConfig config = depth_config_of(asked, shape, world_size);
        config.batch_size = *flags.batch_size;
        DepthRun derived = depth_run(config);
        if (asked.steps == int64_t(0)) derived.steps = 0, derived.steps_were_asked = true;  // 0 leaves it open there
        if (!asked.steps) flags.sources["steps"] = "--depth";
        flags.steps = asked.steps.value_or(derived.steps);
        decision.scaling = derived.scaling;
        decision.derivation = text_of(derived);
    } else if (!asked.steps) {
        const Length length = length_of(flags, shape, step);
        flags.steps = length.steps;
        if (*length.source) flags.sources["steps"] = length.source;
        decision.derivation = length.derivation;
    }
    flags.validate();
    if (!by_depth) {
        decision.scaling = scaling_of(flags, step.tokens_of_all(), shape.channels);
        // The recipe's warm-up follows the steps, which are known now.
        if (decision.scaling.asked) decision.derivation += decision.scaling.text(flags.chosen_recipe()) + "\n";
    }
    return decision;
}

std::string text_of(const Decision& decision) {
    RunFlags flags = decision.flags;
    Scaling scaling = decision.scaling;
    const OrderedJson sent = {{"flags", parse_ordered_json(to_json(flags.fields()))},
                              {"sources", flags.sources},
                              {"scaling", parse_ordered_json(to_json(scaling.fields()))},
                              {"derivation", decision.derivation}};
    return json_text(sent);
}

Decision received(const std::string& text, const RunFlags& own) {
    const OrderedJson sent = parse_ordered_json(text);
    Decision decision{.flags = own, .derivation = sent.at("derivation")};
    std::vector<Field> shared;
    for (const Field& field : decision.flags.fields())
        if (!is_of_one_process(field)) shared.push_back(field);
    from_json(shared, json_text(sent.at("flags")), "what rank 0 decided");
    from_json(decision.scaling.fields(), json_text(sent.at("scaling")), "what rank 0 decided");
    decision.flags.sources = sent.at("sources");
    return decision;
}

int64_t grad_accumulation(const RunFlags& flags, int64_t batch_size, int64_t seq_len, int64_t world_size) {
    const int64_t B = batch_size, total_batch_size = flags.total_batch_size;
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
           (step.islands > 1 ? " x " + some(step.islands, "island", "islands") : "") + " = " +
           some(step.tokens_of_all(), "token", "tokens") + " per step";
}

ShardingOptions sharding_options(const RunFlags& flags, int world_size) {
    return {.world_size = world_size,
            .shards = flags.shard_ranks > 0 ? std::min(flags.shard_ranks, world_size) : 0,
            .whole_matrices = shards_whole_matrices(flags.chosen_recipe().rules),
            .bucket_elements = (flags.bucket_mb << 20) / int64_t(sizeof(float))};
}

StepConfig step_config(const RunFlags& flags, int64_t batch_size, int64_t seq_len, int64_t world_size) {
    const int64_t islands = std::max(1, flags.islands_of_run());
    return {.B = batch_size,
            .T = seq_len,
            .accumulation = grad_accumulation(flags, batch_size, seq_len, world_size),
            .grad_clip = flags.chosen_recipe().grad_clip,
            .world_size = world_size / islands,
            .tree_sum = flags.sum_order == "tree",
            .bf16_gradients = flags.grad_comm == "bf16",
            .gradient_sum = flags.gradient_sum(),
            .noise_scale = flags.noise_scale && world_size > islands,
            .dropout = flags.dropout,
            .dropout_seed = flags.seed,
            .graph = flags.cuda_graph,
            .islands = islands};
}

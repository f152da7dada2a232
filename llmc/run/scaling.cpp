// See scaling.h.
#include "llmc/run/scaling.h"
#include <algorithm>
#include <cmath>
#include "llmc/base/check.h"          // require, format
#include "llmc/base/integers.h"       // up_to_multiple, nearest_multiple, nearest_divisors
#include "llmc/model/architecture.h"  // find_architecture, layer_windows, kGateChannels, kSmearChannels
#include "llmc/model/flops.h"         // flops_per_token, matmul_parameters
#include "llmc/ops/attention.h"       // kMaxHeadSize

std::vector<Field> Scaling::fields() {
    return {{"", "asked", &asked, ""},
            {"", "batch", &batch, ""},
            {"", "reference-batch", &reference_batch, ""},
            {"", "tokens", &tokens, ""},
            {"", "reference-tokens", &reference_tokens, ""},
            {"", "channels", &channels, ""}};
}

double Scaling::learning_rate() const { return asked ? std::sqrt(double(batch) / double(reference_batch)) : 1; }

double Scaling::weight_decay() const {
    return asked ? learning_rate() * (double(reference_tokens) / double(tokens)) : 1;
}

double Scaling::width() const { return asked ? std::sqrt(768 / double(channels)) : 1; }

std::string Scaling::text(const Recipe& recipe) const {
    const Recipe now = scaled(recipe, *this);
    std::string rates, decays;
    const auto add = [](std::string& text, const std::string& name, double before, double after) {
        text += format("%s%s%g -> %g", text.empty() ? "" : ", ", name.c_str(), before, after);
    };
    const auto& groups = recipe.rules.groups;
    const bool one_rate = std::all_of(groups.begin(), groups.end(), [&](const GroupRule& rule) {
        return rule.learning_rate == groups[0].learning_rate;
    });
    bool by_width = false;
    for (size_t g = recipe.muon() ? 1 : 0; g < kNumParameterGroups; g++) {
        const GroupRule &before = groups[g], &after = now.rules.groups[g];
        const std::string name = one_rate ? "" : kParameterGroupNames[g] + std::string(" ");
        if (!one_rate || rates.empty()) add(rates, name, before.learning_rate, after.learning_rate);
        if (before.decay_by_length && before.weight_decay > 0 && decays.empty())
            add(decays, "", before.weight_decay, after.weight_decay);
        by_width |= before.by_width;
    }
    if (recipe.muon()) {
        add(rates, "muon's ", recipe.rules.muon_learning_rate, now.rules.muon_learning_rate);
        add(decays, "muon's ", recipe.rules.muon.weight_decay, now.rules.muon.weight_decay);
    }
    const std::string of_width =
        by_width ? format("; of embeddings and head also x %.4g = sqrt(768 / C), C = %ld", width(), channels) : "";
    return format(
        "learning rate: %s, x %.4g = sqrt(B / B_ref), B = %ld and B_ref = %ld tokens per step%s\n"
        "weight decay: %s, x %.4g = sqrt(B / B_ref) D_ref / D, D = %ld and D_ref = %ld tokens in all",
        rates.c_str(), learning_rate(), batch, reference_batch, of_width.c_str(), decays.c_str(), weight_decay(),
        tokens, reference_tokens);
}

Scaling scaling_of(const RunFlags& flags, int64_t tokens_per_step, int64_t channels) {
    // At least one step: a run of 0 steps would have 0 tokens.
    const int64_t tokens = std::max<int64_t>(1, flags.steps.value_or(0)) * tokens_per_step;
    return {.asked = flags.scale_hyperparameters || flags.chosen_recipe().always_scaled,
            .batch = tokens_per_step,
            .reference_batch = flags.reference_batch_size,
            .tokens = tokens,
            .reference_tokens = flags.reference_tokens > 0 ? flags.reference_tokens : tokens,
            .channels = channels};
}

Recipe scaled(const Recipe& recipe, const Scaling& scaling) {
    Recipe now = recipe;
    now.learning_rate *= scaling.learning_rate();
    for (GroupRule& rule : now.rules.groups) {
        if (rule.by_batch) rule.learning_rate *= scaling.learning_rate();
        if (rule.by_width) rule.learning_rate *= scaling.width();
        if (rule.decay_by_length) rule.weight_decay *= scaling.weight_decay();
    }
    now.rules.muon_learning_rate *= scaling.learning_rate();
    now.rules.muon.weight_decay *= scaling.weight_decay();
    return now;
}

namespace {

// Where nanochat's hyperparameters were tuned.
constexpr int64_t kReferenceDepth = 12, kReferenceBatch = int64_t(1) << 19;
constexpr double kBatchExponent = 0.383;

constexpr int64_t kHeadMultiple = 16;  // required by the kernels of rotary positions

int64_t channels_of(const DepthConfig& config) {
    return up_to_multiple(config.depth * config.aspect_ratio, config.head_size);
}

double tokens_of(double ratio, const DepthModel& model) { return std::floor(ratio * double(model.scaling_parameters)); }

// For a valid config.
DepthModel model_of(const DepthConfig& config) {
    const int64_t C = channels_of(config);
    GptShape shape{config.depth, C / config.head_size, C, config.seq_len, config.vocab_size, config.num_kv_heads};
    shape.architecture = find_architecture("nanochat");
    shape.architecture.windows = config.window_pattern;
    const ParameterList list(shape);
    DepthModel m{.depth = config.depth,
                 .channels = C,
                 .num_heads = shape.num_heads,
                 .num_kv_heads = shape.kv_heads(),
                 .head_size = config.head_size,
                 .seq_len = config.seq_len,
                 .vocab_size = config.vocab_size,
                 .windows = layer_windows(shape.architecture, config.depth, config.seq_len),
                 .value_embedding_layers = {},
                 .num_parameters = list.num_parameters,
                 .scaling_parameters = matmul_parameters(list),
                 .flops_per_token = flops_per_token(list, config.seq_len, AttentionFlops::unmasked)};
    for (int64_t layer = 0; layer < config.depth; layer++)
        m.value_embedding_layers.push_back(shape.has_value_embedding(layer));
    for (const Parameter& p : list) {
        using enum ParameterGroup;
        int64_t& sum = p.name.ends_with("ve_gate.weight") ? m.gates
                       : p.group == matrices              ? m.matrices
                       : p.group == embedding             ? m.embedding
                       : p.group == head                  ? m.head
                       : p.group == value_embeddings      ? m.value_embeddings
                                                          : m.scalars;
        sum += p.exported_rows * (p.size() / p.shape[0]);
    }
    return m;
}

std::string window_text(const std::vector<int64_t>& windows, int64_t seq_len) {
    int64_t full = 0, window = -1;
    for (const int64_t w : windows) full += w < 0, window = std::max(window, w);
    if (window < 0) return format("all %ld layers see all %ld tokens", full, seq_len);
    return format("%ld layers of the last %ld tokens, %ld of all %ld", int64_t(windows.size()) - full, window, full,
                  seq_len);
}

}  // namespace

int64_t steps_of(double target_flops, double step_flops) {
    const int64_t steps = std::llround(target_flops / step_flops);
    require(steps > 0, "--target-flops %g is less than half a step: the nearest that works is %.4g, one step",
            target_flops, step_flops);
    return steps;
}

DepthModel depth_model(const DepthConfig& config) {
    const int64_t d = config.depth, HS = config.head_size;
    require(d >= 1, "--depth %ld: a model has at least 1 layer", d);
    require(config.aspect_ratio >= 1, "aspect-ratio = %ld: expected at least 1 channel per layer, such as 64",
            config.aspect_ratio);
    require(HS >= kHeadMultiple && HS <= kMaxHeadSize && HS % kHeadMultiple == 0,
            "head-size = %ld: the kernels take multiples of %ld up to %ld: the nearest is %ld", HS, kHeadMultiple,
            kMaxHeadSize, std::min(nearest_multiple(HS, kHeadMultiple), kMaxHeadSize));
    require(config.seq_len > 1, "--seq-len %ld: smearing needs a token before the last one: give at least 2",
            config.seq_len);
    require(config.vocab_size >= 1, "--vocab-size %ld: expected at least 1", config.vocab_size);
    const int64_t C = channels_of(config), heads = C / HS, kv_heads = config.num_kv_heads;
    require(C >= kSmearChannels, "--depth %ld makes %ld channels, and gates read %ld: the nearest that works is %ld", d,
            C, kSmearChannels, (up_to_multiple(kSmearChannels, HS) - HS) / config.aspect_ratio + 1);

    require(kv_heads == 0 || (kv_heads > 0 && heads % kv_heads == 0),
            "--num-kv-heads %ld does not divide the %ld heads of --depth %ld; nearest: %s", kv_heads, heads, d,
            nearest_divisors(heads, kv_heads).c_str());
    return model_of(config);
}

DepthRun depth_run(const DepthConfig& config) {
    require(config.param_data_ratio > 0, "--target-param-data-ratio %g: expected tokens per parameter, such as 12",
            config.param_data_ratio);
    require(config.target_flops >= 0 && config.steps >= 0 && config.total_batch_size >= 0 && config.batch_size > 0 &&
                config.world_size > 0,
            "--target-flops %g, --steps %ld, --total-batch-size %ld, --batch-size %ld and %ld ranks: none may be "
            "negative, and the last two not 0",
            config.target_flops, config.steps, config.total_batch_size, config.batch_size, config.world_size);
    require(config.target_flops == 0 || config.steps == 0,
            "--target-flops %g and --steps %ld both end the run: give one", config.target_flops, config.steps);
    DepthConfig reference = config;
    reference.depth = kReferenceDepth, reference.num_kv_heads = 0;
    DepthRun run{.model = depth_model(config),
                 .param_data_ratio = config.param_data_ratio,
                 .batch = config.total_batch_size,
                 .steps = config.steps,
                 .accumulation = 0,
                 .batch_was_asked = config.total_batch_size > 0,
                 .scaling = {},
                 .weight_decay = 0,
                 .batch_size = config.batch_size,
                 .world_size = config.world_size,
                 .target_flops = config.target_flops,
                 .steps_were_asked = config.steps > 0};
    const double D = tokens_of(config.param_data_ratio, run.model);
    const double D_ref = tokens_of(config.param_data_ratio, model_of(reference));
    require(D >= 1 && D_ref >= 1, "--target-param-data-ratio %g leaves no token to learn from: raise it, to 1 say",
            config.param_data_ratio);
    if (run.batch == 0)
        run.batch = int64_t(
            std::exp2(std::nearbyint(std::log2(double(kReferenceBatch) * std::pow(D / D_ref, kBatchExponent)))));
    run.scaling = {.asked = true,
                   .batch = run.batch,
                   .reference_batch = kReferenceBatch,
                   .tokens = int64_t(D),
                   .reference_tokens = int64_t(D_ref),
                   .channels = run.model.channels};
    run.weight_decay = config.weight_decay * run.scaling.weight_decay();

    if (run.target_flops > 0) {
        run.steps = steps_of(run.target_flops, run.model.flops_per_token * double(run.batch));
    } else if (run.steps == 0) {
        run.steps = int64_t(D) / run.batch;
        // Rounded up in its last digit, because the printed number would be slightly too small otherwise.
        const double least = double(run.batch) / double(run.model.scaling_parameters);
        const double digit = std::pow(10, std::floor(std::log10(least)) - 3);
        require(run.steps > 0,
                "--target-param-data-ratio %g: %ld tokens are less than a step of %ld: the nearest that works is %.4g",
                config.param_data_ratio, int64_t(D), run.batch, (std::floor(least / digit) + 1) * digit);
    }

    const int64_t a_sequence_each = config.seq_len * config.world_size;
    require(run.batch % a_sequence_each == 0,
            "a step of %ld tokens is no whole number of sequences of --seq-len %ld for each of %ld ranks: the nearest "
            "--total-batch-size is %ld",
            run.batch, config.seq_len, config.world_size, nearest_multiple(run.batch, a_sequence_each));
    const int64_t sequences = run.batch / a_sequence_each;
    require(sequences % config.batch_size == 0,
            "--batch-size %ld does not divide the %ld sequences that each of %ld ranks has in a step of %ld tokens; "
            "nearest: %s",
            config.batch_size, sequences, config.world_size, run.batch,
            nearest_divisors(sequences, config.batch_size).c_str());
    run.accumulation = sequences / config.batch_size;
    return run;
}

std::string text_of(const DepthModel& m) {
    const int64_t with = std::count(m.value_embedding_layers.begin(), m.value_embedding_layers.end(), true);
    const int64_t KV = m.num_kv_heads * m.head_size;
    std::string text = format("depth: %ld layers\n", m.depth);
    text += format("channels: C = %ld, depth x aspect ratio up to a multiple of the head size %ld\n", m.channels,
                   m.head_size);
    text += format("heads: %ld = C / %ld, with %ld key and value heads\n", m.num_heads, m.head_size, m.num_kv_heads);
    text += format("windows: %s\n", window_text(m.windows, m.seq_len).c_str());
    text += format("value embeddings: in %ld layers, every second one and the last\n", with);
    text += format("matrices: %ld parameters = %ld (10 C^2 + 2 C x %ld)\n", m.matrices, m.depth, KV);
    text += format("gates: %ld = %ld x %ld x %ld\n", m.gates, with, m.num_kv_heads, kGateChannels);
    text += format("embedding and head: %ld each = V C, V = %ld\n", m.head, m.vocab_size);
    text += format("value embeddings: %ld = %ld V x %ld\n", m.value_embeddings, with, KV);
    text += format("scalars: %ld = 2 x %ld + %ld + 2\n", m.scalars, m.depth, kSmearChannels);
    text += format("parameters: %ld in all\n", m.num_parameters);
    text += format("N: %ld = matrices + gates + head\n", m.scaling_parameters);
    text += format(
        "FLOPs per token: %.4g = 6 N + 12 C x the keys of all layers (nanochat's count, for --target-flops; all other "
        "figures count the keys that causal attention sees)\n",
        m.flops_per_token);
    return text;
}

std::string text_of(const DepthRun& run) {
    const Scaling& s = run.scaling;
    std::string text = text_of(run.model);
    text += format("D: %ld tokens = %g N; D_ref = %ld, of depth %ld\n", s.tokens, run.param_data_ratio,
                   s.reference_tokens, kReferenceDepth);
    text += run.batch_was_asked ? format("batch: B = %ld tokens per step, as asked\n", run.batch)
                                : format("batch: B = %ld tokens per step = 2^round(log2(%ld (D / D_ref)^%g))\n",
                                         run.batch, s.reference_batch, kBatchExponent);
    text += format("learning rates: x %.4g = sqrt(B / %ld)\n", s.learning_rate(), s.reference_batch);
    text += format("learning rates of embeddings and head: also x %.4g = sqrt(768 / C)\n", s.width());
    text += format("weight decay: %.4g, x %.4g = sqrt(B / %ld) D_ref / D\n", run.weight_decay, s.weight_decay(),
                   s.reference_batch);
    text += run.target_flops > 0
                ? format("steps: %ld = round(%g / (FLOPs per token x B))\n", run.steps, run.target_flops)
            : run.steps_were_asked ? format("steps: %ld, as asked\n", run.steps)
                                   : format("steps: %ld = D / B, rounded down\n", run.steps);
    text += format("micro-batches: %ld a step = B / (%ld sequences x %ld tokens x %ld ranks)\n", run.accumulation,
                   run.batch_size, run.model.seq_len, run.world_size);
    return text;
}

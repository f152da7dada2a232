// See run_config.h.
#include "llmc/run/run_config.h"
#include <algorithm>
#include <cmath>
#include <set>
#include "llmc/base/check.h"          // require, format
#include "llmc/base/integers.h"       // nearest_divisors, nearest_multiple
#include "llmc/base/json.h"           // OrderedJson
#include "llmc/model/flops.h"         // flops_per_token, matmul_parameters
#include "llmc/optim/update_rules.h"  // shards_whole_matrices
#include "llmc/run/scaling.h"         // depth_run, steps_of

namespace {

constexpr int64_t kDefaultSteps = 2000;

// The sequences per rank and step that --batch-size auto divides into micro-batches.
int64_t divided_sequences(const RunFlags& flags, int64_t seq_len, int64_t world_size) {
    constexpr int64_t kMostEvaluated = 32;  // an evaluation has no step to divide, and gains no speed beyond this
    if (!flags.trains()) return kMostEvaluated;
    const int64_t per_sequence = seq_len * world_size, total = flags.total_batch_size;
    require(total > 0, "--batch-size auto divides --total-batch-size: give that, too");
    require(
        total % per_sequence == 0,
        "--total-batch-size %ld is no whole number of sequences of --seq-len %ld for each of %ld ranks: the nearest "
        "is %ld",
        total, seq_len, world_size, nearest_multiple(total, per_sequence));
    return total / per_sequence;
}

// The largest micro-batch up to `most` that divides them and fits in memory; 0: none does.
int64_t largest_batch(const RunFlags& flags, int64_t sequences, int64_t most, int64_t seq_len, int64_t world_size,
                      const Fits& fits) {
    for (int64_t parts = 1; parts <= sequences; parts++)
        if (const int64_t batch = sequences / parts;
            sequences % parts == 0 && batch <= most && fits(step_config(flags, batch, seq_len, world_size)))
            return batch;
    return 0;
}

// Chooses --batch-size and, if it was not given, --recompute. Recomputation makes room for larger micro-batches, whose
// GEMMs are faster, but it is work: which wins is predicted. Returns a line about it, if there was a choice.
// Without a prediction: the largest batch with the least recomputation with which one fits.
std::string choose_batch(RunFlags& flags, const GptShape& shape, int64_t world_size, const Fits& fits,
                         const Speed& speed) {
    const int64_t seq_len = flags.seq_len(shape), L = shape.num_layers;
    const int64_t sequences = divided_sequences(flags, seq_len, world_size);
    std::vector<std::string> ways = {flags.recompute};
    if (flags.trains() && flags.source_of("recompute").empty()) {
        ways = {"none", "norms"};
        for (const int64_t blocks : {L / 4, L / 2, L - L / 4})
            if (blocks > 0) ways.push_back("block:" + std::to_string(blocks));
        ways.push_back("block");
    }
    struct Choice {
        std::string recompute;
        int64_t batch;
        double tokens_per_s;
    };
    std::vector<Choice> choices;
    int64_t largest_so_far = 0;
    for (const std::string& way : ways) {
        RunFlags with = flags;
        with.recompute = way;
        const int64_t largest = largest_batch(with, sequences, sequences, seq_len, world_size, fits);
        if (largest <= largest_so_far) continue;  // more work for nothing
        largest_so_far = largest;
        if (!speed) {
            choices.push_back({way, largest, 0});
            break;
        }
        // A larger micro-batch is not always faster: its GEMMs may fill the SMs' last wave worse.
        for (const int64_t batch : {largest, largest_batch(with, sequences, largest - 1, seq_len, world_size, fits)}) {
            if (batch == 0) continue;
            with.batch_size = int(batch);
            choices.push_back({way, batch, speed(with)});
        }
    }
    if (choices.empty()) {
        flags.batch_size = 1;  // the error about memory says what to do
        flags.sources["batch-size"] = "memory";
        return "";
    }
    std::stable_sort(choices.begin(), choices.end(),
                     [](const Choice& a, const Choice& b) { return a.tokens_per_s > b.tokens_per_s; });
    const Choice& best = choices[0];
    const char* const source = best.tokens_per_s > 0 ? "the prediction" : "memory";
    flags.batch_size = int(best.batch), flags.sources["batch-size"] = source;
    if (best.recompute != flags.recompute) flags.recompute = best.recompute, flags.sources["recompute"] = source;
    if (best.tokens_per_s == 0 || choices.size() < 2) return "";
    std::string line = format("predicted, tokens/s: ");
    for (size_t i = 0; i < choices.size(); i++)
        line += format("%s--batch-size %ld --recompute %s %.4g", i ? ", " : "", choices[i].batch,
                       choices[i].recompute.c_str(), choices[i].tokens_per_s);
    return line + "\n";
}

// A resumed run keeps its tokens per step. Unless it is given a batch size, which is only about memory, it takes the
// largest one up to its former that divides them among the ranks. Returns a line about a change; "": there was none.
std::string fit_batch(RunFlags& flags, int64_t seq_len, int64_t world_size) {
    const auto is_of_checkpoint = [&](const char* name) { return flags.source_of(name) == "the checkpoint"; };
    const int64_t total = flags.total_batch_size, before = *flags.batch_size, sequences = total / seq_len / world_size;
    if (!is_of_checkpoint("total-batch-size") ||
        !(is_of_checkpoint("batch-size") || flags.source_of("batch-size").empty()))
        return "";
    if (total % (seq_len * world_size) != 0 || sequences % before == 0) return "";
    while (sequences % *flags.batch_size != 0) --*flags.batch_size;
    flags.sources["batch-size"] = "the tokens per step";
    return format("batch size: %d, not %ld, to keep the %ld tokens per step of the run, %ld for each of %ld %s\n",
                  *flags.batch_size, before, total, total / world_size, world_size, world_size == 1 ? "rank" : "ranks");
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

// A step with the given number of micro-batches on a rank; other ranks may have other numbers.
StepConfig step_of(const RunFlags& flags, int64_t batch_size, int64_t seq_len, int64_t accumulation,
                   int64_t world_size) {
    const int64_t islands = std::max(1, flags.islands_of_run());
    int64_t most = accumulation;
    for (const auto& [first, tokens] : flags.batches())
        most = std::max(most, tokens / (batch_size * seq_len * world_size));
    return {.B = batch_size,
            .T = seq_len,
            .accumulation = accumulation,
            .grad_clip = flags.chosen_recipe().grad_clip,
            .world_size = world_size / islands,
            .tree_sum = flags.tree_sum(),
            .bf16_gradients = flags.bf16_gradients(),
            .gradient_sum = flags.gradient_sum(),
            .zero_stage = flags.sums_in_bf16() ? 2 : flags.zero_stage,
            .bf16_sums = flags.sums_in_bf16(),
            .noise_scale = flags.noise_scale && (world_size > islands || most > 1),
            .dropout = flags.dropout,
            .dropout_seed = flags.seed,
            .graph = flags.cuda_graph,
            .recompute = flags.recomputation(),
            .most_accumulation = most,
            .islands = islands};
}
StepConfig step_of(const RunFlags& flags, const Shares& shares, int rank, int64_t seq_len) {
    const Share& own = shares[size_t(rank)];
    StepConfig step = step_of(flags, own.batch_size, seq_len, own.micro_batches, int64_t(shares.size()));
    step.step_sequences = sequences_of(shares), step.first_sequence = first_sequence(shares, rank);
    return step;
}

// The shares for batch sizes that differ between ranks. Throws an Error if they do not fit together.
void check_batch_sizes(const RunFlags& flags, const std::vector<int>& sizes) {
    const auto text = [](int size) { return size > 0 ? std::to_string(size) : size == 0 ? "auto" : "not given"; };
    for (size_t r = 1; r < sizes.size(); r++)
        require(
            sizes[r] == sizes[0] || (sizes[r] > 0 && sizes[0] > 0),
            "--batch-size is %s on rank 0, and %s on rank %zu: where it differs from rank to rank, give each a number",
            text(sizes[0]).c_str(), text(sizes[r]).c_str(), r);
    require(flags.total_batch_size > 0,
            "--batch-size differs from rank to rank: give --total-batch-size, too, the tokens of a step on any ranks");
    require(flags.balance_mode().kind != BalanceMode::Kind::automatic,
            "--balance auto moves micro-batches of one size, and --batch-size differs from rank to rank: give all the "
            "same, or --balance as numbers");
    require(
        !flags.noise_scale,
        "--noise-scale compares ranks with equal shares of a step, and --batch-size differs from rank to rank: leave "
        "one of them out");
}

// "1536 and 3072": the multiples of `unit` around the given value.
std::string nearest_totals(int64_t total, int64_t unit) {
    const int64_t below = total / unit * unit;
    return below > 0 ? format("the nearest are %ld and %ld", below, below + unit) : format("the nearest is %ld", unit);
}

// The shares of a step, from --balance and each rank's batch size.
Shares shares_of(const RunFlags& flags, const std::vector<int>& batch_sizes, int64_t seq_len) {
    const BalanceMode balance = flags.balance_mode();
    const int64_t ranks = int64_t(batch_sizes.size());
    Shares shares;
    for (const int size : batch_sizes) shares.push_back({size, 1});
    const auto total_of = [&] { return sequences_of(shares) * seq_len; };
    const int64_t total = flags.total_batch_size, one_each = total_of();
    const bool of_one_size = are_equal(shares);
    if (balance.kind == BalanceMode::Kind::listed) {
        require(int64_t(balance.micro_batches.size()) == ranks, "--balance %s is of %zu ranks, and there are %ld",
                flags.balance.c_str(), balance.micro_batches.size(), ranks);
        for (size_t r = 0; r < shares.size(); r++) shares[r].micro_batches = balance.micro_batches[r];
        require(total == 0 || total_of() == total,
                "--balance %s is a step of %ld tokens, and --total-batch-size is %ld: change one of them",
                flags.balance.c_str(), total_of(), total);
    } else if (balance.is_equal()) {  // then sizes differ
        require(total % one_each == 0,
                "--total-batch-size %ld is not a multiple of a micro-batch of each rank, of %ld tokens together "
                "(--batch-size %s): %s",
                total, one_each, list_text({batch_sizes.begin(), batch_sizes.end()}).c_str(),
                nearest_totals(total, one_each).c_str());
        for (Share& share : shares) share.micro_batches = total / one_each;
    } else {
        const int64_t micro_batch = batch_sizes[0] * seq_len;
        require(of_one_size, "--balance %s is of micro-batches of one size: give all ranks the same --batch-size",
                flags.balance.c_str());
        require(total % micro_batch == 0,
                "--total-batch-size %ld is not a multiple of --batch-size %d x --seq-len %ld = %ld tokens: %s", total,
                batch_sizes[0], seq_len, micro_batch, nearest_totals(total, micro_batch).c_str());
        const int64_t all = total == 0 ? ranks : total / micro_batch;
        require(all >= ranks,
                "--balance %s: a step has %ld micro-batches, and each of %ld ranks needs one: lower --batch-size, or "
                "raise --total-batch-size to %ld",
                flags.balance.c_str(), all, ranks, ranks * micro_batch);
        for (int64_t r = 0; r < ranks; r++) shares[size_t(r)].micro_batches = all / ranks + (r < all % ranks);
    }
    return shares;
}

// RunConfig::stages. Throws an Error if a micro-batch of every rank does not divide a step.
std::vector<std::pair<int64_t, StepConfig>> stages_of(const RunFlags& flags, const StepConfig& step) {
    if (!flags.grows()) return {};
    const NumbersByStep batches = flags.batches(), lengths = flags.lengths();
    require(step.step_sequences == 0,
            "batch-growth and length-growth: all ranks have equal shares of a step: leave them out, or give --balance "
            "equal and all ranks the same --batch-size");
    std::set<int64_t> begins = {0};
    for (const NumbersByStep* numbers : {&batches, &lengths})
        for (const auto& [first, number] : *numbers) begins.insert(first);
    std::vector<std::pair<int64_t, StepConfig>> stages;
    for (const int64_t first : begins) {
        const int64_t tokens = number_at(batches, first, step.tokens_of_all()), T = number_at(lengths, first, step.T);
        const int64_t unit = step.tokens_of_all() / step.accumulation;
        require(
            tokens % unit == 0,
            "batch-growth = %s: %ld tokens are not a multiple of a micro-batch of each rank, of %ld tokens together "
            "(--batch-size %ld): %s",
            flags.batch_growth.c_str(), tokens, unit, step.B, nearest_totals(tokens, unit).c_str());
        require(step.T % T == 0, "length-growth = %s: %ld does not divide --seq-len %ld: the nearest that do are %s",
                flags.length_growth.c_str(), T, step.T, nearest_divisors(step.T, T).c_str());
        StepConfig how = step;
        how.accumulation = tokens / unit, how.T = T, how.B = step.B * (step.T / T);
        stages.push_back({first, how});
    }
    return stages;
}

// The length of a run without --steps, and its source.
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
        const int64_t steps = steps_of(flags.target_flops, step_flops);
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

RunConfig::RunConfig(const Decision& decision, const GptShape& shape, int64_t world_size, int rank)
    : flags(decision.flags),
      shape(shape),
      step(decision.shares.empty() ? step_config(flags, flags.batch_size.value(), flags.seq_len(shape), world_size)
                                   : step_of(flags, decision.shares, rank, flags.seq_len(shape))),
      stages(stages_of(flags, step)),
      shares(decision.shares.empty() ? equal_shares(world_size, {step.B, step.accumulation}) : decision.shares),
      steps(flags.steps.value()),
      scaling(decision.scaling),
      recipe(scaled(flags.chosen_recipe(), scaling)),
      schedule(recipe.schedule(steps)),
      derivation(decision.derivation) {
    ensure(int64_t(shares.size()) == world_size);
    flags.batch_size = int(step.B);
}

Decision decide(const RunFlags& asked, const GptShape& shape, int64_t world_size, const Fits& fits,
                const std::vector<int>& batch_sizes, const Speed& speed) {
    Decision decision{.flags = asked, .derivation = ""};
    RunFlags& flags = decision.flags;
    const int64_t seq_len = flags.seq_len(shape);
    const bool by_depth = flags.model.depth > 0 && flags.trains();
    const bool sizes_differ =
        std::any_of(batch_sizes.begin(), batch_sizes.end(), [&](int size) { return size != batch_sizes[0]; });
    if (!flags.trains() && !sizes_differ) flags.total_batch_size = 0;  // an evaluation makes no step
    const BalanceMode balance = flags.balance_mode();
    const bool is_shared =
        sizes_differ || balance.kind == BalanceMode::Kind::listed || (balance.moves() && world_size > 1);
    if (sizes_differ) check_batch_sizes(flags, batch_sizes);
    if (is_shared && flags.trains()) {
        // Not to leave the flag out: it may come from the checkpoint.
        const char* const equal =
            sizes_differ ? "give --balance equal and all the same --batch-size" : "give --balance equal";
        require(flags.islands_of_run() == 0,
                "--islands: ranks of an island have equal shares of a step: leave it out (--islands 0), or %s", equal);
        require(flags.data_order != "llmc",
                "--data-order llmc: all ranks have as many batches of one size: leave it out, or %s", equal);
        require(flags.zero_stage == 1 && !flags.sums_in_bf16(),
                "%s sums gradients after each micro-batch, of which all ranks need as many: leave it out, or %s",
                flags.zero_stage == 1 ? "--memory lean" : "--zero-stage 2", equal);
    }
    require(
        !flags.grows() || asked.steps || (!by_depth && flags.target_flops == 0 && flags.target_param_data_ratio == 0),
        "batch-growth and length-growth: a run's length follows from steps that are all alike only: give --steps");
    if (const NumbersByStep batches = flags.batches(); !batches.empty() && batches[0].first == 0) {
        const int64_t total = flags.total_batch_size;
        require(!by_depth && (total == 0 || total == batches[0].second ||
                              flags.source_of("total-batch-size") == "the checkpoint"),
                "batch-growth = %s has a batch for step 0, and so has --%s: leave it out of the list",
                flags.batch_growth.c_str(), by_depth ? "depth" : "total-batch-size");
        flags.total_batch_size = batches[0].second, flags.sources["total-batch-size"] = "batch-growth";
    }
    const int64_t dividing = is_shared ? 1 : world_size;  // the number of ranks that must have equally many sequences
    if (flags.schedule_by == "auto") flags.schedule_by = flags.time_budget_s > 0 && !asked.steps ? "time" : "steps";
    if (flags.schedule_by == "time" && asked.schedule_by == "auto") flags.sources["schedule-by"] = "--time-budget";
    require(flags.document_token.value_or(0) < shape.vocab_size,
            "--document-token %d: the vocabulary has the tokens 0 to %ld", flags.document_token.value_or(0),
            shape.vocab_size - 1);
    if (by_depth) {
        if (flags.total_batch_size == 0) flags.sources["total-batch-size"] = "--depth";
        flags.total_batch_size = depth_run(depth_config_of(asked, shape, dividing)).batch;
    }
    const bool fills_memory = by_depth || (flags.model.model != "custom" && flags.total_batch_size > 0 && !is_shared);
    const int default_batch_size = fills_memory ? 0 : kDefaultBatchSize;
    std::string chosen;  // about the batch size
    require(!is_shared || flags.batch_size.value_or(default_batch_size) != 0,
            "--batch-size auto (with --depth the default) fills each rank with one micro-batch, and --balance %s moves "
            "micro-batches: give a number, so small that a rank has several",
            flags.balance.c_str());
    if (flags.batch_size.value_or(default_batch_size) == 0) {
        chosen = choose_batch(flags, shape, world_size, fits, speed);
    }
    flags.batch_size = flags.batch_size.value_or(kDefaultBatchSize);
    const std::string fitted = is_shared || !flags.trains() ? "" : fit_batch(flags, seq_len, world_size);
    if (is_shared)
        decision.shares = shares_of(
            flags, sizes_differ ? batch_sizes : std::vector<int>(size_t(world_size), *flags.batch_size), seq_len);
    const StepConfig step = is_shared ? step_of(flags, decision.shares, 0, seq_len)
                                      : step_config(flags, *flags.batch_size, seq_len, world_size);
    const auto stages = stages_of(flags, step);
    // A run that has the flag from a checkpoint continues without it.
    require(!flags.noise_scale || step.noise_scale || flags.sources["noise-scale"] == "the checkpoint",
            "--noise-scale compares the parts of a step, and this step is one micro-batch of one rank: give a smaller "
            "--batch-size, a larger --total-batch-size or more ranks, or leave it out");
    if (by_depth) {
        DepthConfig config = depth_config_of(asked, shape, dividing);
        config.batch_size = sizes_differ ? 1 : *flags.batch_size;
        DepthRun derived = depth_run(config);
        if (asked.steps == int64_t(0)) derived.steps = 0, derived.steps_were_asked = true;  // 0 means not given there
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
        // A recipe's own law of width gives the rates at muP's base width, from which muP goes on.
        Scaling& scaling = decision.scaling =
            scaling_of(flags, step.tokens_of_all(), shape.mup_base_width > 0 ? shape.mup_base_width : shape.channels);
        if (!stages.empty()) {
            RunConfig config;
            config.step = step, config.stages = stages;
            scaling.tokens = std::max(scaling.batch, int64_t(config.tokens_of(flags.steps.value_or(0))));
            if (flags.reference_tokens == 0) scaling.reference_tokens = scaling.tokens;
        }
        // The recipe's warm-up depends on the number of steps, which is known now.
        if (decision.scaling.asked) decision.derivation += decision.scaling.text(flags.chosen_recipe()) + "\n";
    }
    if (const double mup = shape.mup(); mup != 1 && flags.trains())
        decision.derivation += format(
            "muP: standard at %ld channels, here %ld: learning rate of %slm_head x %.4g, deviation of matrices x "
            "%.4g\n",
            shape.mup_base_width, shape.channels, flags.chosen_recipe().muon() ? "" : "matrices and ", mup,
            std::sqrt(mup));
    decision.derivation = chosen + fitted + decision.derivation;
    return decision;
}

std::string text_of(const Decision& decision) {
    RunFlags flags = decision.flags;
    Scaling scaling = decision.scaling;
    std::vector<int64_t> batch_sizes;
    for (const Share& share : decision.shares) batch_sizes.push_back(share.batch_size);
    const OrderedJson sent = {{"flags", parse_ordered_json(to_json(flags.fields()))},
                              {"sources", flags.sources},
                              {"scaling", parse_ordered_json(to_json(scaling.fields()))},
                              {"derivation", decision.derivation},
                              {"batch_sizes", batch_sizes},
                              {"micro_batches", micro_batches_of(decision.shares)}};
    return json_text(sent);
}

Decision received(const std::string& text, const RunFlags& own) {
    const OrderedJson sent = parse_ordered_json(text);
    Decision decision{.flags = own, .derivation = sent.at("derivation")};
    std::vector<Field> shared;
    for (const Field& field : decision.flags.fields())  // with the decided --batch-size; unequal ones are in `shares`
        if (!is_of_one_process(field) || std::string(field.name) == "batch-size") shared.push_back(field);
    from_json(shared, json_text(sent.at("flags")), "what rank 0 decided");
    from_json(decision.scaling.fields(), json_text(sent.at("scaling")), "what rank 0 decided");
    decision.flags.sources = sent.at("sources");
    const std::vector<int64_t> batch_sizes = sent.at("batch_sizes"), micro_batches = sent.at("micro_batches");
    ensure(batch_sizes.size() == micro_batches.size());
    for (size_t r = 0; r < batch_sizes.size(); r++) decision.shares.push_back({batch_sizes[r], micro_batches[r]});
    return decision;
}

int64_t grad_accumulation(const RunFlags& flags, int64_t batch_size, int64_t seq_len, int64_t world_size) {
    const int64_t B = batch_size, total_batch_size = flags.total_batch_size;
    const int64_t per_sequence = seq_len * world_size, micro_batches = B * per_sequence;  // one per rank
    if (total_batch_size == 0) return 1;
    if (total_batch_size % micro_batches == 0) return total_batch_size / micro_batches;

    std::string advice = nearest_totals(total_batch_size, micro_batches);
    if (total_batch_size % per_sequence == 0)
        advice += "; or --batch-size " + nearest_divisors(total_batch_size / per_sequence, B);
    if (world_size > 1 && total_batch_size % (B * seq_len) == 0 && total_batch_size / (B * seq_len) > world_size &&
        flags.may_balance())
        advice += "; or --balance auto, on CPUs";
    const std::string ranks = world_size > 1 ? format(" x %ld ranks", world_size) : "";
    const bool is_of_run = flags.source_of("total-batch-size") == "the checkpoint";
    throw Error(
        kExitUsage,
        format("--total-batch-size %ld%s is not a multiple of --batch-size %ld x --seq-len %ld%s = %ld tokens: %s",
               total_batch_size, is_of_run ? ", the tokens per step of the resumed run," : "", B, seq_len,
               ranks.c_str(), micro_batches, advice.c_str()));
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

std::string batch_text(const RunConfig& config) {
    if (are_equal(config.shares)) {
        std::string text = batch_text(config.step_at(0));
        for (const auto& [first, how] : config.stages)
            if (first > 0) text += format("; from step %ld on ", first) + batch_text(how);
        return text;
    }
    return text_of(config.shares, config.step.T) + format(" = %ld tokens per step", config.step.num_tokens());
}

ShardingOptions sharding_options(const RunFlags& flags, int world_size) {
    return {.world_size = world_size,
            .shards = flags.shard_ranks > 0 ? std::min(flags.shard_ranks, world_size) : 0,
            .whole_matrices = shards_whole_matrices(flags.chosen_recipe().rules),
            .bucket_elements = (flags.bucket_mb << 20) / int64_t(sizeof(float)),
            .piece_elements = flags.stage_elements()};
}

StepConfig step_config(const RunFlags& flags, int64_t batch_size, int64_t seq_len, int64_t world_size) {
    return step_of(flags, batch_size, seq_len, grad_accumulation(flags, batch_size, seq_len, world_size), world_size);
}

// See resolve.h.
#include "llmc/train/resolve.h"
#include <cmath>
#include "llmc/base/check.h"        // require, format
#include "llmc/model/parameters.h"  // ParameterList, flops_per_token
#include "llmc/train/dial.h"        // dial_run

namespace {

constexpr int64_t kDefaultSteps = 2000;

// N of the tokens for each parameter: matrices and head, no embeddings, as for --depth.
double scaling_parameters(const ParameterList& list) {
    double sum = 0;
    for (const Parameter& p : list) {
        const bool is_head = p.group == ParameterGroup::head ||
                             (p.group == ParameterGroup::embedding && list.model.architecture.tied_head);
        if (p.group == ParameterGroup::matrices || is_head)
            sum += double(p.exported_rows) * double(p.size() / p.shape[0]);
    }
    return sum;
}

// The largest micro-batch that divides a step's sequences, of which each rank has so many.
int64_t largest_batch(TrainConfig config, int64_t seq_len, int64_t world_size, const Fits& fits) {
    require(config.total_batch_size > 0, "--batch-size auto divides --total-batch-size: give that, too");
    const int64_t each = seq_len * world_size;
    require(
        config.total_batch_size % each == 0,
        "--total-batch-size %ld is no whole number of sequences of --seq-len %ld for each of %ld ranks: the nearest "
        "is %ld",
        config.total_batch_size, seq_len, world_size,
        std::max(each, (config.total_batch_size + each / 2) / each * each));
    const int64_t sequences = config.total_batch_size / each;
    for (int64_t parts = 1; parts <= sequences; parts++) {
        if (sequences % parts != 0) continue;
        config.batch_size = int(sequences / parts);
        if (fits(config.step(seq_len, world_size))) break;
    }
    return config.batch_size;  // 1 if nothing fits: the error about memory says what to do
}

Dial dial_of(const TrainConfig& config, const GptShape& shape, int64_t world_size) {
    return {.depth = config.model.depth,
            .aspect_ratio = config.model.aspect_ratio,
            .head_size = config.model.dial_head_size,
            .num_kv_heads = shape.kv_heads(),
            .seq_len = config.seq_len(shape),
            .vocab_size = shape.vocab_size,
            .window_pattern = shape.architecture.windows,
            .param_data_ratio = config.target_param_data_ratio > 0 ? config.target_param_data_ratio : 12,
            .target_flops = config.target_flops,
            .steps = std::max<int64_t>(0, config.steps),
            .total_batch_size = config.total_batch_size,
            .batch_size = 1,
            .world_size = world_size,
            .weight_decay = config.chosen_recipe().rules.muon.weight_decay};
}

}  // namespace

ResolvedRun resolve(const TrainConfig& asked, const GptShape& shape, int64_t world_size, const Fits& fits) {
    ResolvedRun run{.config = asked, .recipe = {}, .text = ""};
    TrainConfig& config = run.config;
    const int64_t seq_len = config.seq_len(shape);
    const bool dialed = config.model.depth > 0;
    require(config.document_token < shape.vocab_size, "--document-token %d: the vocabulary has the tokens 0 to %ld",
            config.document_token, shape.vocab_size - 1);
    Dial dial;
    if (dialed) {
        dial = dial_of(config, shape, world_size);
        config.total_batch_size = dial_run(dial).batch;
    }
    if (config.batch_size == 0 || (config.batch_size < 0 && dialed))
        config.batch_size = int(largest_batch(config, seq_len, world_size, fits));
    else if (config.batch_size < 0)
        config.batch_size = kDefaultBatchSize;

    const StepConfig step = config.step(seq_len, world_size);
    if (dialed) {
        dial.batch_size = config.batch_size;
        DialedRun dialed_run = dial_run(dial);
        if (config.steps == 0) dialed_run.steps = 0, dialed_run.steps_were_asked = true;  // 0 leaves it open there
        if (config.steps < 0) config.steps = dialed_run.steps;
        run.scaling = dialed_run.scaling;
        run.text = text_of(dialed_run);
    } else if (config.steps < 0) {
        const ParameterList list(shape);
        const auto tokens = double(step.num_tokens());
        config.steps = kDefaultSteps;
        if (config.target_flops > 0) {
            const double step_flops = flops_per_token(list, seq_len) * tokens;
            config.steps = std::llround(config.target_flops / step_flops);
            run.text = format("steps: %ld = --target-flops %g / (%.4g FLOPs a token x %.0f tokens a step)\n",
                              config.steps, config.target_flops, step_flops / tokens, tokens);
            require(config.steps > 0,
                    "--target-flops %g is less than half a step: the nearest that works is %.4g, one step",
                    config.target_flops, step_flops);
        } else if (config.target_param_data_ratio > 0) {
            const double N = scaling_parameters(list);
            config.steps = int64_t(config.target_param_data_ratio * N / tokens);
            run.text = format("steps: %ld = --target-param-data-ratio %g x %.0f parameters / %.0f tokens a step\n",
                              config.steps, config.target_param_data_ratio, N, tokens);
            require(config.steps > 0,
                    "--target-param-data-ratio %g gives no step of %.0f tokens: it takes more than %.4g",
                    config.target_param_data_ratio, tokens, tokens / N);
        }
    }
    config.validate();
    run.recipe = config.chosen_recipe();  // whose warm-up follows the steps
    if (!dialed) run.scaling = scaling_of(config, step.num_tokens(), shape.channels);
    if (!dialed && run.scaling.asked) run.text += run.scaling.text(run.recipe) + "\n";
    run.recipe = scaled(run.recipe, run.scaling);
    return run;
}

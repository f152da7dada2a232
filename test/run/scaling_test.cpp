// Batch arithmetic, and hyperparameters scaled to another batch size: against values worked out by hand, and against
// those of nanochat, whose models have d layers and 64 d channels and train on 12 tokens per parameter.
#include "llmc/run/scaling.h"
#include "llmc/run/run_config.h"  // grad_accumulation, step_config
#include "test/testing.h"

static RunFlags flags_of(int64_t total_batch_size) {
    RunFlags flags;
    flags.total_batch_size = total_batch_size;
    return flags;
}
static int64_t accumulation(int64_t batch_size, int64_t total_batch_size, int64_t seq_len, int64_t world_size) {
    return grad_accumulation(flags_of(total_batch_size), batch_size, seq_len, world_size);
}

TEST_CASE("scaling: micro-batches of each rank in a step", "[scaling]") {
    CHECK(accumulation(16, 0, 1024, 8) == 1);
    CHECK(accumulation(16, 524288, 1024, 1) == 32);
    CHECK(accumulation(16, 524288, 1024, 8) == 4);
    CHECK(accumulation(64, 524288, 1024, 8) == 1);
    CHECK(accumulation(12, 491520, 1024, 8) == 5);
    CHECK(accumulation(16, 1 << 20, 2048, 8) == 4);
    CHECK(batch_text(step_config(flags_of(491520), 12, 1024, 8)) ==
          "12 sequences x 1024 tokens x 5 micro-batches x 8 ranks = 491520 tokens per step");
    CHECK(batch_text(step_config(flags_of(1), 1, 1, 1)) ==
          "1 sequence x 1 token x 1 micro-batch x 1 rank = 1 token per step");
}

TEST_CASE("scaling: a batch that does not divide, and what would", "[scaling]") {
    const auto error = [](int batch_size, int64_t total, int64_t seq_len, int64_t world) {
        return error_of([&] { accumulation(batch_size, total, seq_len, world); });
    };
    // 512 sequences over 8 ranks are 64 for each, which 8 and 16 divide, and 12 does not.
    CHECK(
        error(12, 524288, 1024, 8) ==
        "2: --total-batch-size 524288 is not a multiple of --batch-size 12 x --seq-len 1024 x 8 ranks = 98304 tokens: "
        "the nearest are 491520 and 589824; or --batch-size 8 and 16");
    // Less than one micro-batch of each rank: 32 sequences each at most.
    CHECK(
        error(48, 262144, 1024, 8) ==
        "2: --total-batch-size 262144 is not a multiple of --batch-size 48 x --seq-len 1024 x 8 ranks = 393216 tokens: "
        "the nearest is 393216; or --batch-size 32");
    // 500000 / 1024 is no whole number: no batch size helps.
    CHECK(error(16, 500000, 1024, 1) ==
          "2: --total-batch-size 500000 is not a multiple of --batch-size 16 x --seq-len 1024 = 16384 tokens: "
          "the nearest are 491520 and 507904");
    // 7 sequences: 1 and 7.
    CHECK(contains(error(2, 7 * 64, 64, 1), "the nearest are 384 and 512; or --batch-size 1 and 7"));
    // The suggested values work.
    for (const int offered : {8, 16}) CHECK(accumulation(offered, 524288, 1024, 8) > 0);
    for (const int64_t offered : {491520, 589824}) CHECK(accumulation(12, offered, 1024, 8) > 0);
}

TEST_CASE("scaling: learning rate by the root of the batch, weight decay by a constant T_epoch", "[scaling]") {
    struct Case {
        int64_t batch;
        double scaling_params;  // nanochat's, in millions: D = 12 of these
        double learning_rate, weight_decay, digit;
    };
    const double reference = 110.100480e6 * 12;
    for (const Case& c : {Case{1 << 18, 41.94, 0.7071, 0.5197, 1e-4}, Case{1 << 19, 110.1, 1, 0.28, 1e-4},
                          Case{1 << 20, 435.16, 1.414, 0.1002, 1e-3}, Case{1 << 20, 729.81, 1.41421, 0.0597, 1e-4},
                          Case{1 << 21, 1677.7, 2, 0.0368, 1e-4}}) {
        RunFlags config;
        config.scale_hyperparameters = true;
        config.learning_rate = 1, config.muon_learning_rate = 3;
        config.weight_decay = 0.28, config.muon_weight_decay = 0.56;
        config.reference_tokens = int64_t(reference);
        const auto steps = int64_t(c.scaling_params * 12e6 / double(c.batch));
        config.steps = steps;
        INFO(c.batch << " tokens per step, " << steps << " steps");
        const Recipe before = config.chosen_recipe(), now = scaled(before, scaling_of(config, c.batch, 768));
        // The values were printed with so many digits, parameters with two or one, and tokens are of whole steps.
        const double rounding = c.digit / 2 + c.weight_decay * (1 / double(steps) + 0.05 / c.scaling_params);
        CHECK(std::fabs(now.learning_rate - c.learning_rate) <= 5e-4);
        CHECK(std::fabs(now.rule(ParameterGroup::embedding).weight_decay - c.weight_decay) <= rounding);
        CHECK(now.rule(ParameterGroup::positions).learning_rate == now.learning_rate);
        CHECK(now.rules.muon_learning_rate == Approx(3 * now.learning_rate));
        CHECK(now.rules.muon.weight_decay == Approx(2 * now.rule(ParameterGroup::embedding).weight_decay));
        // T_epoch = B / (eta lambda D), as it was.
        const auto t_epoch = [](double B, const Recipe& with, double D) {
            return B / (with.learning_rate * with.rule(ParameterGroup::embedding).weight_decay * D);
        };
        CHECK(t_epoch(double(c.batch), now, double(steps * c.batch)) ==
              Approx(t_epoch(524288, before, double(config.reference_tokens))));
    }
}

TEST_CASE("scaling: what is not asked, and what is not said", "[scaling]") {
    RunFlags config;
    config.steps = 100;
    const Recipe plain = config.chosen_recipe();
    CHECK(scaled(plain, scaling_of(config, 1 << 17, 64)).table() == plain.table());
    // Without reference tokens, the length of this run: weight decay follows the batch alone.
    config.scale_hyperparameters = true;
    const Scaling scaling = scaling_of(config, 1 << 17, 64);
    CHECK(scaling.learning_rate() == 0.5);
    CHECK(scaling.weight_decay() == 0.5);
    CHECK(scaling.text(config.chosen_recipe()) ==
          "learning rate: 0.001 -> 0.0005, x 0.5 = sqrt(B / B_ref), B = 131072 and B_ref = 524288 tokens per step\n"
          "weight decay: 0.1 -> 0.05, x 0.5 = sqrt(B / B_ref) D_ref / D, D = 13107200 and D_ref = 13107200 tokens in "
          "all");
    config.optimizer = "muon", config.reference_tokens = 2 * 13107200;
    CHECK(contains(scaling_of(config, 1 << 17, 64).text(config.chosen_recipe()),
                   "0.1 -> 0.1, muon's 0.1 -> 0.1, x 1 = "));
    CHECK(contains(scaling_of(config, 1 << 17, 64).text(config.chosen_recipe()),
                   "0.001 -> 0.0005, muon's 0.02 -> 0.01, x 0.5 = "));
    config.steps = 0;
    CHECK(scaling_of(config, 1 << 17, 64).weight_decay() > 0);
}

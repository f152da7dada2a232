// The values that follow from flags, model and ranks together: batch, length, learning rates.
#include "llmc/run/run_config.h"
#include "llmc/model/flops.h"
#include "test/testing.h"

static const Fits kAlways = [](const StepConfig&) { return true; };

static RunFlags of_depth(int depth) {
    RunFlags config;
    config.model.depth = depth;
    return config;
}
static RunConfig resolve(const RunFlags& flags, const GptShape& shape, int64_t world_size, const Fits& fits) {
    return {decide(flags, shape, world_size, fits), shape, world_size};
}
static RunConfig resolved(const RunFlags& config, int64_t world_size = 1, const Fits& fits = kAlways) {
    return resolve(config, config.model.shape(32768), world_size, fits);
}

TEST_CASE("steps that grow are the run's from their steps on", "[run_config]") {
    RunFlags flags;
    flags.model.seq_len = 64, flags.batch_size = 4, flags.total_batch_size = 1024;
    CHECK(resolved(flags, 2).stages.empty());
    flags.batch_growth = "10:2048", flags.length_growth = "0:16, 20:64", flags.steps = 100;
    const RunConfig run = resolved(flags, 2);
    const auto is = [](const StepConfig& how, int64_t B, int64_t T, int64_t accumulation) {
        return how.B == B && how.T == T && how.accumulation == accumulation && how.most_accumulation == 4;
    };
    CHECK(is(run.step, 4, 64, 2));
    CHECK(is(run.step_at(0), 16, 16, 2));
    CHECK(is(run.step_at(9), 16, 16, 2));
    CHECK(is(run.step_at(10), 16, 16, 4));
    CHECK(is(run.step_at(20), 4, 64, 4));
    CHECK(run.tokens_of(0) == 0);
    CHECK(run.tokens_of(10) == 10 * 1024);
    CHECK(run.tokens_of(100) == 10 * 1024 + 90 * 2048);
    CHECK(batch_text(run) ==
          "16 sequences x 16 tokens x 2 micro-batches x 2 ranks = 1024 tokens per step; from step 10 on 16 sequences x "
          "16 tokens x 4 micro-batches x 2 ranks = 2048 tokens per step; from step 20 on 4 sequences x 64 tokens x 4 "
          "micro-batches x 2 ranks = 2048 tokens per step");
    // Weight decay is scaled by the run's tokens, and rates by the first steps'.
    flags.scale_hyperparameters = true, flags.reference_batch_size = 1024, flags.reference_tokens = 1024;
    CHECK(resolved(flags, 2).scaling.learning_rate() == 1);
    CHECK(resolved(flags, 2).scaling.weight_decay() == Approx(1. / (10 + 90 * 2)));
    // Nothing grows where nothing is trained.
    flags.command = Command::eval;
    CHECK(resolved(flags, 2).stages.empty());
}

TEST_CASE("a depth makes a whole run, and any flag overrides a part of it", "[run_config]") {
    const RunConfig run = resolved(of_depth(12), 8);
    CHECK(run.flags.total_batch_size == 524288);
    CHECK(run.steps == 2520);  // nano_model.md's table: 12 tokens for each parameter
    CHECK(run.step.B == 32);
    CHECK(run.step.accumulation == 1);
    CHECK(std::string(run.recipe.name) == "nanochat");
    CHECK(run.recipe.muon());
    CHECK(run.recipe.rules.muon.weight_decay == Approx(0.28));
    CHECK(contains(run.derivation, "steps: 2520 = D / B"));

    RunFlags asked = of_depth(12);
    asked.target_param_data_ratio = 8;
    asked.batch_size = 4;
    CHECK(resolved(asked, 8).steps == 1680);  // two thirds
    CHECK(resolved(asked, 8).step.B == 4);
    CHECK(resolved(asked, 8).step.accumulation == 8);
    asked.steps = 100, asked.warmup_steps = 10;
    CHECK(resolved(asked, 8).steps == 100);
    asked.total_batch_size = 1 << 18;
    CHECK(resolved(asked, 8).flags.total_batch_size == 1 << 18);
    asked.recipe = "stage-a";
    CHECK(std::string(resolved(asked, 8).recipe.name) == "stage-a");

    // d24 of the speedrun: batch and rates are those of the ratio, whatever ends the run.
    RunFlags deep = of_depth(24);
    deep.target_param_data_ratio = 8;
    const RunConfig d24 = resolved(deep, 8);
    CHECK(d24.flags.total_batch_size == 1 << 20);
    CHECK(d24.steps == 5568);
    CHECK(d24.recipe.rules.muon_learning_rate == Approx(0.02 * std::sqrt(2.)));
}

TEST_CASE("the largest batch that divides a step's sequences and fits", "[run_config]") {
    RunFlags config;
    config.model.model = "gpt2-124M";
    config.batch_size = 0;
    config.total_batch_size = 96 * 1024;
    const auto up_to = [](int64_t B) { return [B](const StepConfig& step) { return step.B <= B; }; };
    const auto batch = [&](int64_t most, int64_t ranks) {
        return resolve(config, config.model.shape(0), ranks, up_to(most)).step.B;
    };
    CHECK(batch(1000, 1) == 96);
    CHECK(batch(95, 1) == 48);
    CHECK(batch(20, 1) == 16);
    CHECK(batch(7, 1) == 6);
    CHECK(batch(0, 1) == 1);
    CHECK(batch(20, 4) == 12);
    CHECK(contains(error_of([&] { batch(20, 5); }), "--total-batch-size 98304 is no whole number of sequences"));
    config.total_batch_size = 0;
    CHECK(contains(error_of([&] { batch(20, 1); }), "--batch-size auto divides --total-batch-size: give that, too"));
}

TEST_CASE("batch and recomputation are those that are predicted to be fastest", "[run_config]") {
    RunFlags config;
    config.model.model = "gpt2-124M";  // 12 blocks
    config.batch_size = 0, config.total_batch_size = 96 * 1024;
    const GptShape shape = config.model.shape(0);
    // Each block that recomputes makes room for a sequence more, norms for two.
    const auto fits = [](const StepConfig& step) {
        const int64_t blocks =
            step.recompute.what == Recompute::block ? std::min<int64_t>(12, step.recompute.blocks) : 0;
        return step.B <= 4 + blocks + (step.recompute.what == Recompute::norms ? 2 : 0);
    };
    std::vector<std::string> asked;
    const auto decided = [&](auto speed) {
        asked.clear();
        return decide(config, shape, 1, fits, {}, [&](const RunFlags& with) {
            asked.push_back(std::to_string(*with.batch_size) + " " + with.recompute);
            return double(speed(with));
        });
    };
    // The larger the better.
    const Decision large = decided([](const RunFlags& with) { return *with.batch_size; });
    CHECK(large.flags.batch_size == 16);
    CHECK(large.flags.recompute == "block");
    CHECK(large.flags.source_of("recompute") == "the prediction");
    // What recomputes more is asked about only if larger batches fit.
    CHECK(asked == std::vector<std::string>{"4 none", "3 none", "6 norms", "4 norms", "8 block:6", "6 block:6",
                                            "12 block:9", "8 block:9", "16 block", "12 block"});
    CHECK(contains(large.derivation, "predicted, tokens/s: --batch-size 16 --recompute block 16, "));
    // Recomputing is no worth.
    const Decision none = decided([](const RunFlags& with) { return with.recompute == "none" ? *with.batch_size : 1; });
    CHECK(none.flags.batch_size == 4);
    CHECK(none.flags.recompute == "none");
    CHECK(none.flags.source_of("recompute").empty());
    // What was asked for stays.
    config.recompute = "block:3", config.sources["recompute"] = "the command line";
    CHECK(decided([](const RunFlags& with) { return *with.batch_size; }).flags.batch_size == 6);
    CHECK(asked == std::vector<std::string>{"6 block:3", "4 block:3"});
    // Nobody predicts: the least with which a batch fits.
    config.recompute = "none", config.sources.erase("recompute");
    const Decision blind = decide(config, shape, 1, [](const StepConfig& step) {
        return step.recompute.what == Recompute::block && step.recompute.blocks >= 6 && step.B <= 2;
    });
    CHECK(blind.flags.batch_size == 2);
    CHECK(blind.flags.recompute == "block:6");
    CHECK(blind.flags.source_of("recompute") == "memory");
}

TEST_CASE("a run ends after so many steps, tokens for each parameter, or FLOPs", "[run_config]") {
    RunFlags config;
    config.model.model = "gpt2-124M";
    config.total_batch_size = 524288, config.batch_size = 8;
    const GptShape shape = config.model.shape(0);
    const auto steps = [&] { return resolve(config, shape, 1, kAlways).steps; };
    CHECK(steps() == 2000);
    config.target_flops = 1e18;
    CHECK(steps() == std::llround(1e18 / (flops_per_token(ParameterList(shape), 1024) * 524288)));
    config.target_flops = 1e12;
    CHECK(contains(error_of(steps), "--target-flops 1e+12 is less than half a step: the nearest that works is"));
    config.target_flops = 0, config.target_param_data_ratio = 20;
    CHECK(steps() == int64_t(20. * (84934656 + 50257 * 768) / 524288));
    config.target_param_data_ratio = 0.001;
    CHECK(contains(error_of(steps), "--target-param-data-ratio 0.001 gives no step of 524288 tokens"));
    config.target_flops = 1e18;
    CHECK(contains(error_of(steps), "both say how long to train: give one"));
    config.target_flops = config.target_param_data_ratio = 0, config.steps = 7, config.warmup_steps = 2;
    CHECK(steps() == 7);
    config.document_token = 50257;
    CHECK(contains(error_of(steps), "--document-token 50257: the vocabulary has the tokens 0 to 50256"));
}

TEST_CASE("the warm-up that nobody gave fits the run, and one that was given stays", "[run_config]") {
    RunFlags config;
    config.model.model = "gpt2-124M";
    const auto warmup = [&](std::optional<int64_t> steps) {
        config.steps = steps;
        return resolve(config, config.model.shape(0), 1, kAlways).recipe.warmup_steps;
    };
    CHECK(warmup(0) == 0);
    CHECK(warmup(5) == 0);
    CHECK(warmup(50) == 5);
    CHECK(warmup(999) == 99);
    for (const int64_t steps : {1000, 20000}) CHECK(warmup(steps) == 100);
    CHECK(warmup({}) == 100);
    config.warmup_steps = 6;
    CHECK(warmup(6) == 6);
    CHECK(contains(error_of([&] { warmup(5); }), "--warmup-steps 6 is more than --steps 5"));

    RunFlags derived = of_depth(12);
    CHECK(resolved(derived).recipe.warmup_steps == 40);
    derived.steps = 5;
    CHECK(resolved(derived).recipe.warmup_steps == 0);
    // Also where the scaling law gives fewer steps than the recipe's warm-up has.
    derived.steps.reset(), derived.target_param_data_ratio = 0.1;
    CHECK(resolved(derived).steps == 21);
    CHECK(resolved(derived).recipe.warmup_steps == 2);
}

TEST_CASE("in muP a recipe's own law of width is for the base width", "[run_config]") {
    RunFlags config;
    config.recipe = "nanochat", config.steps = 10;
    config.model.channels = 256, config.model.mup_base_width = 192;
    const RunConfig run = resolved(config);
    CHECK(contains(run.derivation, "of embeddings and head also x 2 = sqrt(768 / C), C = 192\n"));
    CHECK(contains(run.derivation,
                   "muP: standard at 192 channels, here 256: learning rate of lm_head x 0.75, "
                   "deviation of matrices x 0.866\n"));
    config.model.mup_base_width = 256;
    CHECK_FALSE(contains(resolved(config).derivation, "muP"));
}

TEST_CASE("a depth without steps says so", "[run_config]") {
    RunFlags config = of_depth(12);
    config.steps = 0;
    const RunConfig run = resolved(config);
    CHECK(run.steps == 0);
    CHECK(contains(run.derivation, "\nsteps: 0, as asked\n"));
}

TEST_CASE("what rank 0 has decided is the same on the others, but for what is theirs", "[run_config]") {
    RunFlags flags = of_depth(12);
    flags.learning_rate.reset(), flags.prompt = "a \"b\"\n", flags.threads = 3, flags.launch.rank = 0;
    flags.sources["seed"] = "the command line";
    const GptShape shape = flags.model.shape(32768);
    const Decision decision = decide(flags, shape, 8, kAlways);
    CHECK(decision.flags.sources == std::map<std::string, std::string>{{"seed", "the command line"},
                                                                       {"total-batch-size", "--depth"},
                                                                       {"steps", "--depth"},
                                                                       {"batch-size", "memory"}});
    RunFlags own = flags;
    own.threads = 7, own.launch.rank = 5, own.seed = 0;
    const Decision there = received(text_of(decision), own);
    CHECK((there.flags.threads == 7 && there.flags.launch.rank == 5 && there.flags.seed == flags.seed));
    CHECK(there.flags.sources == decision.flags.sources);
    RunConfig here(decision, shape, 8), over_there(there, shape, 8);
    over_there.flags.threads = 3, over_there.flags.launch.rank = 0;
    CHECK(to_json(over_there.flags.fields()) == to_json(here.flags.fields()));
    CHECK(over_there.recipe.table() == here.recipe.table());
    CHECK((over_there.steps == here.steps && over_there.step.B == here.step.B));
    CHECK(over_there.derivation == here.derivation);
}

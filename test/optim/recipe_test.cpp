// Recipes: the values of their sources, at the borders of their schedules, and changes by flags.
#include "llmc/optim/recipe.h"
#include "llmc/run/scaling.h"
#include "test/testing.h"

namespace {

using enum ParameterGroup;

// A handful of roundings in double.
void check_near(double got, double want) { CHECK(std::fabs(got - want) <= 8 * 0x1p-52 * std::fabs(want)); }

}  // namespace

TEST_CASE("gpt2: one learning rate for all, exactly the schedule's, and Muon's in proportion", "[recipe]") {
    for (const double learning_rate : {1e-3, 3e-4, 0.0123}) {
        RunFlags config;
        config.learning_rate = learning_rate, config.optimizer = "muon", config.warmup_steps = 7, config.steps = 50;
        const Recipe recipe = config.chosen_recipe();
        const Schedule schedule{
            .kind = "cosine", .max = learning_rate, .min = learning_rate * 0.1, .warmup_steps = 7, .steps = 50};
        for (int64_t step = 0; step <= 50; step++) {
            const Rates rates = recipe.rates(step, 50);
            const double now = ::learning_rate(schedule, step);
            for (const double rate : rates.groups) CHECK(rate == now);
            CHECK(rates.muon == 0.02 * (now / learning_rate));
            CHECK(rates.muon_momentum == 0.95);
            CHECK(rates.muon_weight_decay == 0.1);
        }
    }
    const Recipe recipe = find_recipe("gpt2");
    CHECK(!recipe.muon());
    CHECK(!recipe.always_scaled);
    CHECK(recipe.grad_clip == 1);
    for (size_t g = 0; g < kNumParameterGroups; g++) {
        const GroupRule& rule = recipe.rules.groups[g];
        const bool decays = g <= size_t(value_embeddings);
        CHECK((rule.learning_rate == 1e-3 && rule.beta1 == 0.9 && rule.beta2 == 0.95 && rule.eps == 1e-8));
        CHECK(rule.weight_decay == (decays ? 0.1 : 0));
    }
    CHECK(kParameterGroupNames[size_t(value_embeddings)] == std::string("value-embeddings"));
    CHECK(kParameterGroupNames[size_t(smear)] == std::string("smear"));
}

TEST_CASE("nanochat: rates, betas and decays of each group", "[recipe]") {
    struct Row {
        ParameterGroup group;
        double learning_rate, beta1, beta2, weight_decay;
        bool by_batch, by_width;
    };
    const Recipe recipe = find_recipe("nanochat");
    for (const Row& row :
         {Row{head, 0.008, 0.8, 0.96, 0.01, true, true}, Row{embedding, 0.3, 0.8, 0.995, 0.001, true, true},
          Row{value_embeddings, 0.15, 0.8, 0.995, 0.01, true, true},
          Row{resid_lambdas, 0.005, 0.8, 0.95, 0.05, true, false}, Row{x0_lambdas, 0.5, 0.96, 0.95, 0, true, false},
          Row{smear, 0.2, 0.8, 0.95, 0, false, false}}) {
        const GroupRule& rule = recipe.rule(row.group);
        INFO(kParameterGroupNames[size_t(row.group)]);
        CHECK(rule.learning_rate == Approx(row.learning_rate).epsilon(1e-15));
        CHECK((rule.beta1 == row.beta1 && rule.beta2 == row.beta2 && rule.eps == 1e-10));
        CHECK(rule.weight_decay == row.weight_decay);
        CHECK((rule.by_batch == row.by_batch && rule.by_width == row.by_width));
        CHECK(!rule.decay_by_length);
    }
    CHECK(recipe.muon());
    CHECK(recipe.grad_clip == 0);
    CHECK(recipe.rules.muon_learning_rate == 0.02);
    CHECK(
        (recipe.rules.muon.beta2 == 0.9 && recipe.rules.muon.weight_decay == 0.28 && recipe.rules.muon.margin == 1.01));
    CHECK((recipe.rules.muon.equal_rows && recipe.rules.muon.fixed_norm && recipe.rules.muon.second_moment &&
           recipe.rules.muon.cautious));

    // Four times the batch, 4 / 3 of the width, as many tokens.
    RunFlags config;
    config.recipe = "nanochat", config.steps = 100, config.reference_tokens = 100 * (int64_t(1) << 21);
    const Scaling scaling = scaling_of(config, int64_t(1) << 21, 1024);
    const Recipe now = scaled(recipe, scaling);
    check_near(now.rule(head).learning_rate, 0.008 * 2 * std::sqrt(0.75));
    check_near(now.rule(embedding).learning_rate, 0.3 * 2 * std::sqrt(0.75));
    check_near(now.rule(value_embeddings).learning_rate, 0.15 * 2 * std::sqrt(0.75));
    check_near(now.rule(resid_lambdas).learning_rate, 0.01);
    check_near(now.rule(x0_lambdas).learning_rate, 1);
    check_near(now.rule(smear).learning_rate, 0.2);
    check_near(now.rules.muon_learning_rate, 0.04);
    check_near(now.rules.muon.weight_decay, 0.56);
    CHECK(now.rule(head).weight_decay == 0.01);
    // A group keeps its proportion to the schedule, scaled or not.
    for (size_t g = 0; g < kNumParameterGroups; g++)
        check_near(now.rates(3, 100).groups[g], now.rules.groups[g].learning_rate * 4 / 40);
    check_near(now.rates(3, 100).muon, 0.04 * 4 / 40);
    INFO(scaling.text(recipe));
    CHECK(contains(scaling.text(recipe), "learning rate: embedding 0.3 -> 0.519615, "));
    CHECK(contains(scaling.text(recipe), "smear 0.2 -> 0.2, muon's 0.02 -> 0.04, x 2 = sqrt(B / B_ref)"));
    CHECK(contains(scaling.text(recipe), "of embeddings and head also x 0.866 = sqrt(768 / C), C = 1024\n"));
    CHECK(contains(scaling.text(recipe), "weight decay: muon's 0.28 -> 0.56, x 2 = "));
}

TEST_CASE("nanochat: schedules", "[recipe]") {
    const Recipe recipe = find_recipe("nanochat");
    const auto part = [&](int64_t step, int64_t steps) {
        return recipe.rates(step, steps).groups[size_t(x0_lambdas)] / 0.5;
    };
    check_near(part(0, 1000), 0.025);
    check_near(part(39, 1000), 1);
    check_near(part(40, 1000), 1);
    check_near(part(350, 1000), 1);
    check_near(part(351, 1000), 649. / 650 + 1. / 650 * 0.05);
    check_near(part(675, 1000), 0.525);
    check_near(part(1000, 1000), 0.05);
    // 0.65 x 110 = 71.5 goes to 72 and 0.65 x 130 = 84.5 to 84, which is even.
    check_near(part(84, 110), 1 - 0.95 * 46 / 72);
    check_near(part(108, 130), 1 - 0.95 * 62 / 84);

    const auto momentum = [&](int64_t step, int64_t steps) { return recipe.rates(step, steps).muon_momentum; };
    check_near(momentum(0, 5000), 0.85);
    check_near(momentum(100, 5000), 0.88);
    check_near(momentum(399, 5000), 0.85 + 0.12 * 399 / 400);
    CHECK(momentum(400, 5000) == 0.97);
    CHECK(momentum(1750, 5000) == 0.97);
    check_near(momentum(1750 + 325, 5000), 0.963);
    check_near(momentum(5000, 5000), 0.9);
    // The rise comes before the fall: of a short run, the part that is left.
    check_near(momentum(399, 1000), 0.85 + 0.12 * 399 / 400);
    check_near(momentum(400, 1000), 0.97 - 0.07 * 50 / 650);

    const auto decay = [&](int64_t step) { return recipe.rates(step, 1000).muon_weight_decay; };
    CHECK(decay(0) == 0.28);
    check_near(decay(250), 0.28 * (0.5 + std::sqrt(0.125)));
    check_near(decay(500), 0.14);
    CHECK(decay(1000) == 0);
    CHECK(decay(1001) == 0);
    CHECK(std::isfinite(recipe.rates(0, 0).muon_momentum));
}

TEST_CASE("record: stage-a, with what doc/recipes.md keeps", "[recipe]") {
    Recipe recipe = find_recipe("record");
    MuonConfig& muon = recipe.rules.muon;
    CHECK((std::exchange(muon.equal_rows, false) && std::exchange(muon.second_moment, false)));
    CHECK(recipe.table() == find_recipe("stage-a").table());
}

TEST_CASE("stage-a: plain Muon, AdamW, flat and then down to zero", "[recipe]") {
    const Recipe recipe = find_recipe("stage-a");
    for (size_t g = 0; g < kNumParameterGroups; g++) {
        const GroupRule& rule = recipe.rules.groups[g];
        CHECK((rule.beta1 == 0.8 && rule.beta2 == 0.95 && rule.eps == 1e-10 && rule.weight_decay == 0.001));
    }
    CHECK(recipe.rule(embedding).learning_rate == 0.7);
    CHECK(recipe.rule(head).learning_rate == 0.004);
    CHECK(recipe.rule(vectors).learning_rate == 0.015);
    CHECK((recipe.muon() && recipe.grad_clip == 0 && !recipe.always_scaled));
    CHECK(recipe.rules.muon_learning_rate == 0.025);
    CHECK((recipe.rules.muon.weight_decay == 0.05 && recipe.rules.muon.margin == 1.02));
    CHECK(!(recipe.rules.muon.equal_rows || recipe.rules.muon.fixed_norm || recipe.rules.muon.second_moment ||
            recipe.rules.muon.cautious || recipe.rules.muon.shaped_decay));
    const auto muon = [&](int64_t step) { return recipe.rates(step, 3250); };
    CHECK(muon(0).muon == 0.025);
    CHECK(muon(975).muon == 0.025);  // 30% of 3250
    check_near(muon(976).muon, 0.025 * 2274 / 2275);
    check_near(muon(3249).muon, 0.025 / 2275);
    CHECK(muon(3250).muon == 0);
    for (const int64_t step : {0, 975, 3250}) {
        CHECK(muon(step).muon_momentum == 0.95);
        CHECK(muon(step).muon_weight_decay == 0.05);
    }
}

TEST_CASE("flags change parts of a recipe, and -1 none", "[recipe]") {
    for (const std::string& name : recipe_names()) {
        INFO(name);
        RunFlags config;
        config.recipe = name;
        const Recipe plain = find_recipe(name), same = config.chosen_recipe();
        CHECK(same.table() == plain.table());
        CHECK((same.grad_clip == plain.grad_clip && same.warmup_steps == plain.warmup_steps));
        CHECK((same.final_fraction == plain.final_fraction && same.decay_fraction == plain.decay_fraction));
        CHECK((same.schedule_kind == plain.schedule_kind && same.cosine_muon_decay == plain.cosine_muon_decay));

        config.embedding_learning_rate = 0.25, config.unembedding_learning_rate = 0.125;
        config.scalar_learning_rate = 1, config.beta1 = 0.5, config.beta2 = 0.25, config.adam_eps = 0.125;
        config.weight_decay = 0.75, config.lr_schedule = "linear", config.warmup_steps = 0;
        config.final_lr_fraction = 0, config.decay_fraction = 0.5, config.grad_clip = 0;
        config.muon_learning_rate = 0.5, config.muon_weight_decay = 0.25, config.muon_beta2 = 0.125;
        config.muon_momentum_start = 0.25, config.muon_momentum_end = 0.5, config.muon_momentum_warmup_steps = 3;
        config.muon_momentum = 0.75, config.muon_coefficients = "quintic", config.muon_iterations = 7;
        config.muon_weight_decay_schedule = plain.cosine_muon_decay ? "constant" : "cosine";
        const Recipe r = config.chosen_recipe();
        CHECK(r.rule(embedding).learning_rate == 0.25);
        for (const ParameterGroup follower : {positions, value_embeddings})
            check_near(r.rule(follower).learning_rate / 0.25,
                       plain.rule(follower).learning_rate / plain.rule(embedding).learning_rate);
        CHECK(r.rule(head).learning_rate == 0.125);
        CHECK(r.rule(x0_lambdas).learning_rate == 1);
        for (const ParameterGroup follower : {resid_lambdas, vectors})
            check_near(r.rule(follower).learning_rate,
                       plain.rule(follower).learning_rate / plain.rule(x0_lambdas).learning_rate);
        CHECK(r.rule(smear).learning_rate == plain.rule(smear).learning_rate);
        CHECK(r.rule(matrices).learning_rate == plain.rule(matrices).learning_rate);
        for (size_t g = 0; g < kNumParameterGroups; g++) {
            const GroupRule& rule = r.rules.groups[g];
            CHECK((rule.beta1 == 0.5 && rule.beta2 == 0.25 && rule.eps == 0.125));
            CHECK(rule.weight_decay == (plain.rules.groups[g].weight_decay > 0 ? 0.75 : 0));
        }
        const Schedule schedule = r.schedule(50);
        CHECK((schedule.kind == "linear" && schedule.min == 0 && schedule.max == plain.learning_rate));
        CHECK((schedule.warmup_steps == 0 && schedule.decay_fraction == 0.5 && schedule.steps == 50));
        CHECK(r.grad_clip == 0);
        CHECK((r.rules.muon_learning_rate == 0.5 && r.rules.muon.weight_decay == 0.25 && r.rules.muon.beta2 == 0.125));
        CHECK((r.momentum.start == 0.25 && r.momentum.peak == 0.75 && r.momentum.end == 0.5));
        CHECK(r.momentum.warmup_steps == 3);
        CHECK(r.cosine_muon_decay != plain.cosine_muon_decay);
        CHECK(r.rules.muon.newton_schulz.iterations == 7);
        CHECK(r.rules.muon.newton_schulz.coefficients[0].a == NewtonSchulzOptions::quintic(7).coefficients[0].a);
    }
    // Flags add parts to a recipe, and remove them.
    for (const std::string name : {"nanochat", "stage-a"}) {
        const MuonConfig had = find_recipe(name).rules.muon;
        RunFlags config;
        config.recipe = name;
        const MuonConfig kept = config.chosen_recipe().rules.muon;
        CHECK((kept.equal_rows == had.equal_rows && kept.fixed_norm == had.fixed_norm));
        CHECK((kept.second_moment == had.second_moment && kept.cautious == had.cautious));
        config.muon_equal_rows = "false";
        CHECK((!config.chosen_recipe().rules.muon.equal_rows &&
               config.chosen_recipe().rules.muon.cautious == had.cautious));
        config.muon_fixed_norm = "false";
        CHECK(!config.chosen_recipe().rules.muon.fixed_norm);
        config.muon_second_moment = "false";
        CHECK(!config.chosen_recipe().rules.muon.second_moment);
        config.muon_cautious = "false";
        CHECK(!config.chosen_recipe().rules.muon.cautious);
        config.muon_equal_rows = config.muon_cautious = "true";
        CHECK((config.chosen_recipe().rules.muon.equal_rows && config.chosen_recipe().rules.muon.cautious));
    }
    RunFlags control;
    CHECK(control.chosen_recipe().rules.muon.norms == MuonNorms::none);
    for (const auto& [name, norms] : {std::pair{"hyperball", MuonNorms::hyperball},
                                      {"floor", MuonNorms::floor},
                                      {"row-floor", MuonNorms::row_floor}}) {
        control.muon_norms = name, control.muon_floor = 0.5, control.muon_radius = 2;
        const MuonConfig muon = control.chosen_recipe().rules.muon;
        CHECK((muon.norms == norms && muon.floor == 0.5 && muon.radius == 2));
    }
    // A constant momentum stays constant.
    RunFlags config;
    config.muon_momentum = 0.5, config.muon_momentum_warmup_steps = 10;
    CHECK(config.chosen_recipe().rates(0, 100).muon_momentum == 0.5);
    CHECK(config.chosen_recipe().rates(100, 100).muon_momentum == 0.5);
    config.recipe = "nanochat";
    CHECK(config.chosen_recipe().rates(0, 100).muon_momentum == 0.85);
    CHECK(!RunFlags().chosen_recipe().muon());
    config.optimizer = "muon", config.recipe = "gpt2";
    CHECK(config.chosen_recipe().muon());
}

TEST_CASE("averages over the last steps: a copy, a mean, and then a time constant", "[recipe]") {
    RunFlags config;
    CHECK(!config.chosen_recipe().averages(99, 100));
    CHECK(!config.chosen_recipe().rules.averages);
    config.tail_average = 0.25, config.tail_average_memory = 0.2;
    const Recipe recipe = config.chosen_recipe();
    CHECK(recipe.rules.averages);
    CHECK((!recipe.averages(74, 100) && recipe.averages(75, 100) && recipe.averages(100, 100)));
    CHECK((recipe.average_rate(0, 100) == 1 && recipe.average_rate(1, 100) == 0.5));
    CHECK((recipe.average_rate(4, 100) == 0.2 && recipe.average_rate(24, 100) == 0.2));
    CHECK(recipe.average_rate(7, 4) == 1);  // one step, of which a fifth is remembered
    config.memory = "lean";
    CHECK(contains(error_of([&] { config.validate(); }), "2: tail-average: the average is of fp32 weights"));
}

TEST_CASE("what a recipe cannot be told", "[recipe]") {
    const auto error = [](const std::function<void(RunFlags&)>& change) {
        RunFlags config;
        config.recipe = "nanochat";
        change(config);
        return error_of([&] { config.validate(); });
    };
    CHECK(contains(error([](RunFlags& c) { c.optimizer = "adamw"; }),
                   "2: --recipe nanochat has no AdamW for the matrices: leave --optimizer adamw out"));
    CHECK(optimizer_names() == std::vector<std::string>{"recipe", "adamw", "muon"});
    CHECK(contains(error([](RunFlags& c) { c.learning_rate = 1; }),
                   "2: --recipe nanochat has a learning rate for each group: instead of --learning-rate give "));
    CHECK(contains(error([](RunFlags& c) { c.steps = 20, c.warmup_steps = 40; }),
                   "--warmup-steps 40 is more than --steps 20"));
    CHECK(
        contains(error([](RunFlags& c) { c.decay_fraction = 0; }), "--lr-schedule trapezoid needs a --decay-fraction"));
    CHECK(contains(
        error([](RunFlags& c) { c.decay_fraction = 0.99, c.steps = 2000; }),
        "--lr-schedule trapezoid: --warmup-steps 40 and the last --decay-fraction 0.99 of --steps 2000 overlap"));
    CHECK(contains(error([](RunFlags& c) { c.recipe = "gpt2", c.learning_rate = 0; }),
                   "--learning-rate 0 learns nothing"));
}

TEST_CASE("a recipe as a table", "[recipe]") {
    const std::string nanochat = find_recipe("nanochat").table(), gpt2 = find_recipe("gpt2").table(true);
    INFO(nanochat << gpt2);
    CHECK(nanochat.starts_with(
        "learning rate: trapezoid, 40 steps of warm-up, down in the last 0.65 of all steps, to 0.05 of the largest; "
        "gradients not clipped; Muon's momentum from 0.85 to 0.97 in 400 steps, then with the rate "
        "to "
        "0.9; Muon's weight decay to 0 as a cosine\n  group "));
    CHECK(contains(nanochat,
                   "  matrices          Muon             0.02    0.97, 0.9                   0.28\n"
                   "  embedding         AdamW             0.3   0.8, 0.995    1e-10         0.001\n"));
    CHECK(
        gpt2.starts_with("learning rate: cosine, 100 steps of warm-up, to 0.1 of the largest; gradients clipped to a "
                         "norm of 1\n\n| group | rule |"));
    CHECK(contains(gpt2,
                   "|---|---|---|---|---|---|\n| matrices | if Muon | 0.02 | 0.95, 0.9 |  | 0.1 |\n"
                   "| matrices, embedding, positions, head, value-embeddings | AdamW | 0.001 | 0.9, 0.95 | 1e-08 | 0.1 "
                   "|\n| vectors, resid-lambdas, x0-lambdas, smear | AdamW | 0.001 | 0.9, 0.95 | 1e-08 | 0 |\n"));
    CHECK(contains(find_recipe("stage-a").table(true),
                   "| matrices | Muon | 0.025 | 0.95 |  | 0.05 |\n| embedding, positions |"));
}

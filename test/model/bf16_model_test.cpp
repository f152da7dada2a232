// Whole models in bf16 on the CPU: against fp32, at any number of threads, and their optimizer's master weights.
#include "llmc/optim/optimizer.h"
#include "llmc/optim/recipe.h"  // find_recipe
#include "test/cpu/software_tiles.h"
#include "test/model/bf16_models.h"

TEST_CASE("a bf16 model's loss and gradients are those of fp32 but for roundings", "[bf16_model]") {
    Cpu cpu;
    check_bf16_model(cpu);
}

TEST_CASE("every architecture's loss and gradients in bf16 are those of fp32 but for roundings", "[bf16_model]") {
    Cpu cpu;
    check_bf16_architectures(cpu);
}

// The order of sums is another one in tiles; the roundings that are counted are the same.
TEST_CASE("a bf16 model's loss and gradients in tiles are those of fp32 but for roundings", "[bf16_model]") {
    const UsedTiles software(software_tiles());
    if (!tile_kernel()) return;
    Cpu cpu;
    check_bf16_model(cpu);
}

TEST_CASE("a step's first products in bf16 write their gradients, in registers and in tiles", "[bf16_model]") {
    Cpu cpu;
    const auto check = [&] {
        check_gradients_begin_anew<bf16>(cpu, ParameterList(kBf16Shape), kBf16B, kBf16T, Recompute::none);
        check_gradients_begin_anew<bf16>(cpu, ParameterList(bf16_shape("nanochat")), kB16, kT16, Recompute::block);
    };
    check();
    const UsedTiles software(software_tiles());
    if (tile_kernel()) check();
}

namespace {

struct Trained {
    std::vector<double> losses;
    std::vector<Floats> weights, master_weights;
    bool operator==(const Trained&) const = default;
};

// Twenty steps on one batch, which it learns by heart. `want`, float weights that AdamW moves by the same gradients.
Trained train(int threads, const char* recipe_name, std::vector<Floats>* want = nullptr) {
    constexpr int64_t kSteps = 20, B = 2, T = 24;
    const GptShape shape = std::string(recipe_name) == "nanochat"
                               ? small_shape("nanochat", {3, 2, 64, T, 80, 1, 96}, "SL", 9)
                               : GptShape{2, 2, 64, T, 80};
    const Recipe recipe = find_recipe(recipe_name);
    Cpu cpu(threads);
    Gpt<Cpu, bf16> model(cpu, shape, B, T);
    Optimizer<Cpu, bf16> optimizer(cpu, model.parameters, recipe.rules);
    std::vector<Floats> m, v;
    model.initialize_weights(1, [&](size_t i, const float* values) {
        optimizer.set_masters(i, values);
        if (!want) return;
        const auto size = size_t(model.parameters.parameters[i].size());
        want->push_back(Floats(values, values + size));
        m.push_back(Floats(size, 0)), v.push_back(Floats(size, 0));
    });
    Trained result;
    StepScalars scalars;
    for (int64_t step = 0; step < kSteps; step++) {
        result.losses.push_back(learn(cpu, model, B, T).first);
        scalars.sums = {};
        scalars.sums.loss.add(result.losses.back());
        scalars.sums.targets = 1;
        ops<float>(cpu).add_squares(cpu, &scalars.sums.squares, model.gradients.data, model.gradients.size);
        ops<float>(cpu).decide_step(cpu, &scalars, 1, 1);
        const Rates rates = recipe.rules.rates(recipe.muon() ? 0.3 : 3);
        optimizer.update(model.weights, model.gradients, rates, &scalars);
        for (size_t i = 0; want && i < want->size(); i++) {
            const Parameter& p = model.parameters.parameters[i];
            const GroupRule& rule = recipe.rules.rule(p.group);
            const AdamWTensor<float> tensor{
                (*want)[i].data(),
                nullptr,
                m[i].data(),
                v[i].data(),
                model.gradients.at(p),
                p.size(),
                {rates.groups[size_t(p.group)], rule.beta1, rule.beta2, rule.eps, rule.weight_decay}};
            ops<float>(cpu).adamw_update(cpu, &tensor, 1, &scalars);
        }
    }
    result.master_weights.resize(model.parameters.parameters.size());
    for (size_t i = 0; i < result.master_weights.size(); i++) {
        const Parameter& p = model.parameters.parameters[i];
        result.weights.push_back(from_device(cpu, p, model.weights.at(p)));
        for (size_t piece = 0; piece < optimizer.pieces().size(); piece++)
            if (optimizer.pieces()[piece].parameter == i)
                result.master_weights[i].insert(result.master_weights[i].end(), optimizer.master_weights(piece),
                                                optimizer.master_weights(piece) + optimizer.pieces()[piece].size());
        result.master_weights[i].resize(result.weights[i].size());  // without padding
    }
    return result;
}

}  // namespace

TEST_CASE("twenty steps in bf16: master weights move as float weights do, and the weights are what they round to",
          "[bf16_model]") {
    std::vector<Floats> want;
    const Trained got = train(2, "gpt2", &want);
    REQUIRE(want.size() == got.master_weights.size());
    for (size_t i = 0; i < want.size(); i++) {
        want[i].resize(got.master_weights[i].size());
        check_equal("master weights", got.master_weights[i], want[i]);
        check_equal("weights", got.weights[i], rounded<bf16>(want[i]));
    }
    CHECK(got.losses.back() < got.losses.front() - 0.5);
    for (const int threads : {1, 3}) CHECK((train(threads, "gpt2") == got));
}

TEST_CASE("twenty steps have the same bits with pairs of bf16 and with bf16 that is widened", "[bf16_model]") {
    const auto trained = [](bool pairs) {
        const UsedRegisters used(pairs);
        return train(2, "nanochat");
    };
    CHECK((trained(true) == trained(false)));
}

TEST_CASE("twenty steps in tiles have the same bits at any number of threads, and others than without",
          "[bf16_model]") {
    const Trained plain = [] {
        const UsedTiles none(nullptr);
        return train(1, "gpt2");
    }();
    const UsedTiles software(software_tiles());
    if (!tile_kernel()) return;
    const Trained got = train(2, "gpt2");
    CHECK(got.losses.back() < got.losses.front() - 0.5);
    for (const int threads : {1, 3}) CHECK((train(threads, "gpt2") == got));
    CHECK_FALSE(got == plain);  // or the tiles were not used
}

TEST_CASE("twenty steps of Muon in bf16 have the same bits at any number of threads", "[bf16_model]") {
    const Trained got = train(2, "nanochat");
    for (size_t i = 0; i < got.master_weights.size(); i++)
        check_equal("weights", got.weights[i], rounded<bf16>(got.master_weights[i]));
    CHECK(got.losses.back() < got.losses.front() - 0.5);
    for (const int threads : {1, 3}) CHECK((train(threads, "nanochat") == got));
}

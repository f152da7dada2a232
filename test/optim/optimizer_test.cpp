/*
The optimizer of all parameters, whole and in shards: Muon for the matrices inside the blocks, Q, K and V each by
itself, against PyTorch; AdamW for the rest.
*/
#include "llmc/optim/optimizer.h"
#include <set>
#include "llmc/cpu/kernels.h"
#include "llmc/optim/recipe.h"  // find_recipe
#include "test/cpu/muon_testing.h"
#include "test/fixture.h"
#include "test/optim/parameter_lists.h"
#include "test/testing.h"

namespace {

// A block of 24 channels has the matrices of the fixture muon_training.
const GptShape kShape{1, 2, 24, 8, 60};
const std::map<std::string, std::string> kNames = {{"h.0.attn.c_proj.weight", "square"},
                                                   {"h.0.mlp.c_fc.weight", "tall"},
                                                   {"h.0.mlp.c_proj.weight", "wide"},
                                                   {"h.0.attn.c_attn.weight", "qkv"}};
const MuonMatrix& matrix_of(const Parameter& p) {
    for (const MuonMatrix& m : kMuonMatrices)
        if (kNames.at(p.name) == m.name) return m;
    throw std::runtime_error("no matrix " + p.name);
}

// Weights after twenty steps, each rank's pieces updated by an optimizer of its own.
std::map<std::string, Floats> trained(int world_size, const MuonConfig& muon, int steps = kMuonTrainingSteps) {
    const Fixture fixture("muon_training");
    Cpu cpu(1);
    ParameterList list(kShape);
    const ShardingPlan plan = plan_sharding(list, {.world_size = world_size, .whole_matrices = true});
    list.place(plan.offsets, plan.buffer_size);
    Buffer<Cpu> weights(cpu, cpu, "weights", list), gradients(cpu, cpu, "gradients", list);
    for (const Parameter& p : list)
        if (!p.matrix_rows.empty()) {
            const Floats start = fixture.floats(kNames.at(p.name));
            std::copy(start.begin(), start.end(), weights.at(p));
        }
    OptimizerConfig rules = with_rule({.muon_learning_rate = kMuonTraining.learning_rate, .muon = muon}, "muon");
    for (GroupRule& rule : rules.groups) rule.learning_rate = 0;
    std::vector<std::unique_ptr<Optimizer<Cpu>>> optimizers;
    for (int rank = 0; rank < world_size; rank++)
        optimizers.push_back(std::make_unique<Optimizer<Cpu>>(cpu, list, plan, rank, rules));
    for (int step = 0; step < steps; step++) {
        for (const Parameter& p : list)
            if (!p.matrix_rows.empty()) {
                const Floats values = matrix_of(p).gradients(step);
                std::copy(values.begin(), values.end(), gradients.at(p));
            }
        const StepScalars scalars{.updates = step + 1, .applied = 1};
        for (auto& optimizer : optimizers) optimizer->update(weights, gradients, rules.rates(1), &scalars);
    }
    std::map<std::string, Floats> all;
    for (const Parameter& p : list) all[p.name] = Floats(weights.at(p), weights.at(p) + p.size());
    return all;
}

const MuonConfig kMuon{
    .momentum = kMuonTraining.momentum, .beta2 = kMuonTraining.beta2, .weight_decay = kMuonTraining.weight_decay};

}  // namespace

TEST_CASE("twenty steps of Muon over a whole block agree with PyTorch, on any number of ranks", "[optimizer]") {
    const Fixture fixture("muon_training");
    const MuonNormsCase& norms = GENERATE(from_range(kMuonNorms));
    MuonConfig muon = kMuon;
    muon.norms = norms.norms, muon.floor = norms.step().floor;
    const auto alone = trained(1, muon);
    for (const auto& [name, fixture_name] : kNames) {
        INFO(norms.name << name);
        CHECK(relative_l2(alone.at(name), fixture.floats(norms.want(fixture_name))) <= kMuonTrainingTolerance);
    }
    for (const int world_size : {2, 3, 4, 7}) {
        INFO(norms.name << world_size << " ranks");
        CHECK((trained(world_size, muon) == alone));
    }
}

TEST_CASE("every part of Muon can be left out, and makes a difference", "[optimizer]") {
    const auto with_all = trained(1, kMuon, 3);
    std::vector<MuonConfig> variants(7, kMuon);
    variants[0].equal_rows = false;
    variants[1].fixed_norm = false;
    variants[2].second_moment = false;
    variants[3].cautious = false;
    variants[4].weight_decay = 0;
    variants[5].momentum = 0;
    variants[6].newton_schulz = NewtonSchulzOptions::quintic();
    for (size_t i = 0; i < variants.size(); i++) {
        INFO("variant " << i);
        const auto without = trained(1, variants[i], 3);
        for (const auto& [name, unused] : kNames) CHECK((without.at(name) != with_all.at(name)));
        CHECK((trained(2, variants[i], 3) == without));
    }
}

TEST_CASE("what is not a matrix inside a block is AdamW's", "[optimizer]") {
    Cpu cpu(1);
    ParameterList list(kShape);
    Buffer<Cpu> weights(cpu, cpu, "weights", list), gradients(cpu, cpu, "gradients", list),
        want = [&] { return Buffer<Cpu>(cpu, cpu, "weights", list); }();
    for (const Parameter& p : list)
        for (int64_t i = 0; i < p.size(); i++) {
            weights.at(p)[i] = want.at(p)[i] = float(std::sin(double(i + p.offset)));
            gradients.at(p)[i] = float(std::cos(double(3 * i + p.offset)));
        }
    const StepScalars scalars{.updates = 1, .applied = 1};
    const Rates rates = OptimizerConfig{.muon_learning_rate = 2}.rates(0.01);
    Optimizer<Cpu> both(cpu, list, with_rule({}, "muon")), adamw(cpu, list, {});
    both.update(weights, gradients, rates, &scalars);
    adamw.update(want, gradients, rates, &scalars);
    for (const Parameter& p : list) {
        INFO(p.name);
        const bool same = std::equal(weights.at(p), weights.at(p) + p.size(), want.at(p));
        CHECK(same == (p.matrix_rows.empty()));
    }
}

TEST_CASE("a hyperball's norm is the one before the first step, in the state of the matrix's owner", "[optimizer]") {
    Cpu cpu(1);
    ParameterList list(kShape);
    const OptimizerConfig without = with_rule({}, "muon");
    OptimizerConfig rules = without;
    rules.muon.norms = MuonNorms::hyperball;
    Buffer<Cpu> weights(cpu, cpu, "weights", list), gradients(cpu, cpu, "gradients", list);
    for (int64_t i = 0; i < weights.size; i++)
        weights.data[i] = float(std::sin(double(i))), gradients.data[i] = float(std::cos(double(3 * i)));
    Optimizer<Cpu> optimizer(cpu, list, rules), plain(cpu, list, without);
    const auto norm_of = [&](const ShardPiece& piece) {
        const float* at = weights.data + optimizer.parameter(piece).offset + piece.begin;
        return rms(at, piece.size()) * std::sqrt(double(piece.size()));
    };
    std::vector<double> norms;
    for (const ShardPiece& piece : optimizer.pieces()) norms.push_back(norm_of(piece));
    for (const int step : {1, 2, 3}) {
        const StepScalars scalars{.updates = step, .applied = 1};
        optimizer.update(weights, gradients, rules.rates(0.1), &scalars);
    }
    for (size_t i = 0; i < norms.size(); i++) {
        const ShardPiece& piece = optimizer.pieces()[i];
        if (!piece.is_matrix()) continue;
        INFO(optimizer.parameter(piece).name);
        // Sums of squares in lanes, then of rows, and their root; the weights' own roundings average out.
        CHECK(norm_of(piece) == Approx(norms[i]).epsilon(8 * kEpsF32));
        REQUIRE((optimizer.range(2, piece).size() == 1 && plain.range(2, piece).size() == 0));
        CHECK(optimizer.state(2, i)[0] == Approx(norms[i]).epsilon(8 * kEpsF32));
    }
}

TEST_CASE("a step that is not applied changes no bit of weights and state", "[optimizer]") {
    Cpu cpu(1);
    ParameterList list(kShape);
    Buffer<Cpu> weights(cpu, cpu, "weights", list), gradients(cpu, cpu, "gradients", list);
    std::fill_n(gradients.data, gradients.size, 0.5f);
    Optimizer<Cpu> optimizer(cpu, list, with_rule({}, "muon"));
    const StepScalars applied{.updates = 1, .applied = 1}, skipped{.updates = 1, .applied = 0};
    const Rates rates = OptimizerConfig{.muon_learning_rate = 2}.rates(0.01);
    optimizer.update(weights, gradients, rates, &applied);
    const auto bits = [&] {
        std::vector<float> all(weights.data, weights.data + weights.size);
        for (size_t i = 0; i < optimizer.pieces().size(); i++) {
            const ShardPiece& piece = optimizer.pieces()[i];
            all.insert(all.end(), optimizer.state(0, i), optimizer.state(0, i) + piece.size());
            all.insert(all.end(), optimizer.state(1, i), optimizer.state(1, i) + optimizer.range(1, piece).size());
        }
        return all;
    };
    const std::vector<float> before = bits();
    gradients.data[0] = std::nanf("");
    optimizer.update(weights, gradients, rates, &skipped);
    CHECK((bits() == before));
}

namespace {

// What a model of many groups comes to after some steps, whoever owns which part of it: by name the weights, and the
// state put together as checkpoints do it. No ranks: one, in the order of the list.
std::map<std::string, Floats> trained_family(const Recipe& recipe, int world_size, int steps) {
    Cpu cpu(1);
    ParameterList list = Family{4, 4, 2, 8, 96, recipe.always_scaled, true, true}.list();  // with SwiGLU, or without
    const auto value = [](size_t i, int64_t k, int step) {
        return float(std::sin(double(k) * (1 + double(i)) + double(step)));
    };
    const bool whole = shards_whole_matrices(recipe.rules);
    const ShardingPlan plan = world_size > 0 ? plan_sharding(list, {.world_size = world_size,
                                                                    .whole_matrices = whole,
                                                                    .piece_elements = recipe.rules.stage_elements})
                                             : whole_plan(list, whole);
    list.place(plan.offsets, plan.buffer_size);
    ParameterList one_block({1, 1, 1, 1, 1});
    one_block.buffer_size =
        list.buffer_size;  // the buffers' pointers are for models; here parameters are found by offset
    Buffer<Cpu> weights(cpu, cpu, "weights", one_block), gradients(cpu, cpu, "gradients", one_block);
    for (size_t i = 0; i < list.parameters.size(); i++)
        for (int64_t k = 0; k < list.parameters[i].size(); k++) weights.at(list.parameters[i])[k] = value(i, k, 0);
    std::vector<std::unique_ptr<Optimizer<Cpu>>> optimizers;
    for (int rank = 0; rank < plan.world_size; rank++)
        optimizers.push_back(std::make_unique<Optimizer<Cpu>>(cpu, list, plan, rank, recipe.rules));
    for (int step = 0; step < steps; step++) {
        for (size_t i = 0; i < list.parameters.size(); i++)
            for (int64_t k = 0; k < list.parameters[i].size(); k++)
                gradients.at(list.parameters[i])[k] = value(i + 7, k, step + 1);
        const StepScalars scalars{.updates = step + 1, .applied = 1};
        Rates rates = recipe.rates(step, steps);
        if (recipe.rules.averages) rates.average = 1 / double(step + 1);
        for (auto& optimizer : optimizers) optimizer->update(weights, gradients, rates, &scalars);
    }
    std::map<std::string, Floats> all;
    for (const Parameter& p : list) all[p.name] = Floats(weights.at(p), weights.at(p) + p.size());
    const auto put = [&](const std::string& name, int64_t begin, const float* from, int64_t n) {
        Floats& to = all[name];
        to.resize(std::max(to.size(), size_t(begin + n)), std::nanf(""));
        REQUIRE(std::all_of(&to[size_t(begin)], &to[size_t(begin)] + n, [](float x) { return std::isnan(x); }));
        std::copy(from, from + n, to.begin() + begin);
    };
    for (auto& optimizer : optimizers)
        for (size_t i = 0; i < optimizer->pieces().size(); i++) {
            const ShardPiece& piece = optimizer->pieces()[i];
            const std::string& name = optimizer->parameter(piece).name;
            const UpdateRule& rule = optimizer->rule(piece);
            for (size_t k = 0; k < rule.state.size(); k++) {
                const StateRange range = optimizer->range(k, piece);
                if (range.size() == 0) continue;
                const std::string tensor = rule.state[k].name + "." + name;
                Floats values;
                if (optimizer->state_dtype(k, piece) == DType::bf16)
                    for (int64_t e = 0; e < range.size(); e++)
                        values.push_back(to_float(static_cast<const bf16*>(optimizer->state_data(k, i))[e]));
                put(tensor, range.begin, values.empty() ? optimizer->state(k, i) : values.data(), range.size());
            }
        }
    return all;
}

}  // namespace

TEST_CASE("weights and state of all groups have the same bits on any number of ranks, offloaded or not",
          "[optimizer]") {
    std::vector<std::pair<std::string, std::string>> cases;
    for (const std::string& name : recipe_names()) cases.push_back({name, "muon"});
    for (const UpdateRule* rule : UpdateRules::values()) cases.push_back({"gpt2", rule->name});
    for (size_t i = 0; i < 2 * cases.size(); i++) {
        const auto& [name, optimizer] = cases[i / 2];
        Recipe recipe = find_recipe(name);
        recipe.rules.bf16_moments = recipe.rules.averages = i % 2 == 1, recipe.rules.seed = 5;
        if (i % 2 == 1) recipe.rules.muon.norms = MuonNorms::hyperball;
        recipe.set_optimizer(optimizer), recipe.warmup_steps = 2;
        recipe.momentum.warmup_steps = std::min<int64_t>(recipe.momentum.warmup_steps, 3);
        const auto alone = trained_family(recipe, 1, 6);
        CHECK(alone.contains("average.wte.weight") == recipe.rules.averages);
        for (const auto& [tensor, values] : alone)
            for (const float value : values)
                if (!std::isfinite(value)) FAIL(tensor);
        for (const int world_size : {0, 2, 3, 4, 9}) {
            INFO(name << ", " << optimizer << (recipe.rules.bf16_moments ? " in bf16 on " : " on ") << world_size
                      << " ranks");
            CHECK((trained_family(recipe, world_size, 6) == alone));
        }
        // In many stages, then in few, and some of them: 64 elements are a piece for each of most parameters.
        for (const int64_t stage_elements : {64, 1024, 1 << 20})
            for (const int world_size : {0, 1, 2, 4}) {
                INFO(name << ", " << optimizer << " on " << world_size << " ranks, stages of " << stage_elements);
                recipe.rules.stage_elements = stage_elements;
                recipe.rules.offload_percent = stage_elements == 1024 ? 40 : 100;
                CHECK((trained_family(recipe, world_size, 6) == alone));
            }
    }
}

namespace {

// One update by the op of a rule that is sharded by element, with the numbers of a group; `state` as UpdateRule::state.
using UpdateByOp = void (*)(Cpu&, const GroupRule&, double learning_rate, Floats& weight, std::vector<Floats>& state,
                            const float* grad, const StepScalars& scalars);

void update_by_adamw(Cpu& cpu, const GroupRule& rule, double learning_rate, Floats& weight, std::vector<Floats>& state,
                     const float* grad, const StepScalars& scalars) {
    const AdamWTensor<float> tensor{.param = weight.data(),
                                    .master = nullptr,
                                    .m = state[0].data(),
                                    .v = state[1].data(),
                                    .grad = grad,
                                    .n = int64_t(weight.size()),
                                    .hyper = {.learning_rate = learning_rate,
                                              .beta1 = rule.beta1,
                                              .beta2 = rule.beta2,
                                              .eps = rule.eps,
                                              .weight_decay = rule.weight_decay}};
    ops<float>(cpu).adamw_update(cpu, &tensor, 1, &scalars);
}

const std::map<std::string, UpdateByOp> kUpdatesByOp = {{"adamw", update_by_adamw}};

}  // namespace

TEST_CASE("every rule gives its op the numbers of the group", "[optimizer]") {
    Cpu cpu(1);
    ParameterList list = Family{2, 2, 1, 8, 64, false, true, true}.list();
    for (size_t i = 0; i < list.parameters.size(); i++) list.parameters[i].rate = 1 / double(1 + i % 5);
    OptimizerConfig numbers;
    for (size_t g = 0; g < kNumParameterGroups; g++) {
        const double x = double(g + 1);
        numbers.groups[g] = {.learning_rate = 0.01 * x,
                             .beta1 = 0.05 * x,
                             .beta2 = 1 - 0.05 * x,
                             .eps = 1e-3 * x,
                             .weight_decay = 0.1 * x};
    }
    ParameterList one_block({1, 1, 1, 1, 1});
    one_block.buffer_size = list.buffer_size;
    for (const UpdateRule* update_rule : UpdateRules::values()) {
        if (update_rule->whole_matrices) continue;  // Muon against PyTorch, above
        INFO(update_rule->name << ": a rule needs its op in kUpdatesByOp");
        REQUIRE(kUpdatesByOp.count(update_rule->name) == 1);
        const OptimizerConfig rules = with_rule(numbers, update_rule->name);
        Buffer<Cpu> weights(cpu, cpu, "weights", one_block), gradients(cpu, cpu, "gradients", one_block);
        for (int64_t i = 0; i < weights.size; i++) weights.data[i] = float(std::sin(double(i)));
        Floats want(weights.data, weights.data + weights.size);
        std::map<std::string, std::vector<Floats>> states;
        Optimizer<Cpu> optimizer(cpu, list, rules);
        std::set<ParameterGroup> seen;
        for (const int step : {1, 2, 3}) {  // state is 0 before the first, and two betas show in the third
            for (int64_t i = 0; i < gradients.size; i++) gradients.data[i] = float(std::cos(double((2 + step) * i)));
            const StepScalars scalars{.grad_scale = 0.5, .updates = step, .applied = 1};
            optimizer.update(weights, gradients, rules.rates(0.5), &scalars);
            for (const Parameter& p : list) {
                GroupRule rule = rules.rule(p.group);
                rule.weight_decay /= p.rate;
                std::vector<Floats>& state = states[p.name];
                state.resize(update_rule->state.size(), Floats(size_t(p.size())));
                Floats weight(want.begin() + p.offset, want.begin() + p.offset + p.size());
                kUpdatesByOp.at(update_rule->name)(cpu, rule, rule.learning_rate * 0.5 * p.rate, weight, state,
                                                   gradients.at(p), scalars);
                std::copy(weight.begin(), weight.end(), want.begin() + p.offset);
                INFO(p.name << ", step " << step);
                CHECK((Floats(weights.at(p), weights.at(p) + p.size()) == weight));
                seen.insert(p.group);
            }
        }
        CHECK(seen.size() + 2 == kNumParameterGroups);  // no positions; and with value embeddings no gains
    }
}

TEST_CASE("groups may have different rules", "[optimizer]") {
    Cpu cpu(1);
    const ParameterList list(kShape);
    const auto weights_after = [&](const OptimizerConfig& rules) {
        Buffer<Cpu> weights(cpu, cpu, "weights", list), gradients(cpu, cpu, "gradients", list);
        for (int64_t i = 0; i < weights.size; i++)
            weights.data[i] = float(std::sin(double(i))), gradients.data[i] = float(std::cos(double(3 * i)));
        Optimizer<Cpu> optimizer(cpu, list, rules);
        for (const int step : {1, 2}) {
            const StepScalars scalars{.updates = step, .applied = 1};
            optimizer.update(weights, gradients, rules.rates(0.1), &scalars);
        }
        return Floats(weights.data, weights.data + weights.size);
    };
    const Floats by_adamw = weights_after({}), got = weights_after(with_rule({}, "muon"));
    for (const Parameter& p : list) {
        INFO(p.name);
        const auto begin = got.begin() + p.offset;
        CHECK(std::equal(begin, begin + p.size(), by_adamw.begin() + p.offset) ==
              (p.group != ParameterGroup::matrices));
    }
}

TEST_CASE("what rules are called, and what of theirs checkpoints and plans ask", "[optimizer]") {
    std::set<std::string> names;
    for (const UpdateRule* rule : UpdateRules::values()) {
        INFO(rule->name);
        CHECK(names.insert(rule->name).second);
        CHECK(&update_rule(rule->name) == rule);
        std::set<std::string> tensors = {"master"};  // the name of master weights
        for (const StateTensor& tensor : rule->state) {
            CHECK(tensors.insert(tensor.name).second);
            CHECK((rule->whole_matrices || !tensor.matrix_size));
        }
        CHECK(rule->state.size() <= kMostStateTensors);
    }
    const OptimizerConfig muon = with_rule({}, "muon");
    CHECK((!shards_whole_matrices({}) && shards_whole_matrices(muon)));
    CHECK(muon.rule(ParameterGroup::head).name == "adamw");
    // On one rank: bytes of state and master weights.
    const ParameterList list(kShape);
    const ShardingPlan whole = whole_plan(list);
    const int64_t elements = whole.state_size[0];
    OptimizerConfig in_bf16;
    in_bf16.bf16_moments = true;
    for (const auto& [config, bytes] : {std::pair{OptimizerConfig(), 8}, {in_bf16, 4}}) {
        CHECK(state_bytes(list, whole, 0, config, false) == bytes * elements);
        CHECK(state_bytes(list, whole, 0, config, true) == (bytes + 4) * elements);
        CHECK(StateLayout(list, whole, 0, config).memory_bytes(sizeof(float)) == size_t(bytes * elements));
        CHECK(StateLayout(list, whole, 0, config).memory_bytes(sizeof(bf16)) == size_t((bytes + 4) * elements));
    }
    // Muon's momentum, but not NorMuon's second moment, of which there is little.
    in_bf16 = with_rule(in_bf16, "muon");
    CHECK(update_rule("muon").state_dtype(0, in_bf16) == DType::bf16);
    CHECK(update_rule("muon").state_dtype(1, in_bf16) == DType::f32);
    CHECK(update_rule("muon").state_dtype(0, muon) == DType::f32);
}

TEST_CASE("momentum, weight decay and learning rate of Muon are those of the step", "[optimizer]") {
    const auto weights_after = [](const OptimizerConfig& rules, const Rates& second_step) {
        Cpu cpu(1);
        ParameterList list(kShape);
        Buffer<Cpu> weights(cpu, cpu, "weights", list), gradients(cpu, cpu, "gradients", list);
        for (int64_t i = 0; i < weights.size; i++)
            weights.data[i] = float(std::sin(double(i))), gradients.data[i] = float(std::cos(double(3 * i)));
        Optimizer<Cpu> optimizer(cpu, list, with_rule(rules, "muon"));
        for (const int step : {1, 2}) {
            const StepScalars scalars{.updates = step, .applied = 1};
            optimizer.update(weights, gradients, second_step, &scalars);
            for (int64_t i = 0; i < gradients.size; i++) gradients.data[i] = float(std::sin(double(5 * i)));
        }
        return Floats(weights.data, weights.data + weights.size);
    };
    OptimizerConfig other;
    other.muon.momentum = 0.5, other.muon.weight_decay = 0.25, other.muon_learning_rate = 0.125;
    // The same, whether the config says so or only the step.
    CHECK((weights_after(OptimizerConfig(), other.rates(1)) == weights_after(other, other.rates(1))));
    for (const int part : {0, 1, 2}) {
        Rates rates = other.rates(1);
        (part == 0 ? rates.muon : part == 1 ? rates.muon_momentum : rates.muon_weight_decay) *= 0.5;
        CHECK((weights_after(other, rates) != weights_after(other, other.rates(1))));
    }
    OptimizerConfig margin = other;
    margin.muon.margin = 1.5, other.muon.fixed_norm = margin.muon.fixed_norm = false;
    CHECK((weights_after(margin, other.rates(1)) != weights_after(other, other.rates(1))));
}

TEST_CASE("the decay follows Muon's factor for tall matrices, or not", "[optimizer]") {
    const auto weights_after = [](double weight_decay, bool shaped_decay) {
        Cpu cpu(1);
        ParameterList list(kShape);
        Buffer<Cpu> weights(cpu, cpu, "weights", list), gradients(cpu, cpu, "gradients", list);
        std::fill_n(weights.data, weights.size, 1.f);
        for (int64_t i = 0; i < weights.size; i++) gradients.data[i] = float(std::cos(double(3 * i)));
        OptimizerConfig rules{.muon_learning_rate = 0.5};
        rules.muon.weight_decay = weight_decay, rules.muon.cautious = false, rules.muon.shaped_decay = shaped_decay;
        const StepScalars scalars{.updates = 1, .applied = 1};
        Optimizer<Cpu>(cpu, list, with_rule(rules, "muon")).update(weights, gradients, rules.rates(1), &scalars);
        std::map<std::string, Floats> all;
        for (const Parameter& p : list) all[p.name] = Floats(weights.at(p), weights.at(p) + p.size());
        return all;
    };
    const auto without = weights_after(0, true), shaped = weights_after(0.25, true), plain = weights_after(0.25, false);
    for (const auto& [name, unused] : kNames) {
        const double factor = name == "h.0.mlp.c_fc.weight" ? 2 : 1;  // (4 C, C)
        for (size_t i = 0; i < without.at(name).size(); i++) {
            const double w = without.at(name)[i];
            // Three roundings of numbers no larger than what is left, what went and the one that was there.
            const double tolerance = 3 * 0x1p-24 * (std::fabs(w) + 0.25 + 1);
            if (std::fabs(w - plain.at(name)[i] - 0.125) > tolerance) FAIL(name << " " << i);
            if (std::fabs(w - shaped.at(name)[i] - 0.125 * factor) > tolerance) FAIL(name << " " << i);
        }
    }
}

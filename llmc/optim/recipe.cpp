// See recipe.h.
#include "llmc/optim/recipe.h"
#include <algorithm>
#include <utility>
#include "llmc/base/check.h"          // require, ensure, format
#include "llmc/optim/update_rules.h"  // update_rule, with_rule

namespace {

using enum ParameterGroup;

constexpr ParameterGroup kVectorsAndLambdas[] = {vectors, resid_lambdas, x0_lambdas, smear};

Recipe gpt2() {
    Recipe r{.name = "gpt2",
             .learning_rate = 1e-3,
             .schedule_kind = "cosine",
             .warmup_steps = 100,
             .decay_fraction = 0.2,
             .final_fraction = 0.1,
             .momentum = MomentumSchedule::constant(0.95),
             .grad_clip = 1};
    for (GroupRule& rule : r.rules.groups) rule.learning_rate = 1e-3;
    r.rules.muon_learning_rate = 0.02;
    return r;
}

Recipe nanochat() {
    Recipe r{.name = "nanochat",
             .warmup_steps = 40,
             .decay_fraction = 0.65,
             .final_fraction = 0.05,
             .momentum = {.start = 0.85, .peak = 0.97, .end = 0.9, .warmup_steps = 400},
             .cosine_muon_decay = true,
             .always_scaled = true};
    const auto set = [&](ParameterGroup group, double learning_rate, double beta1, double beta2, double weight_decay,
                         bool by_batch, bool by_width) {
        r.rule(group) = {.learning_rate = learning_rate,
                         .beta1 = beta1,
                         .beta2 = beta2,
                         .eps = 1e-10,
                         .weight_decay = weight_decay,
                         .by_batch = by_batch,
                         .by_width = by_width,
                         .decay_by_length = false};
    };
    set(head, 0.008, 0.8, 0.96, 0.01, true, true);
    set(embedding, 0.3, 0.8, 0.995, 0.001, true, true);
    set(value_embeddings, 0.5 * 0.3, 0.8, 0.995, 0.01, true, true);
    set(resid_lambdas, 0.01 * 0.5, 0.8, 0.95, 0.05, true, false);
    set(x0_lambdas, 0.5, 0.96, 0.95, 0, true, false);
    set(smear, 0.2, 0.8, 0.95, 0, false, false);
    // nanochat has neither group: positions are like the embedding, vectors like the residual lambdas without decay.
    set(positions, 0.3, 0.8, 0.995, 0.001, true, true);
    set(vectors, 0.01 * 0.5, 0.8, 0.95, 0, true, false);
    r.rules.muon_learning_rate = 0.02;
    r.rules.muon.weight_decay = 0.28;
    r.rule(matrices).name = "muon";
    return r;
}

Recipe stage_a() {
    Recipe r{.name = "stage-a", .decay_fraction = 0.7, .momentum = MomentumSchedule::constant(0.95)};
    for (GroupRule& rule : r.rules.groups)
        rule = {.learning_rate = 0.7, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-10, .weight_decay = 0.001};
    r.rule(head).learning_rate = 0.004;
    for (const ParameterGroup group : kVectorsAndLambdas) r.rule(group).learning_rate = 0.015;
    r.rules.muon_learning_rate = 0.025;
    r.rules.muon.weight_decay = 0.05;
    r.rules.muon.equal_rows = r.rules.muon.fixed_norm = r.rules.muon.second_moment = r.rules.muon.cautious = false;
    r.rules.muon.margin = 1.02;
    r.rules.muon.shaped_decay = false;
    r.rule(matrices).name = "muon";
    return r;
}

// What was better than stage-a by itself on the proxy (doc/recipes.md).
Recipe record() {
    Recipe r = stage_a();
    r.name = "record";
    r.rules.muon.equal_rows = r.rules.muon.second_moment = true;
    return r;
}

}  // namespace

void Recipe::set_optimizer(const std::string& optimizer) {
    const UpdateRule& rule = update_rule(optimizer);
    require(rule.whole_matrices || name == std::string("gpt2"),
            "--recipe %s has no %s for the matrices: leave --optimizer %s out, or give --recipe gpt2", name,
            rule.title.c_str(), optimizer.c_str());
    rules = with_rule(rules, optimizer);
}

std::vector<std::string> optimizer_names() {
    std::vector<std::string> names = {"recipe"};
    for (const UpdateRule* rule : UpdateRules::values()) names.push_back(rule->name);
    return names;
}

Schedule Recipe::schedule(int64_t steps) const {
    return {.kind = schedule_kind,
            .max = learning_rate,
            .min = learning_rate * final_fraction,
            .warmup_steps = warmup_steps,
            .steps = steps,
            .decay_fraction = decay_fraction,
            .decay_power = decay_power};
}

Rates Recipe::rates(int64_t step, int64_t steps) const {
    const Schedule schedule = this->schedule(steps);
    const double now = ::learning_rate(schedule, step), fraction = now / learning_rate;
    // A group whose peak is the schedule's gets exactly the schedule's value: peak * (now / peak) may be rounded.
    const auto rate = [&](double peak) { return peak == learning_rate ? now : peak * fraction; };
    Rates rates;
    for (size_t g = 0; g < kNumParameterGroups; g++) rates.groups[g] = rate(rules.groups[g].learning_rate);
    rates.muon = rules.muon_learning_rate * fraction;
    rates.muon_momentum = momentum_at(momentum, schedule, step);
    rates.muon_weight_decay = rules.muon.weight_decay;
    if (cosine_muon_decay) rates.muon_weight_decay *= cosine_to_zero(step, steps);
    return rates;
}

std::string Recipe::schedule_text() const {
    std::string text = format("learning rate: %s, %ld steps of warm-up, ", schedule_kind.c_str(), warmup_steps);
    if (decays_late()) text += format("down in the last %g of all steps, ", decay_fraction);
    if (schedule_kind == "powercool") text += format("as what is left of them to the power of %g, ", decay_power);
    text += format("to %g of the largest; gradients %s", final_fraction,
                   grad_clip > 0 ? format("clipped to a norm of %g", grad_clip).c_str() : "not clipped");
    if (momentum.warmup_steps > 0)
        text += format("; Muon's momentum from %g to %g in %ld steps, then with the rate to %g", momentum.start,
                       momentum.peak, momentum.warmup_steps, momentum.end);
    if (cosine_muon_decay) text += "; Muon's weight decay to 0 as a cosine";
    if (tail_average > 0) text += format("; weights averaged over the last %g of all steps", tail_average);
    return text;
}

std::string Recipe::text() const {
    const GroupRule& first = rules.groups[0];
    double weight_decay = 0;
    for (const GroupRule& rule : rules.groups) {
        if (rule.name != first.name || rule.learning_rate != first.learning_rate || rule.beta1 != first.beta1 ||
            rule.beta2 != first.beta2 || rule.eps != first.eps)
            return table();
        weight_decay = std::max(weight_decay, rule.weight_decay);
    }
    const UpdateRule& rule = update_rule(first.name);
    return schedule_text() + format("\n  %s: learning rate %.4g, betas %g, %g, %sweight decay %.4g\n",
                                    rule.title.c_str(), first.learning_rate, first.beta1, first.beta2,
                                    rule.has_eps ? format("eps %g, ", first.eps).c_str() : "", weight_decay);
}

std::string Recipe::table(bool markdown) const {
    std::string text = schedule_text();
    text += markdown ? "\n\n| group | rule | learning rate | betas | eps | weight decay |\n|---|---|---|---|---|---|\n"
                     : format("\n  %-17s %-7s %13s %12s %8s %13s\n", "group", "rule", "learning rate", "betas", "eps",
                              "weight decay");
    std::vector<std::pair<std::string, std::string>> rows;  // groups, values
    const auto add = [&](size_t group, const std::string& values) {
        if (markdown && !rows.empty() && rows.back().second == values)
            rows.back().first += std::string(", ") + kParameterGroupNames[group];
        else
            rows.push_back({kParameterGroupNames[group], values});
    };
    const char* line = markdown ? " | %s | %.4g | %s | %s | %.4g |\n" : " %-7s %13.4g %12s %8s %13.4g\n";
    const MuonConfig& m = rules.muon;
    add(size_t(matrices),
        format(line, muon() ? "Muon" : "if Muon", rules.muon_learning_rate,
               format(m.second_moment ? "%g, %g" : "%g", momentum.peak, m.beta2).c_str(), "", m.weight_decay));
    for (size_t g = 0; g < kNumParameterGroups; g++) {
        if (muon() && g == size_t(matrices)) continue;
        const GroupRule& rule = rules.groups[g];
        const UpdateRule& update = update_rule(rule.name);
        add(g, format(line, update.title.c_str(), rule.learning_rate, format("%g, %g", rule.beta1, rule.beta2).c_str(),
                      update.has_eps ? format("%g", rule.eps).c_str() : "", rule.weight_decay));
    }
    for (const auto& [names, values] : rows) text += format(markdown ? "| %s" : "  %-17s", names.c_str()) + values;
    return text;
}

std::vector<std::string> recipe_names() { return {"gpt2", "nanochat", "stage-a", "record"}; }

Recipe find_recipe(const std::string& name) {
    for (const Recipe& recipe : {gpt2(), nanochat(), stage_a(), record()})
        if (name == recipe.name) return recipe;
    ensure(false);
    return gpt2();
}

// See scaling.h.
#include "llmc/run/scaling.h"
#include <algorithm>
#include <cmath>
#include "llmc/base/check.h"  // format

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

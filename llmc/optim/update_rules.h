/*
The list of all update rules. To add one, see doc/add_an_optimizer.md.

  const UpdateRule& rule = update_rule("muon");
  config = with_rule(config, "muon");          for the matrices only, because Muon updates nothing else
*/
#pragma once
#include <algorithm>
#include <array>
#include "llmc/base/check.h"        // ensure
#include "llmc/optim/adamw_rule.h"  // AdamWRule
#include "llmc/optim/muon_rule.h"   // MuonRule

template <class... Rules>
struct RuleList {
    static constexpr size_t size = sizeof...(Rules);
    static std::array<const UpdateRule*, size> values() { return {&Rules::value...}; }

    // The same, in the same order, for a device and a dtype.
    template <class Device, class T>
    static constexpr std::array<void (*)(const UpdateBatch<Device, T>&), size> updates = {
        Rules::template update<Device, T>...};
    template <class Device, class T>
    static constexpr std::array<size_t (*)(Device&, const Ops<Device, T>&, int64_t, int64_t, int64_t), size>
        workspaces = {Rules::template workspace_bytes<Device, T>...};
};

using UpdateRules = RuleList<AdamWRule, MuonRule>;

// The rule's index in the list.
inline size_t update_rule_index(const std::string& name) {
    const auto all = UpdateRules::values();
    const auto found = std::find_if(all.begin(), all.end(), [&](const UpdateRule* rule) { return rule->name == name; });
    ensure(found != all.end());
    return size_t(found - all.begin());
}
inline const UpdateRule& update_rule(const std::string& name) {
    return *UpdateRules::values()[update_rule_index(name)];
}

// Sets the rule: one of whole matrices for the group of matrices, any other rule for all groups.
inline OptimizerConfig with_rule(OptimizerConfig config, const std::string& name) {
    if (update_rule(name).whole_matrices)
        config.rule(ParameterGroup::matrices).name = name;
    else
        for (GroupRule& rule : config.groups) rule.name = name;
    return config;
}

// Whether plan_sharding() has to keep matrices whole.
inline bool shards_whole_matrices(const OptimizerConfig& config) {
    return update_rule(config.rule(ParameterGroup::matrices).name).whole_matrices;
}

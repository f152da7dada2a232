/*
Recipes: the update rule and hyperparameters of each group of parameters, and their schedules over a run. A recipe is
data, one row per group. Flags change some of it (RunFlags::chosen_recipe), and some of it is scaled by batch size,
width and run length (llmc/run/scaling.h).

  const Recipe recipe = find_recipe("nanochat");
  Optimizer<Device> optimizer(device, list, plan, rank, recipe.rules);
  optimizer.update(weights, gradients, recipe.rates(step, steps), scalars);          step counts from 0

  gpt2       one learning rate and AdamW (Radford et al., 2019; Brown et al., 2020, appendix B); Muon if asked
  nanochat   Karpathy's nanochat, 2026: Muon for the blocks, AdamW with separate learning rates for all other groups.
             Rates are given for batches of 2^19 tokens and 768 channels, and scaled from there
  stage-a    the baseline of modded-nanogpt's track 3: plain Muon, AdamW, 30% of the steps flat and then down to zero
  record     stage-a and what was found to need fewer tokens beside it (doc/recipes.md)
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/optim/optimizer_config.h"  // OptimizerConfig, Rates
#include "llmc/optim/schedule.h"          // Schedule, MomentumSchedule

struct Recipe {
    const char* name;
    OptimizerConfig rules = {};

    // The schedule's peak. The learning rates of all groups stay proportional to it.
    double learning_rate = 1;
    std::string schedule_kind = "trapezoid";
    int64_t warmup_steps = 0;
    double decay_fraction = 0, final_fraction = 0;
    double decay_power = 1.2;  // Schedule::decay_power
    MomentumSchedule momentum;
    bool cosine_muon_decay = false;  // Muon's weight decay goes to 0 as a cosine; else it is constant

    // In the last tail_average of all steps the weights are averaged, forgetting with a time constant of average_memory
    // of these steps. The average is what is evaluated and exported. 0: the weights of the last step are.
    double tail_average = 0, average_memory = 0.25;

    double grad_clip = 0;        // largest global norm of the gradient; 0: none
    bool always_scaled = false;  // by batch size, width and run length, even without scale-hyperparameters

    GroupRule& rule(ParameterGroup group) { return rules.rule(group); }
    const GroupRule& rule(ParameterGroup group) const { return rules.rule(group); }

    // The update rule of the matrices, by which --optimizer names a recipe's rules.
    const std::string& optimizer() const { return rule(ParameterGroup::matrices).name; }
    bool muon() const { return optimizer() == "muon"; }
    // Sets other update rules, with the recipe's numbers for them. Throws an Error if it has none.
    void set_optimizer(const std::string& optimizer);

    Schedule schedule(int64_t steps) const;
    Rates rates(int64_t step, int64_t steps) const;
    // Whether weights are averaged after a step, and Rates::average when n steps have been.
    bool averages(int64_t step, int64_t steps) const {
        return tail_average > 0 && step >= steps - averaged_steps(steps);
    }
    int64_t averaged_steps(int64_t steps) const { return std::llround(tail_average * double(steps)); }
    double average_rate(int64_t n, int64_t steps) const {
        return std::max(1 / double(n + 1), 1 / std::max(1., average_memory * double(averaged_steps(steps))));
    }
    // The learning rate falls only at the end, in decay_fraction of all steps.
    bool decays_late() const {
        return schedule_kind == "wsd" || schedule_kind == "trapezoid" || schedule_kind == "powercool";
    }
    // The schedules in a sentence, and one line per group; as Markdown, a table, in which equal groups share a row.
    std::string table(bool markdown = false) const;
    // The same in two lines, if AdamW updates all groups at one learning rate.
    std::string text() const;
    std::string schedule_text() const;
};

// The choices of --optimizer: `recipe`, the recipe's own, and the update rules.
std::vector<std::string> optimizer_names();
std::vector<std::string> recipe_names();
Recipe find_recipe(const std::string& name);

/*
What follows from flags, model and number of ranks together: batch, length, learning rates. What was asked is left as it
is, and what was left open is filled in:

  --depth               recipe, batch, steps and weight decay by nanochat's scaling laws (dial.h)
  --batch-size auto     the largest of those that divide a step's sequences and fit in the memory
  --steps               else those of --target-flops or --target-param-data-ratio; else 2000
*/
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include "llmc/model/shape.h"    // GptShape
#include "llmc/optim/recipe.h"   // Recipe
#include "llmc/train/config.h"   // TrainConfig
#include "llmc/train/scaling.h"  // Scaling

struct ResolvedRun {
    TrainConfig config;  // with every number filled in
    Scaling scaling = {};
    Recipe recipe;     // scaled
    std::string text;  // each derived number with its formula, a line each; empty: nothing was derived
};

// Whether a step of such micro-batches fits in the memory.
using Fits = std::function<bool(const StepConfig&)>;

ResolvedRun resolve(const TrainConfig& asked, const GptShape& shape, int64_t world_size, const Fits& fits);

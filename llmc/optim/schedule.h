/*
The learning rate at each step, counted from 0:

  warm-up     max (step + 1) / warmup_steps                     for step < warmup_steps; then, with
  p = (step - warmup_steps) / (steps - warmup_steps):
  cosine      min + (max - min) (1 + cos(pi p)) / 2             (Loshchilov and Hutter, 2017, arXiv:1608.03983)
  linear      max + (min - max) p
  constant    max
  wsd         max until the last decay_fraction of all steps, then down to min as 1 - sqrt(q), q the part of it that is
done (Haegele et al., 2024, arXiv:2405.18392)
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include "llmc/base/check.h"  // ensure

struct Schedule {
    std::string kind = "cosine";  // cosine, linear, constant or wsd
    double max = 3e-4, min = 0;
    int64_t warmup_steps = 0, steps = 1;
    double decay_fraction = 0.2;  // of wsd
};

inline double learning_rate(const Schedule& s, int64_t step) {
    if (step < s.warmup_steps) return s.max * double(step + 1) / double(s.warmup_steps);
    const double p =
        std::min(1.0, double(step - s.warmup_steps) / double(std::max<int64_t>(1, s.steps - s.warmup_steps)));
    if (s.kind == "cosine") return s.min + (s.max - s.min) * 0.5 * (1 + std::cos(M_PI * p));
    if (s.kind == "linear") return s.max + (s.min - s.max) * p;
    if (s.kind == "constant") return s.max;
    ensure(s.kind == "wsd");
    const double decay_steps = std::max(1.0, std::round(s.decay_fraction * double(s.steps)));
    const double q = std::clamp((double(step) - (double(s.steps) - decay_steps)) / decay_steps, 0.0, 1.0);
    return s.min + (s.max - s.min) * (1 - std::sqrt(q));
}

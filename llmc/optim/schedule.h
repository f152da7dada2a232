/*
The learning rate at each step, counted from 0. max is the peak learning rate:

  warm-up     max (step + 1) / warmup_steps                     for step < warmup_steps; then, with
  p = (step - warmup_steps) / (steps - warmup_steps):
  cosine      min + (max - min) (1 + cos(pi p)) / 2             (Loshchilov and Hutter, 2017, arXiv:1608.03983)
  linear      max + (min - max) p
  constant    max
  wsd         max until the last decay_fraction of all steps, then down to min as 1 - sqrt(q), q the fraction of the
              decay that is done (Haegele et al., 2024, arXiv:2405.18392)
  trapezoid   the same, but down as 1 - q
  powercool   the same, but down as (1 - q)^decay_power        (KellerJordan/modded-nanogpt, track 3, #287, with 1.2)

and two more schedules: Muon's momentum, which rises linearly from `start` to `peak` in its own warmup_steps, and falls
linearly to `end` while these three decay; and a weight decay that ends at 0,

  cosine_to_zero    (1 + cos(pi step / steps)) / 2
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include "llmc/base/check.h"  // ensure

struct Schedule {
    std::string kind = "cosine";  // cosine, linear, constant, wsd, trapezoid or powercool
    double max = 3e-4, min = 0;
    int64_t warmup_steps = 0, steps = 1;
    double decay_fraction = 0.2;  // of wsd, trapezoid and powercool
    double decay_power = 1.2;     // of powercool

    // The number of steps at the end in which these decay. wsd rounds halves up, the others to even, as nanochat does.
    double decay_steps() const {
        const double exact = decay_fraction * double(steps);
        return std::max(1.0, kind == "wsd" ? std::round(exact) : std::nearbyint(exact));
    }
    // The fraction of these that is done.
    double decayed(int64_t step) const {
        return std::clamp((double(step) - (double(steps) - decay_steps())) / decay_steps(), 0.0, 1.0);
    }
};

inline double learning_rate(const Schedule& s, int64_t step) {
    if (step < s.warmup_steps) return s.max * double(step + 1) / double(s.warmup_steps);
    const double p =
        std::min(1.0, double(step - s.warmup_steps) / double(std::max<int64_t>(1, s.steps - s.warmup_steps)));
    if (s.kind == "cosine") return s.min + (s.max - s.min) * 0.5 * (1 + std::cos(M_PI * p));
    if (s.kind == "linear") return s.max + (s.min - s.max) * p;
    if (s.kind == "constant") return s.max;
    if (s.kind == "trapezoid" || s.kind == "powercool") {
        double left = std::clamp(double(s.steps - step) / s.decay_steps(), 0.0, 1.0);
        if (s.kind == "powercool") left = std::pow(left, s.decay_power);
        return left * s.max + (1 - left) * s.min;
    }
    ensure(s.kind == "wsd");
    return s.min + (s.max - s.min) * (1 - std::sqrt(s.decayed(step)));
}

struct MomentumSchedule {
    double start, peak, end;
    int64_t warmup_steps = 0;

    static MomentumSchedule constant(double momentum) { return {momentum, momentum, momentum}; }
};

inline double momentum_at(const MomentumSchedule& m, const Schedule& s, int64_t step) {
    if (step < m.warmup_steps) return m.start + (m.peak - m.start) * (double(step) / double(m.warmup_steps));
    return m.peak + (m.end - m.peak) * s.decayed(step);
}

inline double cosine_to_zero(int64_t step, int64_t steps) {
    return 0.5 * (1 + std::cos(M_PI * double(std::min(step, steps)) / double(std::max<int64_t>(1, steps))));
}

// The learning rate, at the borders of every schedule, against values worked out by hand from the formulas in
// schedule.h.
#include "llmc/optim/schedule.h"
#include "llmc/run/run_flags.h"  // RunFlags
#include "test/testing.h"

namespace {

// Four roundings at most, and the cosine, which is right to one unit: 8 of 2^-52 have room for each to be the worst.
void check_rate(const Schedule& schedule, int64_t step, double want) {
    INFO(schedule.kind << ", step " << step);
    CHECK(std::fabs(learning_rate(schedule, step) - want) <= 8 * 0x1p-52 * want);
}

Schedule of(const std::string& kind) {
    return {.kind = kind, .max = 1, .min = 0.1, .warmup_steps = 10, .steps = 110, .decay_fraction = 0.2};
}

}  // namespace

TEST_CASE("warm-up rises in equal steps and ends at the largest rate", "[schedule]") {
    for (const std::string kind : {"cosine", "linear", "constant", "wsd"}) {
        check_rate(of(kind), 0, 0.1);  // never 0: the first step learns
        check_rate(of(kind), 4, 0.5);
        check_rate(of(kind), 9, 1);
        check_rate(of(kind), 10, 1);
    }
}

TEST_CASE("cosine", "[schedule]") {
    check_rate(of("cosine"), 35, 0.55 + 0.45 * std::sqrt(0.5));  // a quarter: cos 45 degrees
    check_rate(of("cosine"), 60, 0.55);                          // half: the middle of 1 and 0.1
    check_rate(of("cosine"), 85, 0.55 - 0.45 * std::sqrt(0.5));
    check_rate(of("cosine"), 110, 0.1);
    check_rate(of("cosine"), 100000, 0.1);  // never up again
    CHECK(learning_rate(of("cosine"), 109) > 0.1);
    CHECK(learning_rate(of("cosine"), 109) < 0.1003);  // 0.45 (1 - cos 1.8 degrees) = 0.00022 above
}

TEST_CASE("linear", "[schedule]") {
    check_rate(of("linear"), 11, 0.991);
    check_rate(of("linear"), 60, 0.55);
    check_rate(of("linear"), 109, 0.109);
    check_rate(of("linear"), 110, 0.1);
    check_rate(of("linear"), 100000, 0.1);
}

TEST_CASE("constant", "[schedule]") {
    check_rate(of("constant"), 60, 1);
    check_rate(of("constant"), 109, 1);
    check_rate(of("constant"), 100000, 1);
}

TEST_CASE("wsd: constant, then down as one minus the root in the last fifth", "[schedule]") {
    check_rate(of("wsd"), 87, 1);
    check_rate(of("wsd"), 88, 1);  // 22 steps of decay: from 88 to 110
    check_rate(of("wsd"), 99, 0.1 + 0.9 * (1 - std::sqrt(0.5)));
    check_rate(of("wsd"), 104, 0.1 + 0.9 * (1 - std::sqrt(16.0 / 22)));
    check_rate(of("wsd"), 110, 0.1);
    check_rate(of("wsd"), 100000, 0.1);
    for (int64_t step = 88; step < 110; step++)
        CHECK(learning_rate(of("wsd"), step + 1) < learning_rate(of("wsd"), step));
}

TEST_CASE("powercool: constant, then what is left to a power", "[schedule]") {
    Schedule schedule = of("powercool");
    check_rate(schedule, 88, 1);  // 22 steps of decay: from 88 to 110
    check_rate(schedule, 99, 0.1 + 0.9 * std::pow(0.5, 1.2));
    check_rate(schedule, 110, 0.1);
    check_rate(schedule, 100000, 0.1);
    schedule.decay_power = 2;
    check_rate(schedule, 99, 0.1 + 0.9 * 0.25);
    check_rate(schedule, 109, 0.1 + 0.9 / 484);
    schedule.decay_power = 1;
    for (int64_t step = 0; step <= 110; step++)
        CHECK(learning_rate(schedule, step) == learning_rate(of("trapezoid"), step));
    // Muon's momentum follows: half of the way.
    CHECK(momentum_at({.start = 1, .peak = 0.75, .end = 0.25}, schedule, 99) == 0.5);
}

TEST_CASE("without warm-up, and with nothing but warm-up", "[schedule]") {
    for (const std::string kind : {"cosine", "linear", "constant", "wsd", "powercool"}) {
        Schedule schedule = of(kind);
        schedule.warmup_steps = 0;
        check_rate(schedule, 0, 1);
        schedule.warmup_steps = schedule.steps;
        check_rate(schedule, 54, 0.5);
        check_rate(schedule, 109, 1);
        CHECK(std::isfinite(learning_rate(schedule, 110)));
    }
}

TEST_CASE("the flags say what the schedule is", "[schedule]") {
    RunFlags config;
    config.lr_schedule = "wsd", config.learning_rate = 0.02, config.final_lr_fraction = 0.25;
    config.warmup_steps = 3, config.steps = 50, config.decay_fraction = 0.5;
    const Schedule schedule = config.chosen_recipe().schedule(50);
    CHECK(schedule.kind == "wsd");
    CHECK(schedule.max == 0.02);
    CHECK(schedule.min == 0.005);
    CHECK(schedule.warmup_steps == 3);
    CHECK(schedule.steps == 50);
    CHECK(schedule.decay_fraction == 0.5);
    CHECK(schedule.decay_power == 1.2);
    config.lr_schedule = "powercool", config.decay_power = 1.5;
    CHECK(config.chosen_recipe().schedule(50).decay_power == 1.5);
    CHECK(contains(config.chosen_recipe().schedule_text(),
                   "powercool, 3 steps of warm-up, down in the last 0.5 of all steps, as what is left of them to the "
                   "power of 1.5, to 0.25 "));
}

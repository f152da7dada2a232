// Runs with a time budget: schedules follow the time, so that a run ends annealed on any machine.
#include "llmc/optim/schedule.h"  // learning_rate
#include "test/program.h"

namespace {
struct TimedStep {
    double lr = 0, ms = 0;
};

std::vector<TimedStep> steps_of(const std::string& folder) {
    std::vector<TimedStep> steps;
    for (const auto& [step, line] : records_by_step(folder, "step")) {
        TimedStep one;
        from_json({{"", "lr", &one.lr, ""}, {"", "ms", &one.ms, ""}}, line, "log.jsonl");
        steps.push_back(one);
    }
    return steps;
}

// What kTiny and --lr-schedule linear come to, of the 2000 steps that a run without --steps has.
const Schedule kSchedule{.kind = "linear", .max = 1e-2, .min = 1e-3, .warmup_steps = 200, .steps = 2000};
const FlagMap kTimed = {{"steps", "auto"},       {"lr-schedule", "linear"},    {"learning-rate", "1e-2"},
                        {"warmup-steps", "200"}, {"final-lr-fraction", "0.1"}, {"sample-tokens", "0"}};

FlagMap timed(const std::string& budget, FlagMap more = {}) {
    more.insert({"time-budget", budget});
    more.insert(kTimed.begin(), kTimed.end());
    return more;
}
}  // namespace

TEST_CASE("with a time budget and no steps, learning rates follow the time", "[time_budget]") {
    const TinyRuns runs;
    const Finished ended = runs.train("a", timed("0.4"));
    must_succeed(ended);
    CHECK(contains(ended.out, "0.4 s, of which schedules are 2000 steps"));
    CHECK(contains(read_file(runs.path("a/log.jsonl")), "\"reason\":\"time budget\""));
    const std::vector<TimedStep> steps = steps_of(runs.path("a"));
    REQUIRE(steps.size() > 10);
    double training_s = 0;
    for (size_t i = 0; i < steps.size(); i++) {
        const auto at = int64_t(std::min(training_s / 0.4, 1.0) * 2000);
        INFO("step " << i << " after " << training_s << " s");
        CHECK(steps[i].lr == learning_rate(kSchedule, at));
        if (i < 10) CHECK(steps[i].lr == kSchedule.max / 200);  // the machine's warm-up takes no time
        CHECK(training_s < 0.4);
        if (i >= 10) training_s += steps[i].ms * 1e-3;
    }
    CHECK(training_s >= 0.4);
}

TEST_CASE("a timed run goes on where it was, and several ranks follow the first one's time", "[time_budget]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", timed("0.2")));
    const size_t before = steps_of(runs.path("a")).size();
    must_succeed(runs.resume("a", {{"time-budget", "0.4"}}));
    const std::vector<TimedStep> all = steps_of(runs.path("a"));
    REQUIRE(all.size() > before);
    CHECK(all[before].lr <= learning_rate(kSchedule, 1000));  // half of the time is over
    CHECK(all[before].lr < all[before - 1].lr + kSchedule.max);

    // Each rank has a clock of its own; had they different learning rates, their weights would differ.
    must_succeed(runs.train("b", timed("0.3", {{"virtual-ranks", "3"}, {"check-replicas", "20"}})));
    const std::vector<TimedStep> steps = steps_of(runs.path("b"));
    REQUIRE(steps.size() > 11);
    CHECK(steps[0].lr == kSchedule.max / 200);
}

TEST_CASE("steps that are asked for are what schedules follow, and time needs a budget", "[time_budget]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", timed("1000", {{"steps", "20"}, {"warmup-steps", "2"}})));
    const std::vector<TimedStep> steps = steps_of(runs.path("a"));
    REQUIRE(steps.size() == 20);
    const Schedule schedule{.kind = "linear", .max = 1e-2, .min = 1e-3, .warmup_steps = 2, .steps = 20};
    for (size_t i = 0; i < 20; i++) CHECK(steps[i].lr == learning_rate(schedule, int64_t(i)));
    const Finished refused = runs.train("c", {{"schedule-by", "time"}});
    CHECK(refused.exit_code == 2);
    CHECK(contains(refused.err, "schedule-by = time needs a --time-budget"));
}

// When a run is over, and in which steps something is due.
#include "llmc/train/run_end.h"
#include "test/testing.h"

namespace {
struct EndOfRun {
    OneRank ranks;
    World world{ranks, nullptr, ""};
    RunConfig config;
    RunState state;

    EndOfRun(int64_t steps, int islands = 0, int64_t outer_every = 100) {
        config.steps = steps;
        config.flags.islands = islands;
        config.flags.outer_every = outer_every;
    }
    std::vector<int64_t> due_steps(int64_t every) const {
        const RunEnd end(config, world, state);
        std::vector<int64_t> steps;
        for (int64_t step = 0; step <= config.steps; step++)
            if (end.is_due(step, every)) steps.push_back(step);
        return steps;
    }
};
}  // namespace

TEST_CASE("what is wanted every so many steps is due in those", "[run_end]") {
    CHECK(EndOfRun(10).due_steps(4) == std::vector<int64_t>{4, 8});
    CHECK(EndOfRun(10).due_steps(0).empty());
}

TEST_CASE("with islands it is due after the next outer step", "[run_end]") {
    CHECK(EndOfRun(20, 2, 5).due_steps(4) == std::vector<int64_t>{5, 10, 15, 20});
    CHECK(EndOfRun(20, 2, 5).due_steps(7) == std::vector<int64_t>{10, 15});
    CHECK(EndOfRun(12, 2, 5).due_steps(12) == std::vector<int64_t>{12});  // the last step is an outer one, too
}

TEST_CASE("a run ends by its steps, its time or its patience, and says why", "[run_end]") {
    EndOfRun run(10);
    run.state.step = 10;
    CHECK(RunEnd(run.config, run.world, run.state).reason() == "finished");
    run.state.step = 5;
    run.config.flags.patience = 2;
    run.state.best.worse = 2;
    CHECK(RunEnd(run.config, run.world, run.state).reason() == "patience");
    run.config.flags.time_budget_s = 60;
    run.state.training_s = 60;
    CHECK(RunEnd(run.config, run.world, run.state).reason() == "time budget");
    CHECK(contains(RunEnd(run.config, run.world, run.state).budget_text(), "stopped at step 5 of 10, "));
    run.config.flags.schedule_by = "time";  // then the budget is the whole run
    CHECK(RunEnd(run.config, run.world, run.state).budget_text() == "");
    run.config.flags.schedule_by = "steps";
    run.state.step = 10;
    CHECK(RunEnd(run.config, run.world, run.state).budget_text() == "");
}

TEST_CASE("islands end by what all have heard", "[run_end]") {
    EndOfRun run(10, 1);
    run.state.step = 5;
    RunEnd end(run.config, run.world, run.state);
    run.config.flags.time_budget_s = 60;
    run.state.training_s = 60;
    CHECK(end.out_of_time_here());
    CHECK(!end.out_of_time());
    end.apply_votes(false, true);
    CHECK(end.out_of_time());
    end.apply_votes(true, false);
    CHECK(end.reason() == "a signal to another rank");
}

TEST_CASE("a run ends by skipped steps", "[run_end]") {
    EndOfRun run(100);
    const RunEnd end(run.config, run.world, run.state);
    run.state.skipped_in_a_row = kMostSkippedInARow - 1;
    end.check_skipped(0, NAN);
    run.state.skipped_in_a_row++;
    CHECK_THROWS_AS(end.check_skipped(0, NAN), SharedError);
    // Without a target to learn, the learning rate is not the cause.
    const std::string error = error_of([&] { end.check_skipped(kMostSkippedInARow, 0.824); });
    CHECK(contains(error, "had no target to learn: what is learned does not fit into --seq-len "));
    CHECK(contains(error, "(82% of the tokens are cropped)"));
    CHECK(contains(error_of([&] { end.check_skipped(kMostSkippedInARow, NAN); }), "the masks of --train-data leave"));
}

// Runs with dropout: the same bits on any ranks and threads and after a resume, and no dropout in evaluation.
#include <cmath>
#include "test/train/rank_runs.h"

namespace {
const FlagMap kDrops = with(kEight, {{"dropout", "0.3"}, {"steps", "12"}});
}

TEST_CASE("with dropout a run has the same bits on any ranks, on any threads and after a resume", "[dropout_runs]") {
    const TinyRuns runs;
    must_succeed(runs.train("one", with(kDrops, {{"checkpoint-every", "5"}, {"keep", "9"}})));
    const std::string one = runs.path("one");
    const auto want = losses_in(one);
    for (const std::string ranks : {"2", "8"}) {
        must_succeed(runs.train("ranks" + ranks, with(kDrops, {{"virtual-ranks", ranks}})));
        CHECK(losses_in(runs.path("ranks" + ranks)) == want);
        CHECK(tensor_difference(step_folder(runs.path("ranks" + ranks), 12), step_folder(one, 12)) == "");
    }
    must_succeed(runs.train("threads", with(kDrops, {{"threads", "3"}, {"recompute", "block"}})));
    CHECK(losses_in(runs.path("threads")) == want);
    must_succeed(run(command_of({{"resume", step_folder(one, 5)}, {"out-dir", runs.path("again")}})));
    CHECK(difference(step_folder(runs.path("again"), 12), step_folder(one, 12)) == "");

    // The first step has learned nothing yet: its loss depends on the masks alone, however its rows are cut.
    must_succeed(runs.train("rows", with(kDrops, {{"batch-size", "4"}, {"steps", "1"}, {"warmup-steps", "0"}})));
    CHECK(std::fabs(losses_in(runs.path("rows"))[0].first - want[0].first) <= 1e-6 * want[0].first);
    must_succeed(runs.train("none", with(kDrops, {{"dropout", "0"}})));
    CHECK(std::fabs(losses_in(runs.path("none"))[0].first - want[0].first) > 1e-4);
    must_succeed(runs.train("seed", with(kDrops, {{"seed", "8"},
                                                  {"init-from", step_folder(one, 5)},
                                                  {"steps", "1"},
                                                  {"warmup-steps", "0"},
                                                  {"shuffle", "false"}})));
    must_succeed(runs.train("other", with(kDrops, {{"seed", "9"},
                                                   {"init-from", step_folder(one, 5)},
                                                   {"steps", "1"},
                                                   {"warmup-steps", "0"},
                                                   {"shuffle", "false"}})));
    CHECK(losses_in(runs.path("seed")) != losses_in(runs.path("other")));
}

TEST_CASE("validation, samples and later commands know no dropout", "[dropout_runs]") {
    const TinyRuns runs;
    // A rate of nearly nothing: after the run the weights are those of the beginning, to a few digits.
    const FlagMap flags = with(kDrops, {{"learning-rate", "1e-9"},
                                        {"steps", "3"},
                                        {"val-every", "1"},
                                        {"sample-tokens", "20"},
                                        {"sample-every", "1"},
                                        {"temperature", "0"}});
    must_succeed(runs.train("drops", flags));
    must_succeed(runs.train("none", with(flags, {{"dropout", "0"}})));
    for (const std::string type : {"val", "sample"}) {
        const auto drops = records_by_step(runs.path("drops"), type), none = records_by_step(runs.path("none"), type);
        REQUIRE(drops.size() == 3);
        for (const auto& [step, line] : drops) {
            if (type == "sample") {
                CHECK(line == none.at(step));
                continue;
            }
            double loss = 0, want = 0;
            from_json({{"", "loss", &loss, ""}}, line, "a");
            from_json({{"", "loss", &want, ""}}, none.at(step), "b");
            CHECK(std::fabs(loss - want) < 1e-5);
        }
    }
    CHECK(std::fabs(losses_in(runs.path("drops"))[0].first - losses_in(runs.path("none"))[0].first) > 1e-4);
    const Finished refused = runs.train("x", {{"dropout", "1"}});
    CHECK(refused.exit_code == kExitUsage);
    CHECK(contains(refused.err, "--dropout 1: expected a number from 0 to 0.99"));
}

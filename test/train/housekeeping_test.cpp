/*
Work beside saving that fails for good: nothing old can be removed, no link can be made, --results cannot be written. It
costs a warning, never a step, and never the run's own error. dev/torture's shim makes the calls fail.
*/
#include "test/train/host_runs.h"  // Hosts

namespace fs = std::filesystem;

namespace {

// Its tests are [plain]: a sanitizer's own start would be among the refused calls, and waits for itself.
struct Shim {
    const TinyRuns runs;
    const std::string path = runs.path("refusing.so");

    Shim() {
        must_succeed(run("${CXX:-g++} -std=c++20 -shared -fPIC -O1 dev/torture/system_calls.cpp -ldl -o " + path));
    }

    // Prefix of a command: the calls that change files in `where` fail from the `at`-th on.
    std::string refusing(const std::string& what, const std::string& where, int at = 1) const {
        return "env LD_PRELOAD=" + path + " TORTURE_DIR=" + where + " TORTURE_AT=" + std::to_string(at) +
               " TORTURE_DO=" + what + " ";
    }
};

const Shim& the_shim() {
    static const Shim shim;  // compiled once
    return shim;
}

int warnings_in(const Finished& done) { return count(done.err, "warning: "); }

}  // namespace

TEST_CASE("what cannot be removed and links that cannot be made cost a warning, and no checkpoint",
          "[housekeeping][plain]") {
    const Shim& shim = the_shim();
    const TinyRuns& runs = shim.runs;
    const FlagMap flags = {{"checkpoint-every", "4"}, {"keep", "1"}, {"val-every", "4"}, {"save-best", "true"}};
    must_succeed(runs.train("straight", flags));
    const std::string straight = runs.path("straight"), last = step_folder(straight, 20);
    const int64_t best = best_step(straight);
    REQUIRE(best > 0);
    struct Case {
        std::string what, ranks, reason, record;
    };
    for (const Case& one : {Case{"eacces", "0", "/step_00000020.tmp: Permission denied", "old checkpoints"},
                            Case{"eacces", "2", "/step_00000020.tmp: Permission denied", "old checkpoints"},
                            Case{"enotempty", "0", "/step_00000020.tmp: Directory not empty", "old checkpoints"},
                            Case{"eperm", "0", "/best.tmp to step_00000004: Operation not permitted", "best"}}) {
        INFO(one.what << ", ranks: " << one.ranks);
        const std::string out = runs.path(one.what + one.ranks);
        // What a killed run of somebody else has left: it is in the way of the last save.
        const std::string left = step_folder(out, 20) + ".tmp";
        fs::create_directories(left);
        put_file(left + "/mine", "");
        const FlagMap all =
            with(flags, {{"virtual-ranks", one.ranks}, {"total-batch-size", "128"}, {"grad-sum", "tree"}});
        if (one.ranks == "2") must_succeed(runs.train("straight2", with(all, {{"virtual-ranks", "0"}})));
        const std::string want = one.ranks == "2" ? runs.path("straight2") : straight;
        const Finished done = run(shim.refusing(one.what, out) +
                                  command_of(runs.flags(one.what + one.ranks, one.ranks == "2" ? all : flags)));
        INFO(done.err);
        must_succeed(done);
        CHECK(warnings_in(done) == 1);
        CHECK(contains(done.err, one.reason));
        CHECK(contains(done.err, "; training goes on, and the next save tries again"));
        CHECK(records_in(out, "warning").size() == 1);
        CHECK(contains(records_in(out, "warning")[0], "\"what\":\"" + one.record + "\""));
        CHECK(verify(step_folder(out, 20)).why == "");
        CHECK(tensor_difference(step_folder(out, 20), step_folder(want, 20)) == "");
        CHECK(fs::exists(left) == (one.what != "eperm"));
        // No checkpoint is half removed, nor hidden by its removal: --keep 1 is what could not be done.
        for (const int64_t step : checkpoint_steps(out)) CHECK(verify(step_folder(out, step)).why == "");
        if (one.what == "eacces") CHECK(checkpoint_steps(out).size() == 5);
        CHECK(best_step(out) == (one.what == "eperm" ? -1 : best_step(want)));
        CHECK(fs::exists(step_folder(out, best_step(want))));
        // Once it can be done it is.
        must_succeed(runs.resume(one.what + one.ranks, {{"virtual-ranks", one.ranks}}));
        CHECK_FALSE(is_saving(out));
        CHECK(best_step(out) == best_step(want));
        CHECK(checkpoint_steps(out).size() <= 2);  // the newest and the best
    }
    CHECK(verify(last).why == "");
}

TEST_CASE("a save that fails once is tried again before the run ends", "[housekeeping][plain]") {
    const Shim& shim = the_shim();
    const TinyRuns& runs = shim.runs;
    // In the background and not; the first save begins at the 8th step. Which call of a save fails differs.
    for (const std::string async : {"true", "false"})
        for (const int at : {40, 43}) {
            const std::string name = async + std::to_string(at), out = runs.path(name);
            const Finished done =
                run(shim.refusing("eio", out, at) +
                    command_of(runs.flags(name, {{"checkpoint-every", "8"}, {"async-checkpoint", async}})));
            INFO(name << ": " << done.err);
            REQUIRE(done.exit_code == kExitUsage);  // or `at` is no call of a save any more
            CHECK(contains(done.err, "Input/output error"));
            CHECK(count(done.err, "error: ") == 1);
            REQUIRE_FALSE(checkpoint_steps(out).empty());
            CHECK(checkpoint_steps(out).back() >= steps_in(out).back().step);
            CHECK(verify(step_folder(out, checkpoint_steps(out).back())).why == "");
        }
}

TEST_CASE("--results is opened before the run, and never hides how the run ended", "[housekeeping][plain]") {
    const Shim& shim = the_shim();
    const TinyRuns& runs = shim.runs;
    const std::string table = runs.path("results.tsv");
    const Finished at_once = runs.train("none", {{"results", runs.path("nowhere/results.tsv")}});
    CHECK(at_once.exit_code == kExitUsage);
    CHECK(contains(at_once.err, "error: --results: cannot open "));
    CHECK_FALSE(fs::exists(runs.path("none")));

    // It is there at the start, and cannot be written at the end.
    const auto on_full_disk = [&](const std::string& name, const FlagMap& changes) {
        return run(shim.refusing("enospc", table, 2) +
                   command_of(runs.flags(name, with(changes, {{"results", table}}))));
    };
    const std::string warning = "warning: no row of this run: --results: cannot write " + table + ": No space left";
    const Finished good = on_full_disk("good", {{"steps", "6"}});
    INFO(good.err);
    CHECK(good.exit_code == 0);
    CHECK(contains(good.err, warning));
    CHECK(verify(step_folder(runs.path("good"), 6)).why == "");
    fs::remove(table);
    const Finished bad = on_full_disk("bad", {{"learning-rate", "1e30"}, {"warmup-steps", "0"}});
    INFO(bad.err);
    CHECK(bad.exit_code == kExitDiverged);
    CHECK(contains(bad.err, warning));
    CHECK(contains(bad.err, "error: the loss or the gradient was not finite"));

    // A checkpoint of somebody else must not name a file that its resume writes.
    must_succeed(runs.train("theirs", {{"steps", "6"}, {"results", table}}));
    fs::remove(table);
    must_succeed(runs.resume("theirs", {{"steps", "8"}}));
    CHECK_FALSE(fs::exists(table));
}

TEST_CASE("a run whose folder is renamed says so, and a log without a checkpoint is not replaced in silence",
          "[housekeeping]") {
    const TinyRuns runs;
    const std::string out = runs.path("run"), moved = runs.path("moved");
    // Renamed while nothing is saved: the only checkpoint is the one that SIGTERM asks for.
    const Started started(command_of(runs.flags("run", {{"steps", "1000000"}, {"checkpoint-every", "0"}})), out);
    REQUIRE(wait_until([&] { return fs::exists(out + "/log.jsonl") && !steps_in(out).empty(); }, 120));
    fs::rename(out, moved);
    const Finished done = started.finish(SIGTERM);
    must_succeed(done);
    CHECK(count(done.err, "warning: ") == 1);
    CHECK(contains(done.err,
                   "/log.jsonl was renamed or removed, or its folder; checkpoints go to the folder of that name"));
    CHECK(records_in(moved, "warning").size() == 1);
    CHECK(checkpoint_steps(out).size() == 1);

    const Finished again = runs.train("moved", {{"steps", "6"}});
    must_succeed(again);
    CHECK(contains(again.out, "/log.jsonl: the log of a run that made "));
}

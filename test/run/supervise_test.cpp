/*
--supervise: runs that lose a rank and restart by themselves, with it or without; and how they end if they cannot, or
are asked to stop.
*/
#include "llmc/run/supervise.h"
#include <signal.h>
#include <fstream>
#include "test/train/mpi_runs.h"

namespace fs = std::filesystem;

namespace {

// The training that a supervisor has started last; 0: none is there now.
pid_t child_of(pid_t supervisor) {
    const std::string pid = std::to_string(supervisor);
    pid_t child = 0;
    std::ifstream("/proc/" + pid + "/task/" + pid + "/children") >> child;
    return child;
}
pid_t await_child(pid_t supervisor, pid_t other_than = 0) {
    pid_t child = 0;
    REQUIRE(wait_until([&] { return (child = child_of(supervisor)) && child != other_than; }, 120));
    return child;
}
// The second after `above`: by then all ranks know of the first.
void await_checkpoints(const std::string& out, int64_t above = 0) {
    REQUIRE(wait_until(
        [&] {
            const std::vector<int64_t> steps = checkpoint_steps(out);
            return !steps.empty() && steps.back() >= above + 8;
        },
        120));
}

FlagMap supervised(const FlagMap& more = {}) {
    return with(with(kEight, {{"supervise", "true"}, {"checkpoint-every", "4"}, {"val-data", ""}}), more);
}

}  // namespace

TEST_CASE("a supervised process that is killed goes on from its newest checkpoint, bit for bit", "[supervise][plain]") {
    const TinyRuns runs;
    const std::string out = runs.path("a");
    const FlagMap long_run = {{"steps", "200"}};
    const Started run_on(command_of(runs.flags("a", supervised(long_run))), out);
    await_checkpoints(out);
    const pid_t first = await_child(run_on.pid);
    REQUIRE(kill(first, SIGKILL) == 0);
    const pid_t second = await_child(run_on.pid, first);
    CHECK(second != first);
    const Finished ended = run_on.finish();
    must_succeed(ended);
    CHECK(contains(ended.err,
                   "warning: --supervise: rank 0 was ended by signal 9 (Killed): it starts again in 0.5 s, from "
                   "the newest checkpoint\n"));
    must_succeed(runs.train("straight", with(supervised(long_run), {{"supervise", "false"}})));
    CHECK(tensor_difference(step_folder(out, 200), step_folder(runs.path("straight"), 200)) == "");
    CHECK(losses_in(out) == losses_in(runs.path("straight")));
    // The same command, once more: it has reached its end.
    must_succeed(runs.train("a", supervised(long_run)));
}

TEST_CASE("a supervised process is started again, also when nobody reads stderr any more", "[supervise][plain]") {
    const TinyRuns runs;
    const std::string out = runs.path("a"), script = runs.path("unread");
    put_file(script, "exec " + command_of(runs.flags("a", supervised({{"steps", "200"}}))) + " 2> >(true)\n");
    const Started run_on("bash " + script, out);
    await_checkpoints(out);
    REQUIRE(kill(await_child(run_on.pid), SIGKILL) == 0);
    must_succeed(run_on.finish());
    CHECK(checkpoint_steps(out).back() == 200);
}

TEST_CASE("supervised ranks that lose one start again together, or go on without it", "[supervise][plain]") {
    const TinyRuns runs;
    must_succeed(runs.train("straight", with(supervised({{"steps", "200"}}), {{"supervise", "false"}})));
    for (const bool comes_back : {true, false}) {
        INFO((comes_back ? "comes back" : "stays away"));
        const std::string name = comes_back ? "back" : "away", out = runs.path(name);
        const FlagMap flags = supervised({{"steps", "200"}, {"comm-timeout", comes_back ? "60" : "3"}});
        TcpRun ranks(2, runs.flags(name, flags), out);
        await_checkpoints(out);
        const pid_t victim = comes_back ? await_child(ranks.ranks[1].pid) : ranks.ranks[1].pid;
        REQUIRE(kill(victim, SIGKILL) == 0);  // with its supervisor goes its child
        const std::vector<Finished> ended = ranks.finish();
        INFO(ended[0].err << ended[1].err);
        CHECK(ended[0].exit_code == 0);
        CHECK(contains(ended[0].err, "warning: --supervise: rank 0 ended with exit code 3: it starts again in "));
        CHECK(ended[1].exit_code == (comes_back ? 0 : 128 + SIGKILL));
        CHECK(contains(ended[0].err, "warning: rank 1 did not come back to 127.0.0.1:") == !comes_back);
        CHECK(contains(ended[0].out, " x 1 rank = 256 tokens per step\n") == !comes_back);
        CHECK(tensor_difference(step_folder(out, 200), step_folder(runs.path("straight"), 200)) == "");
        CHECK(losses_in(out) == losses_in(runs.path("straight")));
    }
}

TEST_CASE("of ranks that go on without one the others have new numbers, and a batch that they cannot share is said",
          "[supervise][plain]") {
    const TinyRuns runs;
    // Rank 1 of three goes; two share 8 micro-batches of 32 tokens, and not 3.
    for (const std::string total : {"192", "96"}) {
        INFO(total << " tokens");
        const std::string out = runs.path(total);
        const FlagMap flags = supervised({{"steps", "1000000"},
                                          {"comm-timeout", "4"},
                                          {"total-batch-size", total},
                                          {"lr-schedule", "constant"},
                                          {"print-every", "1000"}});
        TcpRun ranks(3, runs.flags(total, flags), out);
        await_checkpoints(out);
        REQUIRE(kill(ranks.ranks[1].pid, SIGKILL) == 0);
        if (total == "192") {
            const auto says_so = [&] { return contains(read_file(out + "0.err"), "going on without"); };
            REQUIRE(wait_until(says_so, 120));
            await_checkpoints(out, checkpoint_steps(out).back());
            REQUIRE(kill(ranks.ranks[2].pid, SIGTERM) == 0);  // a supervisor passes it on, and all stop
        }
        const std::vector<Finished> ended = ranks.finish();
        INFO(ended[0].err << ended[2].err);
        for (const size_t rank : {size_t(0), size_t(2)})
            CHECK(ended[rank].exit_code == (total == "192" ? 0 : kExitUsage));
        if (total == "192") CHECK(contains(ended[0].out, "\n2 ranks, by --rank and --world-size\n"));
        if (total == "96")
            CHECK(contains(ended[0].err,
                           "error: --total-batch-size 96 is not a multiple of --batch-size 2 x --seq-len "
                           "16 x 2 ranks"));
    }
}

TEST_CASE("a supervisor that is asked to stop starts nothing more, and ends as its training does",
          "[supervise][plain]") {
    const TinyRuns runs;
    const FlagMap endless = supervised({{"steps", "1000000"}, {"lr-schedule", "constant"}, {"print-every", "1000"}});
    const std::string out = runs.path("a");
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
        INFO("signal " << signal);
        const int64_t before = checkpoint_steps(out).empty() ? 0 : checkpoint_steps(out).back();
        const Started run_on(command_of(runs.flags("a", endless)), out);
        await_checkpoints(out, before);
        const Finished ended = run_on.finish(signal);
        CHECK(ended.exit_code == 0);
        CHECK(ended.err == "");
        const std::vector<std::string> ends = records_in(out, "end");
        REQUIRE(!ends.empty());
        CHECK(contains(ends.back(), "\"reason\":\"SIG"));
    }
    // While it pauses, too: for long enough that this comes in time, after two that have saved nothing.
    const Started paused(command_of(runs.flags("b", with(endless, {{"checkpoint-every", "0"}}))), runs.path("b"));
    pid_t child = 0;
    for (const std::string pause_s : {"1", "2"}) {
        child = await_child(paused.pid, child);
        kill(child, SIGKILL);
        const std::string says = "starts again in " + pause_s + " s";
        REQUIRE(wait_until([&] { return contains(read_file(runs.path("b.err")), says); }, 120));
    }
    const Finished stopped = paused.finish(SIGTERM);
    CHECK(stopped.exit_code == 128 + SIGKILL);
    CHECK(count(stopped.err, "starts again in ") == 2);
}

TEST_CASE("what cannot go on by itself ends, with the exit code of the last try and one line", "[supervise][plain]") {
    const TinyRuns runs;
    const auto line_of = [](const std::string& text) { return text.substr(text.rfind('\n', text.size() - 2) + 1); };
    // Nobody else comes: four times, and nothing was saved.
    const FlagMap alone = {{"rank", "0"},
                           {"world-size", "2"},
                           {"comm-timeout", "0.2"},
                           {"master", "127.0.0.1:" + std::to_string(free_port())}};
    const Finished lonely = runs.train("a", supervised(alone));
    CHECK(lonely.exit_code == kExitRank);
    CHECK(count(lonely.err, "rank 1 did not come to 127.0.0.1:") == 4);
    CHECK(count(lonely.err, "warning: --supervise: rank 0 ended with exit code 3: it starts again in ") == 3);
    CHECK(line_of(lonely.err) ==
          "error: --supervise: rank 0 ended with exit code 3, the 4th time in a row before a "
          "checkpoint: not started again\n");
    const Finished once = runs.train("a", supervised(with(alone, {{"max-restarts", "0"}})));
    CHECK(once.exit_code == kExitRank);
    CHECK(line_of(once.err) ==
          "error: --supervise: rank 0 ended with exit code 3, and was started again 0 times "
          "(max-restarts)\n");
    // What another try does not cure is not tried again.
    const Finished wrong = runs.train("b", supervised({{"train-data", runs.path("nowhere")}}));
    CHECK(wrong.exit_code == kExitUsage);
    CHECK(count(wrong.err, "error: ") == 1);
    CHECK_FALSE(contains(wrong.err, "--supervise"));
    // What it cannot do it says before it starts anything.
    const Finished other = runs.train("b", supervised({{"resume", "elsewhere"}}));
    CHECK(other.exit_code == kExitUsage);
    CHECK(contains(other.err,
                   "error: --supervise continues from the newest checkpoint in --out-dir, and --resume elsewhere "
                   "is another: "));
    const Finished launched =
        run("env TORCHELASTIC_RUN_ID=x RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=1 " +
            command_of(runs.flags("b", supervised())));
    CHECK(launched.exit_code == kExitUsage);
    CHECK(contains(launched.err, "ranks of torchrun must be started again by it: torchrun --max-restarts"));
    CHECK_FALSE(fs::exists(runs.path("b")));
}

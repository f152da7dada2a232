/*
Ranks that are killed, hang or are asked to stop: the others end and name them, and the run resumes from its newest
checkpoint.

  ANVIL_KILLS=50 make test OP=mpi_kill        the number of kills of a rank, at 2 and at 4 ranks (2 by default)
*/
#include <signal.h>
#include <cstdlib>
#include "test/train/mpi_runs.h"

namespace fs = std::filesystem;

TEST_CASE("a rank that is killed ends the run, which goes on from its newest checkpoint", "[mpi_kill][mpi]") {
    if (!has_mpi()) return;
    const char* wish = std::getenv("ANVIL_KILLS");
    const int kills = wish ? std::atoi(wish) : 2;
    REQUIRE(kills > 0);
    constexpr double kTimeoutS = 5;
    const TinyRuns runs;
    // A save after every other step: most of the time is spent saving.
    const FlagMap often = with(kEight, {{"steps", "40"}, {"checkpoint-every", "2"}, {"comm-timeout", "5"}});
    must_succeed(runs.train("straight", often));
    const std::string want = step_folder(runs.path("straight"), 40);
    Rng rng(1, Stream::tests);
    for (const int n : {2, 4}) {
        const std::string name = "killed" + std::to_string(n), out = runs.path(name);
        const std::string command = mpirun_command(n, command_of(runs.flags(name, with(often, {{"resume", "auto"}}))));
        double longest_s = 1;  // before a kill, from when all ranks are there
        int killed = 0, in_a_save = 0, finished_runs = 0, without_progress = 0;
        double slowest_end_s = 0;
        int64_t newest = -1;
        // A run that comes to its end before its kill is compared and begun again.
        while (killed < kills) {
            const double moment_s = rng.uniform() * longest_s;
            const size_t victim = size_t(rng.uniform() * n);
            const Started run_on(command, out);
            std::vector<RankOfRun> ranks;
            REQUIRE(wait_until([&] { return (ranks = ranks_of(out)).size() == size_t(n); }));
            sleep_s(moment_s);
            kill(ranks[victim].pid, SIGKILL);
            const double killed_s = now_s();
            const Finished one = run_on.finish();
            INFO("kill " << killed << " of rank " << victim << " after " << moment_s << " s, newest checkpoint "
                         << newest << ": " << one.out << one.err);
            REQUIRE(wait_until([&] { return ranks_of(out).empty(); }, kTimeoutS + 5));
            const double end_s = now_s() - killed_s;
            REQUIRE(end_s < kTimeoutS + 5);
            const FoundCheckpoint found = find_checkpoint(out);
            REQUIRE(found.passed_over.empty());
            REQUIRE(found.step >= newest);  // what was saved stays saved
            for (const int64_t step : checkpoint_steps(out)) REQUIRE(verify(step_folder(out, step)).why == "");
            if (one.exit_code == 0) {
                REQUIRE(tensor_difference(step_folder(out, 40), want) == "");
                finished_runs++;
                fs::remove_all(out);
                newest = -1;
                longest_s *= 0.8;
                continue;
            }
            killed++;
            slowest_end_s = std::max(slowest_end_s, end_s);
            in_a_save += is_saving(out);
            without_progress += found.step == newest;
            if (found.step == newest) longest_s *= 1.1;
            newest = found.step;
        }
        must_succeed(run(command));
        CHECK(tensor_difference(step_folder(out, 40), want) == "");
        CHECK(losses_in(out) == losses_in(runs.path("straight")));
        CHECK(checkpoint_steps(out) == std::vector<int64_t>{38, 40});
        CHECK_FALSE(is_saving(out));
        std::printf(
            "%d ranks: %d kills, %d of them in a save, %d before there was a newer checkpoint, %d runs to the end; all "
            "processes gone after %.1f s at most\n",
            n, killed, in_a_save, without_progress, finished_runs + 1, slowest_end_s);
    }
}

TEST_CASE("over TCP, a rank that is killed ends the others, and they name it", "[mpi_kill]") {
    const TinyRuns runs;
    const FlagMap endless = with(kEight, {{"steps", "1000000"}, {"val-data", ""}, {"print-every", "1000"}});
    for (const size_t victim : {size_t(0), size_t(1)}) {
        const std::string name = "victim" + std::to_string(victim), out = runs.path(name);
        const TcpRun ranks(2, runs.flags(name, endless), out);
        REQUIRE(wait_until([&] { return has_steps(out, 3); }));
        const double killed_s = now_s();
        CHECK(ranks.ranks[victim].finish(SIGKILL).exit_code == 128 + SIGKILL);
        const Finished other = ranks.ranks[1 - victim].finish();
        INFO(other.err);
        CHECK(now_s() - killed_s < 8);
        CHECK(other.exit_code == kExitRank);
        CHECK(count(other.err, "error: ") == 1);
        CHECK(contains(other.err, "error: rank " + std::to_string(1 - victim) + ": rank " + std::to_string(victim)));
    }
}

TEST_CASE("a rank that hangs is named by the others, with what they wait for", "[mpi_kill]") {
    const TinyRuns runs;
    const FlagMap endless = with(kEight, {{"steps", "1000000"},
                                          {"total-batch-size", "96"},
                                          {"val-data", ""},
                                          {"print-every", "1000"},
                                          {"comm-timeout", "3"}});
    const std::string out = runs.path("a");
    const TcpRun ranks(3, runs.flags("a", endless), out);
    REQUIRE(wait_until([&] { return has_steps(out, 3); }));
    REQUIRE(kill(ranks.ranks[1].pid, SIGSTOP) == 0);
    const double stopped_s = now_s();
    int named = 0;
    for (const size_t r : {size_t(0), size_t(2)}) {
        const Finished other = ranks.ranks[r].finish();
        INFO("rank " << r << ": " << other.err);
        CHECK(now_s() - stopped_s < 8);
        CHECK(other.exit_code == kExitRank);
        CHECK(count(other.err, "error: ") == 1);
        CHECK(contains(other.err, "error: rank " + std::to_string(r) + ": "));
        named +=
            contains(other.err, " in step ") && contains(other.err, " was not over after 3 s; not there yet: rank 1");
        CHECK(contains(other.err, "rank 1"));
    }
    CHECK(named >= 1);  // the first to lose patience ends the other, and may be heard before its own is lost
    // When it wakes up, all other ranks are gone.
    kill(ranks.ranks[1].pid, SIGCONT);
    const Finished late = ranks.ranks[1].finish();
    INFO(late.err);
    CHECK(late.exit_code == kExitRank);
    CHECK(contains(late.err, "error: rank 1: "));
}

TEST_CASE("a signal to mpirun or to one rank stops all after the same step", "[mpi_kill][mpi]") {
    if (!has_mpi()) return;
    const TinyRuns runs;
    const FlagMap flags = with(kEight, {{"steps", "400"}, {"val-data", ""}});
    must_succeed(runs.train("straight", flags));
    struct Case {
        std::string name;
        int signal, rank;  // -1: mpirun
        std::string reason;
    };
    for (const Case& c :
         {Case{"mpirun", SIGUSR1, -1, "SIGUSR1"}, Case{"last", SIGTERM, 1, "a signal to another rank"}}) {
        const std::string out = runs.path(c.name);
        const Started started(mpirun_command(2, command_of(runs.flags(c.name, flags))), out);
        REQUIRE(wait_until([&] { return has_steps(out, 3); }));
        if (c.rank < 0)
            kill(mpirun_pid(started), c.signal);
        else
            kill(ranks_of(out).at(size_t(c.rank)).pid, c.signal);
        const Finished finished = started.finish();
        INFO(c.name << ": " << finished.out << finished.err);
        REQUIRE(finished.exit_code == 0);
        const std::vector<std::string> ends = records_in(out, "end");
        REQUIRE(ends.size() == 1);
        CHECK(contains(ends[0], "\"" + c.reason + "\""));
        const std::vector<int64_t> saved = checkpoint_steps(out);
        REQUIRE(saved.size() == 1);
        CHECK(saved[0] == int64_t(records_in(out, "step").size()));
        REQUIRE(saved[0] < 400);
        CHECK(verify(step_folder(out, saved[0])).why == "");
        must_succeed(mpirun(2, command_of(runs.resume_flags(c.name))));
        CHECK(losses_in(out) == losses_in(runs.path("straight")));
        CHECK(tensor_difference(step_folder(out, 400), step_folder(runs.path("straight"), 400)) == "");
    }
}

// --nproc-per-node: ranks that one command starts on each host, how they meet, and how they end.
#include "llmc/run/local_ranks.h"
#include <signal.h>
#include <fstream>
#include "test/train/mpi_runs.h"

namespace {

const std::string kTwo = " --nproc-per-node 2";

std::vector<RankOfRun> children_of(const Started& started, const std::string& out_dir) {
    std::vector<RankOfRun> ranks = ranks_of(out_dir);
    std::erase_if(ranks, [&](const RankOfRun& rank) { return rank.pid == started.pid; });
    return ranks;
}

FlagMap endless() { return with(kEight, {{"steps", "1000000"}, {"lr-schedule", "constant"}, {"print-every", "1000"}}); }

}  // namespace

TEST_CASE("ranks that one command starts train to the bits of one rank, on one host and on two",
          "[local_ranks][plain]") {
    const TinyRuns runs;
    must_succeed(runs.train("one", kEight));
    const auto check_same = [&](const std::string& name) {
        INFO(name);
        CHECK(losses_in(runs.path(name)) == losses_in(runs.path("one")));
        const int64_t last = checkpoint_steps(runs.path("one")).back();
        CHECK(tensor_difference(step_folder(runs.path(name), last), step_folder(runs.path("one"), last)) == "");
    };
    const Finished here = run(command_of(runs.flags("here", kEight)) + kTwo);
    must_succeed(here);
    CHECK(contains(here.out, "2 ranks, by --nproc-per-node\n"));
    CHECK(here.err == "");
    check_same("here");
    // As flags say, as torchrun's variables do in a pod of a TrainJob, and as SkyPilot's do.
    const std::string port = std::to_string(free_port());
    const auto on_two_hosts = [&](const std::string& name, auto command_of_host) {
        std::vector<Started> hosts;
        for (const std::string host : {"0", "1"})
            hosts.emplace_back(command_of_host(host, command_of(runs.flags(name, kEight))), runs.path(name) + host);
        for (const Started& host : hosts) must_succeed(host.finish());
        check_same(name);
    };
    on_two_hosts("flags", [&](const std::string& host, const std::string& command) {
        return command + kTwo + " --nnodes 2 --node-rank " + host + " --master-addr 127.0.0.1:" + port;
    });
    on_two_hosts("pods", [&](const std::string& host, const std::string& command) {
        return "env PET_NNODES=2 PET_NPROC_PER_NODE=2 PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT=" + port +
               " PET_NODE_RANK=" + host + " " + command;
    });
    on_two_hosts("sky", [&](const std::string& host, const std::string& command) {
        return "env SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_IPS=127.0.0.1 MASTER_PORT=" + port +
               " SKYPILOT_NODE_RANK=" + host + " " + command + kTwo;
    });
    // It goes on in one process, and the other way around: that they were started here is not of the run.
    must_succeed(runs.resume("here", {{"steps", "12"}}));
    must_succeed(run(command_of(runs.flags("one", with(kEight, {{"steps", "12"}, {"resume", "auto"}}))) + kTwo));
    check_same("here");
}

TEST_CASE("of ranks that one command has started one dies, and all end as it did", "[local_ranks][plain]") {
    const TinyRuns runs;
    const std::string out = runs.path("a");
    const Started run_on(command_of(runs.flags("a", endless())) + kTwo, out);
    REQUIRE(wait_until([&] { return has_steps(out, 3); }, 120));
    const std::vector<RankOfRun> ranks = children_of(run_on, out);
    REQUIRE(ranks.size() == 2);
    REQUIRE(kill(ranks[1].pid, SIGKILL) == 0);
    const Finished ended = run_on.finish();
    INFO(ended.err);
    CHECK(ended.exit_code == 128 + SIGKILL);
    CHECK(contains(ended.err, "error: rank 1 was ended by signal 9 (Killed)\n"));
    CHECK(children_of(run_on, out).empty());

    // With the process that started them they go, too.
    const std::string other = runs.path("b");
    const Started killed(command_of(runs.flags("b", endless())) + kTwo, other);
    REQUIRE(wait_until([&] { return has_steps(other, 3); }, 120));
    killed.finish(SIGKILL);
    CHECK(wait_until([&] { return ranks_of(other).empty(); }, 60));
}

TEST_CASE("a process that a command of the user's leaves behind is taken for no rank", "[local_ranks][plain]") {
    const TinyRuns runs;
    // It becomes a child of the one that has started the ranks if that is process 1 of a container, or as here.
    const std::string adopts =
        "import ctypes, os, sys; assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0; "
        "os.execvp(sys.argv[1], sys.argv[1:])";  // PR_SET_CHILD_SUBREAPER
    // The first command leaves one, which ends when its parent has; the second waits for that.
    const std::string pid = runs.path("pid"), while_there = "do sleep 0.01; done 2>" + runs.path("gone");
    const std::string command = "if [ -e " + pid + " ]; then while kill -0 $(cat " + pid + "); " + while_there +
                                "; else (while kill -0 $$; " + while_there + "; exit 7) & echo $! >" + pid + "; fi";
    const FlagMap leaves = {{"checkpoint-every", "4"}, {"steps", "8"}, {"after-checkpoint", command}};
    const Finished ended =
        run("python3 -c '" + adopts + "' " + command_of(runs.flags("a", with(kEight, leaves))) + kTwo);
    must_succeed(ended);
    CHECK(ended.err == "");
}

TEST_CASE("how processes end is seen, also where SIGCHLD was ignored", "[local_ranks][plain]") {
    const TinyRuns runs;
    const std::string ignores =
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execvp(sys.argv[1], sys.argv[1:])";
    const Finished ended =
        run("timeout -k 5 100 python3 -c '" + ignores + "' " +
            command_of(runs.flags("a", with(kEight, {{"steps", "4"}, {"after-checkpoint", "exit 7"}}))) + kTwo);
    must_succeed(ended);
    CHECK(contains(ended.err, "warning: --after-checkpoint of step 4 ended with exit code 7; it is tried again"));
}

TEST_CASE("Ctrl-Z stops all processes that one command has started, and fg continues them", "[local_ranks][plain]") {
    const TinyRuns runs;
    const std::string out = runs.path("a");
    const Started run_on(command_of(runs.flags("a", endless())) + kTwo + " --supervise", out);
    REQUIRE(wait_until([&] { return has_steps(out, 3); }, 120));
    const std::vector<RankOfRun> all = ranks_of(out);
    CHECK(all.size() == 5);  // two ranks, the supervisor of each, and the command
    const auto are_stopped = [&](bool stopped) {
        return std::all_of(all.begin(), all.end(), [&](const RankOfRun& process) {
            std::string pid, name, state;
            std::ifstream("/proc/" + std::to_string(process.pid) + "/stat") >> pid >> name >> state;
            return (state == "T") == stopped;
        });
    };
    REQUIRE(kill(run_on.pid, SIGTSTP) == 0);
    CHECK(wait_until([&] { return are_stopped(true); }, 60));
    REQUIRE(kill(run_on.pid, SIGCONT) == 0);
    CHECK(wait_until([&] { return are_stopped(false); }, 60));
    CHECK(run_on.finish(SIGTERM).exit_code == 0);
}

TEST_CASE("a signal to the command that has started ranks stops all of them after a checkpoint",
          "[local_ranks][plain]") {
    const TinyRuns runs;
    for (const int signal : {SIGINT, SIGTERM}) {
        const std::string name = std::to_string(signal), out = runs.path(name);
        const Started run_on(command_of(runs.flags(name, endless())) + kTwo, out);
        REQUIRE(wait_until([&] { return has_steps(out, 3); }, 120));
        const Finished ended = run_on.finish(signal);
        INFO(ended.err);
        CHECK(ended.exit_code == 0);
        CHECK(contains(ended.out, "stopped by SIG"));
        CHECK_FALSE(checkpoint_steps(out).empty());
    }
}

TEST_CASE("what cannot be started on a host is said once", "[local_ranks]") {
    const TinyRuns runs;
    const auto refusal = [&](const std::string& environment, const FlagMap& flags) {
        const Finished ended = run(environment + " " + command_of(runs.flags("a", with(kEight, flags))));
        INFO(ended.out << ended.err);
        CHECK(ended.exit_code == kExitUsage);
        CHECK(count(ended.err, "error: ") == 1);
        return ended.err;
    };
    CHECK(contains(refusal("", {{"nproc-per-node", "2"}, {"batch-size", "0x"}}), "--batch-size 0x: expected "));
    CHECK(contains(refusal("", {{"nproc-per-node", "2"}, {"batch-size", "3"}}), "is not a multiple of --batch-size 3"));
    CHECK(contains(refusal("PET_NPROC_PER_NODE=2", {{"no-such-flag", "3"}}), "unknown flag --no-such-flag"));
    CHECK(contains(refusal("", {{"nproc-per-node", "2"}, {"nnodes", "2"}}),
                   "--node-rank -1: expected the number of this host, from 0 to 1 (--nnodes 2)"));
    CHECK(contains(refusal("", {{"nproc-per-node", "2"}, {"nnodes", "2"}, {"node-rank", "1"}}),
                   "--nnodes 2 needs --master HOST:PORT, where host 0 is"));
    for (const FlagMap& flags :
         {FlagMap{{"nnodes", "2"}}, {{"node-rank", "1"}}, {{"nproc-per-node", "2"}, {"node-rank", "1"}}})
        CHECK(contains(refusal("", flags), "expected both, and with them --nproc-per-node"));
    CHECK(contains(refusal("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1", {{"nproc-per-node", "2"}}),
                   "--nproc-per-node 2 starts the ranks of a host, and "));
    if (mpi_is_built_in())
        CHECK(contains(refusal("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0",
                               {{"nproc-per-node", "2"}}),
                       "and Open MPI's mpirun has started them: leave it out"));
}

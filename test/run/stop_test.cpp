/*
A signal in the middle of a long validation or of a long scoring of tasks: the run is saved without finishing it, on all
ranks, and its result is dropped. That it was not finished is seen in the log, not by a clock.
*/
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <fstream>
#include "llmc/run/stop.h"            // catch_stop_signals
#include "test/eval/tasks_fixture.h"  // questions
#include "test/train/host_runs.h"     // Hosts

namespace fs = std::filesystem;

namespace {

// A step takes milliseconds, a validation of all tokens minutes: 1.5 million multiply-adds per token, 250,000 tokens.
const FlagMap kLong = {{"num-layers", "4"},       {"channels", "256"},   {"seq-len", "16"},
                       {"steps", "1000"},         {"val-tokens", "0"},   {"val-every", "3"},
                       {"checkpoint-every", "0"}, {"save-best", "true"}, {"total-batch-size", "64"},
                       {"patience", "5"}};

// Waits until step 3 is in the log, so that its validation is next.
void wait_for_validation(const std::string& out) {
    REQUIRE(wait_until([&] { return fs::exists(out + "/log.jsonl") && records_in(out, "step").size() == 3; }, 120));
}

void check_saved(const std::string& out, const Finished& first, const std::string& reason) {
    INFO(first.err);
    CHECK(records_in(out, "val").empty());
    CHECK(records_in(out, "step").size() == 3);  // not another one either: after a resume the validation is due again
    CHECK(checkpoint_steps(out) == std::vector<int64_t>{3});
    CHECK(verify(step_folder(out, 3)).why == "");
    CHECK(best_step(out) == -1);
    CHECK(state_in(step_folder(out, 3)).best.counted_step < 3);
    CHECK(contains(records_in(out, "end").back(), "\"reason\":\"" + reason + "\""));
}

}  // namespace

TEST_CASE("a signal ends a validation, and the step before it is saved", "[stop]") {
    const TinyRuns runs(2'500'000);
    for (const std::string ranks : {"0", "2"}) {
        const std::string name = "ranks" + ranks, out = runs.path(name);
        const Started started(command_of(runs.flags(name, with(kLong, {{"virtual-ranks", ranks}}))), out);
        wait_for_validation(out);
        const Finished done = started.finish(SIGTERM);
        must_succeed(done);
        check_saved(out, done, "SIGTERM");
        CHECK(contains(done.out, "stopped by SIGTERM: step 3 is saved in " + step_folder(out, 3) +
                                     "; continue with --resume " + out + "\n"));
        // The validation is not lost: it is the first that the resumed run does.
        const Finished again = run(command_of(runs.resume_flags(name, {{"steps", "10"}, {"val-tokens", "64"}})));
        must_succeed(again);
        CHECK(records_by_step(out, "val").contains(3));
    }
    // `eval` has nothing to save: it ends by the first signal.
    const std::string out = runs.path("ranks0");
    const Started eval(command_of({{"resume", out}, {"val-tokens", "0"}}, "eval"), runs.path("eval"));
    usleep(300000);  // in its validation, or still before it: the same
    CHECK(eval.finish(SIGINT).exit_code == 128 + SIGINT);
}

TEST_CASE("a second signal ends the program at once, unless it comes with the first", "[stop]") {
    const int kLate = 77;  // this machine was too busy to send two signals together
    const auto ended_by = [&](const std::vector<std::pair<int, int>>& signals_and_pauses_ms) {
        for (;;) {
            const pid_t child = fork();
            REQUIRE(child >= 0);
            if (child == 0) {
                catch_stop_signals();
                for (const auto& [signal, pause_ms] : signals_and_pauses_ms) {
                    const double began_s = now_s();
                    raise(signal);
                    usleep(useconds_t(1000 * pause_ms));
                    if (pause_ms == 0 && now_s() - began_s > 0.05) _exit(kLate);
                }
                _exit(stop_signal() == std::string("SIGTERM") ? 0 : 1);
            }
            int status = 0;
            REQUIRE(waitpid(child, &status, 0) == child);
            if (WIFEXITED(status) && WEXITSTATUS(status) == kLate) continue;
            return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
        }
    };
    CHECK(ended_by({{SIGTERM, 300}}) == 0);
    CHECK(ended_by({{SIGTERM, 0}, {SIGTERM, 0}, {SIGINT, 0}}) == 0);  // as coreutils' timeout sends it
    CHECK(ended_by({{SIGTERM, 300}, {SIGTERM, 0}}) == SIGTERM);
    CHECK(ended_by({{SIGTERM, 300}, {SIGINT, 0}}) == SIGINT);
}

TEST_CASE("a signal to one of two processes ends the validation of both", "[stop][plain]") {
    const Hosts hosts(with(kLong, {{"checkpoint-to", "shared"}}));
    const std::string out = hosts.runs.path("common");
    const std::string data = hosts.runs.path("long");
    must_succeed(run(program("data/tokenize") + " --stories 2500000 --tokenizer char --out " + data));
    const FlagMap all =
        with(hosts.flags, {{"out-dir", out}, {"val-data", data + "/val_*.bin"}, {"train-data", data + "/train_*.bin"}});
    const std::vector<Started> ranks = hosts.start({"a", "b"}, all);
    wait_for_validation(out);
    kill(ranks[1].pid, SIGTERM);
    const std::vector<Finished> ended = Hosts::finish(ranks);
    for (const Finished& rank : ended) must_succeed(rank);
    check_saved(out, ended[0], "a signal to another rank");
    CHECK(contains(ended[0].out, "stopped by a signal to another rank: step 3 is saved in "));
    CHECK(ended[1].out == "");
}

TEST_CASE("a signal ends the scoring of tasks, and the step before it is saved", "[stop]") {
    const TinyRuns runs;
    const std::string tasks = runs.path("long.bin"), out = runs.path("run");
    write_file_atomically(tasks, questions(10000));
    const FlagMap flags = with(kLong, {{"val-data", ""},
                                       {"save-best", "false"},
                                       {"patience", "0"},
                                       {"val-every", "0"},
                                       {"eval-tasks", tasks},
                                       {"eval-tasks-every", "3"},
                                       {"resume", "auto"}});
    const Started started(command_of(runs.flags("run", flags)), out);
    wait_for_validation(out);
    const Finished done = started.finish(SIGINT);
    must_succeed(done);
    check_saved(out, done, "SIGINT");
    CHECK(records_in(out, "tasks").empty());
    CHECK(records_in(out, "warning").empty());
    CHECK(contains(done.out, "stopped by SIGINT: step 3 is saved in " + step_folder(out, 3) +
                                 "; the same command continues from there\n"));
}

TEST_CASE("a second signal ends a run at once, also as process 1 of a container", "[stop][plain]") {
    const TinyRuns runs;
    const std::string container = "unshare --user --map-root-user --pid --fork --kill-child ";
    for (const std::string& inside : {std::string(), container}) {
        if (run(inside + "true").exit_code != 0) {
            WARN("skipped: this system lets no user make a process namespace");
            continue;
        }
        const std::string name = inside.empty() ? "a" : "b", out = runs.path(name);
        const FlagMap hangs = {{"after-checkpoint", "while [ -e " + out + " ]; do sleep 0.1; done"}};
        const Started started(inside + command_of(runs.flags(name, hangs)), out);
        REQUIRE(wait_until([&] { return has_steps(out, 1) && !records_in(out, "end").empty(); }, 120));
        CHECK(wait_until([&] { return contains(read_file(out + ".out"), "\nwaiting for --after-checkpoint of step "); },
                         60));
        pid_t process = started.pid;
        if (!inside.empty()) {
            const std::string pid = std::to_string(started.pid);
            std::ifstream("/proc/" + pid + "/task/" + pid + "/children") >> process;
        }
        siginfo_t ended = {};
        CHECK(wait_until(
            [&] {
                kill(process, SIGINT);  // the run has ended, and waits for the copy
                return waitid(P_PID, id_t(started.pid), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0;
            },
            60));
        CHECK(started.finish(SIGKILL).exit_code == 128 + SIGINT);
    }
}

// --after-checkpoint beside a run: the order of its commands, those that fail or hang, and what waits.
#include "llmc/checkpoint/uploads.h"
#include <unistd.h>
#include <filesystem>
#include "llmc/base/file.h"          // read_file
#include "llmc/run/child_process.h"  // why_not_run
#include "test/test_clock.h"         // wait_until
#include "test/testing.h"

namespace {

const std::function<bool()> kNever = [] { return false; };

// The checkpoints that a command named in a file, one a line.
struct Named {
    ScratchFolder scratch;
    const std::string file = scratch / "named", go = scratch / "go";
    const std::string name = "echo \"${ANVIL_CHECKPOINT##*step_0000000}\" >>" + file;

    std::string text() const { return std::filesystem::exists(file) ? read_file(file) : ""; }
    void let_go() const { std::fclose(std::fopen(go.c_str(), "w")); }
};

}  // namespace

TEST_CASE("a command of the shell is run to its end, or stopped with all that it started", "[uploads][plain]") {
    const ScratchFolder scratch;
    const std::string file = scratch / "a";
    CHECK(why_not_run("echo \"$A $B\" >" + file, {"A=1 2", "B=x"}, 10, kNever) == "");
    CHECK(read_file(file) == "1 2 x\n");
    CHECK(why_not_run("exit 3", {}, 10, kNever) == "ended with exit code 3");
    CHECK(why_not_run("kill -9 $$", {}, 10, kNever) == "was ended by signal 9 (Killed)");
    // Its children hear nothing of SIGTERM, and are stopped all the same.
    const std::string stubborn = "trap '' TERM; sleep 1000 & echo $! >" + file + "; wait";
    CHECK(why_not_run(stubborn, {}, 0.3, kNever) == "took longer than 0.3 s and was stopped");
    const std::string child = "/proc/" + std::to_string(std::stoi(read_file(file))) + "/stat";
    CHECK(wait_until([&] { return !std::filesystem::exists(child) || contains(read_file(child), ") Z "); }));
    int asked = 0;
    CHECK(why_not_run("sleep 1000", {}, 1000, [&] { return ++asked > 3; }) == "was stopped");
}

TEST_CASE("a command that prints is run to its end, also when nobody reads stderr any more", "[uploads][plain]") {
    const ScratchFolder scratch;
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const int stderr_before = dup(2);
    dup2(ends[1], 2);
    for (const int end : ends) close(end);
    const std::string why =
        why_not_run("echo to stdout && echo to stderr >&2 && echo on >" + scratch / "a", {}, 100, kNever);
    dup2(stderr_before, 2);
    close(stderr_before);
    CHECK(why == "");
    CHECK(read_file(scratch / "a") == "on\n");
}

TEST_CASE("each checkpoint is copied, the newest first, and waits until then", "[uploads][plain]") {
    const Named named;
    Uploads uploads(named.name + "; until [ -e " + named.go + " ]; do sleep 0.01; done", "run", 100);
    uploads.add(1);
    REQUIRE(wait_until([&] { return named.text() == "1\n"; }));
    uploads.add(2);
    uploads.add(3);
    CHECK(uploads.waiting() == std::set<int64_t>{1, 2, 3});
    uploads.add(1);  // saved again while its folder was being copied
    named.let_go();
    uploads.finish(100);
    CHECK(uploads.waiting().empty());
    CHECK(named.text() == "1\n3\n2\n1\n");
}

TEST_CASE("a copy that fails is tried again, and the oldest of many is given up", "[uploads][plain]") {
    const Named named;
    Uploads uploads(named.name + "; [ -e " + named.go + " ]", "run", 100);
    for (int64_t step = 1; step <= 6; step++) {
        uploads.add(step);
        REQUIRE(wait_until([&] { return !named.text().empty(); }));
    }
    const std::set<int64_t> waiting = uploads.waiting();  // the first, too, if it has not failed yet
    CHECK(waiting.size() == Uploads::kMostWaiting);
    for (const int64_t step : {4, 5, 6}) CHECK(waiting.contains(step));
    named.let_go();
    REQUIRE(wait_until([&] { return uploads.waiting().empty(); }));
    CHECK(contains(named.text(), "1\n6\n5\n4\n"));
}

TEST_CASE("at the end copies have a limit, in attempts and in time", "[uploads][plain]") {
    const Named named;
    Uploads failing(named.name + "; exit 1", "run", 100);
    failing.add(5);
    failing.finish(1000);
    CHECK(failing.waiting() == std::set<int64_t>{5});
    CHECK(named.text().size() <= 4 * std::string("5\n").size());
    Uploads hanging("sleep 1000", "run", 1000);
    hanging.add(5);
    hanging.finish(0.2);
    CHECK(hanging.waiting() == std::set<int64_t>{5});
    Uploads idle("exit 1", "run", 1000);
    idle.finish(1000);
}

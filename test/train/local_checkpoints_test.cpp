/*
The fast tier of checkpoints: ranks whose hosts have disks of their own are killed, lose a disk, find a damaged part or
a full disk. They resume from the newest complete checkpoint, with the bits of an undisturbed run.
*/
#include "llmc/train/local_checkpoints.h"
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <functional>
#include "test/train/host_runs.h"  // Hosts

namespace fs = std::filesystem;

namespace {

// Of every rank whose parts this host has, the newest.
std::vector<fs::path> newest_parts(const std::string& home) {
    std::map<std::string, fs::path> newest;
    std::error_code gone;
    for (fs::recursive_directory_iterator entry(home + "/local", gone), end; !gone && entry != end;
         entry.increment(gone)) {
        const std::string name = entry->path().filename(), of = entry->path().parent_path();
        if (name.size() == 13 && name.starts_with("step_") && name > newest[of].filename()) newest[of] = entry->path();
    }
    std::vector<fs::path> all;
    for (const auto& [of, path] : newest)
        if (!path.empty()) all.push_back(path);
    return all;
}
int64_t newest_local(const std::string& home) {
    const std::vector<fs::path> parts = newest_parts(home);
    return parts.empty() ? -1 : std::stoll(parts[0].filename().string().substr(5));
}

// A run on two hosts that was killed after local checkpoints later than the one in OUT. What happens then is tried
// several times.
struct Killed {
    const Hosts hosts = Hosts(FlagMap{{"steps", "60"},
                                      {"checkpoint-every", "20"},
                                      {"local-every", "3"},
                                      {"keep", "9"},
                                      {"checkpoint-local", "local"}});
    const std::string out = hosts.out("a");

    Killed() {
        hosts.train({"one"});
        const auto is_past = [&] {
            const std::vector<int64_t> steps = checkpoint_steps(out);
            return !steps.empty() && steps.back() < 60 &&
                   std::min(newest_local(hosts.home("a")), newest_local(hosts.home("b"))) > steps.back();
        };
        for (int tries = 0;; tries++) {
            REQUIRE(tries < 20);
            const std::vector<Started> ranks = hosts.start({"a", "b"}, hosts.flags);
            REQUIRE(wait_until([&] { return is_past() || fs::exists(step_folder(out, 60)); }, 120));
            kill(ranks[1].pid, SIGKILL);
            const std::vector<Finished> ended = hosts.finish(ranks);
            if (ended[0].exit_code == kExitRank && is_past()) break;
            for (const char* host : {"a", "b"}) fs::remove_all(hosts.runs.path(host));  // it was faster than that
        }
        for (const char* host : {"a", "b"}) fs::copy(hosts.home(host), kept(host), fs::copy_options::recursive);
    }
    std::string kept(const std::string& host) const { return hosts.runs.path("kept_" + host); }
    int64_t shared() const { return checkpoint_steps(kept("a") + "/run").back(); }
    // The newest that both have.
    int64_t local() const { return std::min(newest_local(kept("a")), newest_local(kept("b"))); }

    // It goes on after `accident`, on these hosts, to the end of the run that was not killed. What rank 0 says.
    std::string goes_on(const std::vector<std::string>& on, const std::function<void()>& accident) const {
        for (const std::string host : {"a", "b"}) {
            fs::remove_all(hosts.runs.path(host));
            fs::copy(kept(host), hosts.runs.path(host), fs::copy_options::recursive);
        }
        accident();
        const FlagMap asked = {{"resume", "auto"}, {"out-dir", "run"}};
        const std::vector<Finished> ended = hosts.finish(hosts.start(on, asked));
        for (const Finished& rank : ended) {
            INFO(rank.err);
            CHECK(rank.exit_code == 0);
        }
        CHECK(tensor_difference(step_folder(out, 60), step_folder(hosts.out("one"), 60)) == "");
        CHECK(losses_in(out) == losses_in(hosts.out("one")));
        // Nothing is left on the disks of the hosts that were there.
        CHECK_FALSE(fs::exists(out + "/local_checkpoints.json"));
        for (const std::string& host : on) CHECK(newest_parts(hosts.home(host)).empty());
        return ended[0].out + ended[0].err;
    }
};

std::string step_text(int64_t step) { return "step " + std::to_string(step); }

}  // namespace

TEST_CASE("a run goes on from the newest checkpoint that is complete, on the hosts' disks or in --out-dir",
          "[local_checkpoints][plain]") {
    const Killed run;
    const std::string shared = step_text(run.shared()), local = step_text(run.local());
    INFO(shared << " in run, " << local << " on the hosts");
    REQUIRE(run.local() > run.shared());

    // When the run was killed, one of the ranks may have written its part of a later step.
    const int64_t later[2] = {newest_local(run.kept("a")), newest_local(run.kept("b"))};
    const int without = later[0] < later[1] ? 0 : 1;
    const std::string others = later[0] == later[1] ? "run has " + shared
                                                    : "passed over: " + step_text(later[1 - without]) +
                                                          " lacks the part of rank " + std::to_string(without);
    const std::string taken = run.goes_on({"a", "b"}, [] {});
    CHECK(contains(taken, "checkpoint: " + local + ", from local (" + others + "); "));
    CHECK(contains(taken, " lost\n"));
    CHECK(contains(taken, "resume from run/" + step_folder("", run.local()).substr(1)));

    // The parts of a host are gone with its disk, or with the host.
    const std::string gone = run.goes_on({"a", "b"}, [&] { fs::remove_all(run.hosts.home("b") + "/local"); });
    CHECK(contains(gone, "warning: checkpoint: " + shared + ", from run (not from the local parts: step "));
    CHECK(contains(gone, " lacks the part of rank 1"));
    CHECK(contains(gone, "resume from run/" + step_folder("", run.shared()).substr(1)));
    CHECK(contains(run.goes_on({"a"}, [] {}), " lacks the part of rank 1"));

    // A part that is damaged: the one before it.
    const std::string damaged = run.goes_on({"a", "b"}, [&] {
        for (const fs::path& part : newest_parts(run.hosts.home("b")))
            overwrite(step_folder(part.parent_path(), run.local()) + "/optimizer_00001_of_00002.safetensors", 3000,
                      "x");
    });
    CHECK(contains(damaged, "warning: checkpoint: "));
    CHECK(contains(damaged, local + ": rank 1: local/"));
    CHECK(contains(damaged, " is damaged (its checksum differs)"));
    CHECK_FALSE(contains(damaged, "resume from run/" + step_folder("", run.local()).substr(1)));

    // A part that is another user's, which only root can make.
    if (geteuid() == 0) {
        const std::string theirs = run.goes_on({"a", "b"}, [&] {
            for (const fs::path& part : newest_parts(run.hosts.home("b")))
                REQUIRE(chown((part / "manifest.json").c_str(), 65534, 65534) == 0);
        });
        CHECK(
            contains(theirs, "/manifest.json belongs to another user (id 65534): give a --checkpoint-local in which"));
        CHECK_FALSE(contains(theirs, "resume from run/" + step_folder("", run.local()).substr(1)));
    }

    // A folder that was moved, or copied, may be another run's: it knows of none.
    const std::string moved = run.goes_on({"a", "b"}, [&] {
        fs::copy(run.out, run.out + "_copy", fs::copy_options::recursive);
        const FlagMap asked = {{"resume", "auto"}, {"out-dir", "run_copy"}};
        for (const Finished& rank : run.hosts.finish(run.hosts.start({"a", "b"}, asked))) {
            must_succeed(rank);
            CHECK_FALSE(contains(rank.out, " lost\n"));
        }
    });
    CHECK(contains(moved, "checkpoint: " + local + ", from local "));  // and takes nothing from the other
}

TEST_CASE("a full disk of one host costs a warning, and all hosts keep the same", "[local_checkpoints][plain]") {
    const Hosts hosts(FlagMap{
        {"steps", "1000000"}, {"lr-schedule", "constant"}, {"local-every", "3"}, {"checkpoint-local", "local"}});
    const std::vector<Started> ranks = hosts.start({"a", "b"}, hosts.flags);
    const auto steps_are = [&](size_t n) {
        return fs::exists(hosts.out("a") + "/log.jsonl") && records_in(hosts.out("a"), "step").size() >= n;
    };
    REQUIRE(wait_until([&] { return steps_are(1); }, 120));
    const rlimit small = {32768, RLIM_INFINITY};  // less than a part
    REQUIRE(prlimit(ranks[1].pid, RLIMIT_FSIZE, &small, nullptr) == 0);
    const auto has_warned = [&] { return contains(read_file(hosts.runs.path("rank1.err")), "no local checkpoint"); };
    REQUIRE(wait_until(has_warned, 120));
    const size_t before = records_in(hosts.out("a"), "step").size();
    REQUIRE(wait_until([&] { return steps_are(before + 60); }, 120));
    // What one rank could not write no rank keeps: two from before may be there, and one that has failed elsewhere.
    int steps = 0;
    for (const auto& entry : fs::recursive_directory_iterator(hosts.home("a") + "/local"))
        steps += entry.path().filename().string().size() == 13 && entry.is_directory();
    CHECK(steps <= 3);
    kill(ranks[0].pid, SIGTERM);
    const std::vector<Finished> ended = hosts.finish(ranks);
    INFO(ended[0].err << ended[1].err);
    CHECK(ended[0].exit_code == 0);
    CHECK(ended[1].exit_code == 0);
    CHECK(contains(ended[1].err, "warning: rank 1: no local checkpoint of step "));
    CHECK(contains(ended[1].err, "File too large"));
    CHECK(count(ended[1].err, "warning: ") == 1);
    for (const char* host : {"a", "b"}) CHECK(newest_parts(hosts.home(host)).empty());
}

TEST_CASE("a folder of no disk is an error before the first step", "[local_checkpoints][plain]") {
    const Hosts hosts(FlagMap{{"steps", "3"}, {"checkpoint-local", "/proc/nowhere"}});
    hosts.check_refused({"a", "b"}, hosts.flags, {},
                        {"error: --checkpoint-local /proc/nowhere: cannot create the folder /proc/nowhere"});
}

/*
Whole runs of two hosts over TCP with faults: a network that falls silent, a full disk, a slow one. They end as
documented (doc/distributed/failures.md, "Faults") and can be resumed, or continue. Faults of ranks alone:
test/comm/rank_faults_test.cpp.
*/
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include "test/comm/broken_network.h"  // lose_packets
#include "test/train/host_runs.h"      // Hosts

namespace fs = std::filesystem;

namespace {

// Nothing reaches the process any more over TCP; what is on its way to it is lost. False: this system lets no process
// touch another's connections.
bool cut_off(pid_t pid) {
    const int process = int(syscall(SYS_pidfd_open, pid, 0));
    int connections = 0;
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
        const int fd = int(syscall(SYS_pidfd_getfd, process, std::stoi(entry.path().filename()), 0));
        if (fd < 0 && errno == EPERM) return false;
        sockaddr_in there = {};
        socklen_t length = sizeof(there);
        if (getpeername(fd, reinterpret_cast<sockaddr*>(&there), &length) == 0 && there.sin_family == AF_INET) {
            lose_packets(fd);
            connections++;
        }
        close(fd);
    }
    close(process);
    CHECK(connections == 3);  // for records, and two for data
    return true;
}

// Two hosts that train until something happens, and have saved something by now.
const FlagMap kEndless = {{"steps", "1000000"},
                          {"lr-schedule", "constant"},
                          {"val-data", ""},
                          {"print-every", "1000"},
                          {"checkpoint-every", "5"}};
std::vector<Started> begin(Hosts& hosts, const FlagMap& changes, const std::vector<FlagMap>& own = {}) {
    hosts.over_tcp = true;
    std::vector<Started> ranks = hosts.start({"a", "b"}, with(hosts.flags, changes), own);
    REQUIRE(wait_until([&] { return !checkpoint_steps(hosts.out("a")).empty(); }, 120));
    return ranks;
}

// What they go on from is whole, and a few steps later they are where one process would be.
void check_goes_on(const Hosts& hosts, const FlagMap& flags) {
    const int64_t newest = checkpoint_steps(hosts.out("a")).back();
    CHECK(verify(step_folder(hosts.out("a"), newest)).why == "");
    const FlagMap last = {{"steps", std::to_string(newest + 3)}};
    hosts.resume({"a", "b"}, with(flags, last));
    hosts.train({"one"}, with(last, {{"checkpoint-every", "0"}}));
    CHECK(tensor_difference(step_folder(hosts.out("a"), newest + 3), step_folder(hosts.out("one"), newest + 3)) == "");
}

}  // namespace

TEST_CASE("hosts that lose each other both end, and the run goes on from its newest checkpoint",
          "[run_faults][plain]") {
    Hosts hosts(kEndless);
    // A common folder, so that each waits for the other and for nothing else; and no more patience while one saves.
    const FlagMap common = {{"out-dir", hosts.out("a")}};
    const std::vector<Started> ranks = begin(hosts, with(common, {{"comm-timeout", "4"}, {"io-timeout", "4"}}));
    if (!cut_off(ranks[0].pid) || !cut_off(ranks[1].pid)) {
        WARN("skipped: this system lets no process touch another's connections");
        for (const Started& rank : ranks) rank.finish(SIGKILL);
        return;
    }
    const std::vector<Finished> ended = Hosts::finish(ranks);
    for (size_t r = 0; r < 2; r++) {
        INFO(ended[r].err);
        CHECK(ended[r].exit_code == kExitRank);
        CHECK(count(ended[r].err, "error: ") == 1);
        CHECK(contains(ended[r].err, "error: rank " + std::to_string(r) + ": the "));
        CHECK(contains(ended[r].err, " was not over after 4 s; not there yet: rank " + std::to_string(1 - r)));
    }
    check_goes_on(hosts, common);
}

TEST_CASE("a full disk on any host ends the run with that rank's error, and costs no checkpoint",
          "[run_faults][plain]") {
    Hosts hosts(kEndless);
    const std::string out = hosts.out("a");  // common, so that each host writes there itself
    const std::vector<Started> ranks = begin(hosts, {{"out-dir", out}});
    const rlimit small = {4096, RLIM_INFINITY};
    REQUIRE(prlimit(ranks[1].pid, RLIMIT_FSIZE, &small, nullptr) == 0);
    const std::vector<Finished> ended = Hosts::finish(ranks);
    INFO(ended[0].err << ended[1].err);
    for (const Finished& rank : ended) CHECK(rank.exit_code == kExitUsage);
    CHECK(count(ended[0].err + ended[1].err, "error: ") == 1);
    CHECK(contains(ended[0].err, "error: rank 1: cannot write " + out + "/step_"));
    CHECK(contains(ended[0].err, "File too large"));
    CHECK_FALSE(is_saving(out));
    for (const int64_t step : checkpoint_steps(out)) CHECK(verify(step_folder(out, step)).why == "");
}

TEST_CASE("a host whose disk is slow is waited for as long as io-timeout", "[run_faults][plain]") {
    Hosts hosts(FlagMap{{"steps", "6"}, {"checkpoint-every", "0"}});
    hosts.over_tcp = true;
    const std::string shim = hosts.runs.path("slow.so"), out = hosts.runs.path("common");
    must_succeed(run("${CXX:-g++} -std=c++20 -shared -fPIC -O1 dev/torture/system_calls.cpp -ldl -o " + shim));
    // Each of the calls by which rank 1 writes its part, more than ten, takes so long: all of them longer than what is
    // patience enough for ranks to meet and to compute on a busy machine.
    const auto with_slow_disk = [&](const std::string& call_us, const FlagMap& changes) {
        const std::string master = "127.0.0.1:" + std::to_string(free_port());
        std::vector<Started> ranks;
        for (const std::string rank : {"0", "1"}) {
            const FlagMap own = {{"out-dir", out}, {"rank", rank}, {"world-size", "2"}, {"master", master}};
            const std::string slow =
                rank == "0" ? ""
                            : "env LD_PRELOAD=" + shim + " TORTURE_DIR=" + out + " TORTURE_SLOW_US=" + call_us + " ";
            ranks.emplace_back(slow + hosts.command(rank == "0" ? "a" : "b", with(with(hosts.flags, changes), own)),
                               hosts.runs.path("rank" + rank));
        }
        return Hosts::finish(ranks);
    };
    const double begin_s = now_s();
    for (const Finished& rank : with_slow_disk("600000", {{"comm-timeout", "5"}})) must_succeed(rank);
    CHECK(now_s() - begin_s > 6);
    hosts.train({"one"});
    CHECK(tensor_difference(step_folder(out, 6), step_folder(hosts.out("one"), 6)) == "");

    fs::remove_all(out);
    const std::vector<Finished> ended = with_slow_disk("1000000", {{"comm-timeout", "5"}, {"io-timeout", "6"}});
    INFO(ended[0].err << ended[1].err);
    for (const Finished& rank : ended) CHECK(rank.exit_code == kExitRank);
    const std::string late = " was not over after 6 s (io-timeout); not there yet: rank 1";
    CHECK(contains(ended[0].err, "error: rank 0: the exchange of records"));
    CHECK(contains(ended[0].err, late));
    CHECK(contains(ended[1].err, "error: rank 1: ended by rank 0: the exchange of records"));
    CHECK(contains(ended[1].err, late));
    CHECK(checkpoint_steps(out).empty());
}

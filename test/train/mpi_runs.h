/*
Runs of train_gpt whose ranks are processes, started by mpirun or by the test itself, and checks of how they end.

  const Started run(mpirun_command(2, command_of(runs.flags("a", kEight))), runs.path("a"));
  REQUIRE(wait_until([&] { return has_steps(runs.path("a"), 3); }));
  check_ended(run.finish(), kExitRank, {"rank 1 has died"});
*/
#pragma once
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>
#include "test/processes.h"
#include "test/test_clock.h"  // wait_until
#include "test/train/rank_runs.h"

inline int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) found++;
    return found;
}

// Ranks end by themselves after an error, so Open MPI does not need to wait a second before it kills them.
inline const std::string kImpatient = "--mca odls_base_sigkill_timeout 0 ";

// Runs one command per rank.
inline Finished mpirun_each(const std::vector<std::string>& commands) {
    std::string all = kImpatient + commands[0];
    for (size_t i = 1; i < commands.size(); i++) all += " : -np 1 " + commands[i];
    return mpirun(1, all);
}

// Checks that a run of several ranks has failed with this exit code and exactly one error, which contains these parts.
inline void check_ended(const Finished& finished, int exit_code, const std::vector<std::string>& parts) {
    const std::string text = finished.out + finished.err;
    INFO(text);
    CHECK(finished.exit_code == exit_code);
    CHECK(count(text, "error: ") == 1);
    for (const std::string& part : parts) {
        INFO("expected: " << part);
        CHECK(contains(finished.err, part));
    }
}

// Ranks that the test starts itself, which connect over TCP on this host.
struct TcpRun {
    std::vector<Started> ranks;

    TcpRun(int n, const FlagMap& flags, const std::string& prefix) {
        const std::string master = "127.0.0.1:" + std::to_string(free_port());
        for (int r = 0; r < n; r++) {
            const FlagMap launch = {{"rank", std::to_string(r)}, {"world-size", std::to_string(n)}, {"master", master}};
            // Ten minutes, the default, would be spent for each rank that dies before it is met.
            const FlagMap all = with(with({{"comm-timeout", "100"}}, flags), launch);
            ranks.emplace_back(command_of(all), prefix + std::to_string(r));
        }
    }
    std::vector<Finished> finish() {
        std::vector<Finished> all;
        for (const Started& rank : ranks) all.push_back(rank.finish());
        return all;
    }
};

inline bool has_steps(const std::string& out_dir, size_t n) {
    std::error_code not_there_yet;
    return std::filesystem::exists(out_dir + "/log.jsonl", not_there_yet) && records_in(out_dir, "step").size() >= n;
}

// The process of mpirun, a child of `timeout`.
inline pid_t mpirun_pid(const Started& started) {
    const std::string pid = std::to_string(started.pid);
    pid_t child = 0;
    REQUIRE(wait_until([&] { return bool(std::ifstream("/proc/" + pid + "/task/" + pid + "/children") >> child); }));
    return child;
}

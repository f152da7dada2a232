/*
Runs on several hosts, simulated by folders of this host: each rank has a folder and data of its own.

  const Hosts hosts(FlagMap{{"steps", "12"}});
  hosts.train({"a", "b"});                                      rank 0 in a, rank 1 in b; both must succeed
  verify(step_folder(hosts.out("a"), 12))
*/
#pragma once
#include <filesystem>
#include <string>
#include <vector>
#include "test/train/mpi_runs.h"  // TinyRuns, Started, free_port, count

// All hosts run the same command, each in its home folder.
struct Hosts {
    const TinyRuns runs;
    const std::string ours = program("train_gpt");
    FlagMap flags;
    bool over_tcp = false;  // else the ranks still share memory

    explicit Hosts(const FlagMap& changes) : flags(runs.flags("", with(kEight, changes))) {
        flags["train-data"] = "data/train_*.bin";
        if (flags["val-data"] != "") flags["val-data"] = "data/val_*.bin";
        flags["out-dir"] = "run";
    }

    std::string home(const std::string& host) const {
        if (!std::filesystem::exists(runs.path(host))) {
            std::filesystem::create_directory(runs.path(host));
            std::filesystem::copy(runs.path("data"), runs.path(host + "/data"));
        }
        return runs.path(host);
    }
    std::string out(const std::string& host) const { return runs.path(host + "/run"); }

    std::string command(const std::string& host, const FlagMap& all) const {
        return "env -C " + home(host) + (over_tcp ? " ANVIL_HOST=" + host + " " : " ") +
               std::filesystem::absolute(ours).string() +
               command_of(all, "train", runs.path("lines")).substr(ours.size());
    }
    // Starts a rank on each of these hosts.
    std::vector<Started> start(const std::vector<std::string>& hosts, const FlagMap& all,
                               const std::vector<FlagMap>& own = {}) const {
        const std::string master = "127.0.0.1:" + std::to_string(free_port()), n = std::to_string(hosts.size());
        std::vector<Started> ranks;
        for (size_t r = 0; r < hosts.size(); r++) {
            FlagMap mine = hosts.size() == 1
                               ? all
                               : with(all, {{"rank", std::to_string(r)}, {"world-size", n}, {"master", master}});
            if (r < own.size()) mine = with(mine, own[r]);
            ranks.emplace_back(command(hosts[r], mine), runs.path("rank" + std::to_string(r)));
        }
        return ranks;
    }
    static std::vector<Finished> finish(const std::vector<Started>& ranks) {
        std::vector<Finished> all;
        for (const Started& rank : ranks) all.push_back(rank.finish());
        return all;
    }
    // Rank 0's output of a run that must succeed on all ranks.
    std::string train(const std::vector<std::string>& hosts, const FlagMap& changes = {},
                      const std::vector<FlagMap>& own = {}) const {
        const std::vector<Finished> ended = finish(start(hosts, with(flags, changes), own));
        for (const Finished& rank : ended) must_succeed(rank);
        return ended[0].out;
    }
    std::string resume(const std::vector<std::string>& hosts, const FlagMap& changes = {},
                       const std::vector<FlagMap>& own = {}) const {
        const FlagMap asked = {{"resume", "auto"}, {"out-dir", "run"}};
        const std::vector<Finished> ended = finish(start(hosts, with(asked, changes), own));
        for (const Finished& rank : ended) must_succeed(rank);
        return ended[0].out;
    }
    // Checks that all ranks refuse the run, with exit code 2, and that only rank 0 says why.
    void check_refused(const std::vector<std::string>& hosts, const FlagMap& all, const std::vector<FlagMap>& own,
                       const std::vector<std::string>& parts) const {
        const std::vector<Finished> ended = finish(start(hosts, all, own));
        std::string text;
        for (const Finished& rank : ended) {
            CHECK(rank.exit_code == kExitUsage);
            text += rank.err;
        }
        INFO(text);
        CHECK(count(text, "error: ") == 1);
        for (const std::string& part : parts) {
            INFO("expected: " << part);
            CHECK(contains(ended[0].err, part));
        }
    }
};

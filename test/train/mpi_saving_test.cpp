// Checkpoints of many processes: an error of one is the error of all, and background writing changes nothing.
#include <signal.h>
#include <sys/resource.h>
#include <atomic>
#include "test/train/mpi_runs.h"
#include "test/train/small_rank.h"

namespace fs = std::filesystem;

TEST_CASE("what one rank cannot save is every rank's error, and costs no older checkpoint", "[mpi_saving][mpi]") {
    if (!has_mpi()) return;
    const TinyRuns runs;
    const FlagMap endless = with(kEight, {{"steps", "1000000"}, {"val-data", ""}, {"checkpoint-every", "10"}});
    for (const std::string in_background : {"false", "true"}) {
        const std::string name = "limited_" + in_background, out = runs.path(name);
        const Started started(
            mpirun_command(2, command_of(runs.flags(name, with(endless, {{"async-checkpoint", in_background}})))), out);
        REQUIRE(wait_until([&] { return !checkpoint_steps(out).empty(); }));
        const rlimit small = {4096, RLIM_INFINITY};
        REQUIRE(prlimit(ranks_of(out).at(1).pid, RLIMIT_FSIZE, &small, nullptr) == 0);
        const Finished finished = started.finish();
        check_ended(finished, kExitUsage,
                    {"error: rank 1: cannot write " + out + "/step_",
                     ".tmp/" + shard_file(kOptimizerStem, 1, 2) + ": File too large"});
        REQUIRE_FALSE(checkpoint_steps(out).empty());
        for (const int64_t step : checkpoint_steps(out)) CHECK(verify(step_folder(out, step)).why == "");
        CHECK_FALSE(is_saving(out));
    }
    // What is where a checkpoint should go is found before the first step.
    const std::string out = runs.path("in_the_way");
    fs::create_directory(out);
    put_file(step_folder(out, 20), "");
    check_ended(mpirun(2, command_of(runs.flags("in_the_way", endless))), kExitUsage,
                {"error: " + step_folder(out, 20) + " is in the way"});
    CHECK_FALSE(fs::exists(out + "/log.jsonl"));
}

TEST_CASE("a shard that is cut short on one of several ranks costs no step", "[mpi_saving]") {
    // Each rank has a copy of its own, as on two hosts, and the one of rank 1 is cut.
    const TinyRuns runs;
    const std::string out = runs.path("a"), shard = "data/train_000000.bin";
    const FlagMap flags = with(kEight, {{"steps", "1000000"},
                                        {"lr-schedule", "constant"},
                                        {"val-data", ""},
                                        {"train-data", "data/train_*.bin"},
                                        {"world-size", "2"},
                                        {"master", "127.0.0.1:" + std::to_string(free_port())}});
    const std::string ours = program("train_gpt");
    std::vector<Started> ranks;
    for (const std::string rank : {"0", "1"}) {
        fs::create_directory(runs.path(rank));
        fs::copy(runs.path("data"), runs.path(rank + "/data"));
        ranks.emplace_back("env -C " + runs.path(rank) + " " + fs::absolute(ours).string() +
                               command_of(with(runs.flags("a", flags), {{"rank", rank}})).substr(ours.size()),
                           runs.path("rank" + rank));
    }
    REQUIRE(wait_until([&] { return has_steps(out, 3); }, 120));
    REQUIRE(truncate(runs.path("1/" + shard).c_str(), 1500) == 0);
    const std::vector<Finished> finished = {ranks[0].finish(), ranks[1].finish()};
    CHECK(finished[1].exit_code == kExitUsage);
    CHECK(finished[1].err == "");
    check_ended(finished[0], kExitUsage, {"error: rank 1: " + shard + " was cut short", "put the whole file back"});
    // One rank alone comes to the same state, of the weights as of the data.
    const int64_t last = steps_in(out).back().step;
    REQUIRE(checkpoint_steps(out) == std::vector<int64_t>{last});
    must_succeed(runs.train(
        "whole", with(kEight, {{"steps", std::to_string(last)}, {"lr-schedule", "constant"}, {"val-data", ""}})));
    const std::string whole = step_folder(runs.path("whole"), last);
    CHECK(tensor_difference(step_folder(out, last), whole) == "");
    CHECK(state_in(step_folder(out, last)).data == state_in(whole).data);
}

TEST_CASE("checkpoints written in the background are those that were waited for", "[mpi_saving][mpi]") {
    const TinyRuns runs;
    // Every step, so that each save finds the one before it under way; and the run ends while one is written.
    for (const auto& [every, steps] : {std::pair("1", "6"), std::pair("4", "5")}) {
        const FlagMap flags = with(kEight, {{"steps", steps}, {"checkpoint-every", every}, {"keep", "9"}});
        const std::string waited = std::string("waited") + every;
        must_succeed(runs.train(waited, with(flags, {{"async-checkpoint", "false"}})));
        for (const int n : {1, 2}) {
            if (n > 1 && !has_mpi()) return;
            const std::string name = std::string("background") + every + "_" + std::to_string(n), out = runs.path(name);
            const std::string command = command_of(runs.flags(name, with(flags, {{"async-checkpoint", "true"}})));
            must_succeed(n == 1 ? run(command) : mpirun(n, command));
            REQUIRE(checkpoint_steps(out) == checkpoint_steps(runs.path(waited)));
            for (const int64_t step : checkpoint_steps(out)) {
                INFO(name << ", step " << step);
                CHECK(verify(step_folder(out, step)).why == "");
                CHECK(tensor_difference(step_folder(out, step), step_folder(runs.path(waited), step)) == "");
                CHECK(state_in(step_folder(out, step)).data.position ==
                      state_in(step_folder(runs.path(waited), step)).data.position);
            }
            // The log: steps were made between the moment of saving and the checkpoint, but not when it was waited for.
            const auto comes_after_next_step = [&](const std::string& out_dir, int64_t step) {
                const std::string log = read_file(out_dir + "/log.jsonl");
                const std::string number = std::to_string(step), next = std::to_string(step + 1);
                const size_t saved = log.find("{\"type\":\"checkpoint\",\"step\":" + number + ",");
                REQUIRE(saved != std::string::npos);
                return saved > log.find("{\"type\":\"step\",\"step\":" + next + ",");
            };
            const int64_t first = std::stoll(every);
            CHECK(comes_after_next_step(out, first));
            CHECK_FALSE(comes_after_next_step(runs.path(waited), first));
        }
    }
}

// A Saver of a small rank: its votes, and what all ranks have voted.
struct SmallSaver : Saver<Cpu, float> {
    SmallSaver(const RunFlags& flags, SmallRank& rank)
        : Saver(flags, rank.ranks, rank.tokens, *rank.model, ShardedState<Cpu, float>{*rank.optimizer}, rank.log) {}
    bool votes(Vote vote) const {
        std::vector<Vote> all;
        add_votes(all);
        return std::find(all.begin(), all.end(), vote) != all.end();
    }
    void apply_votes(Vote vote, int ranks) {
        advance([&](Vote of) { return of == vote ? ranks : 0; });
    }
};

// A commit that lasts until all ranks have gone on without it.
TEST_CASE("no rank waits while the checkpoint is made visible and old ones are removed", "[mpi_saving]") {
    const ScratchFolder scratch;
    LocalGroup group(2);
    std::atomic<int> gone_on = 0, good_calls = 0, calls = 0;
    RunFlags flags;
    flags.out_dir = scratch / "run";
    flags.keep = 9;
    group.run([&](int rank) {
        SmallRank self(group, rank);
        SmallSaver saver(flags, self);
        saver.before_tidying = [&] {
            calls++;
            if (verify(step_folder(flags.out_dir, 3)).why.empty() && wait_until([&] { return gone_on == 2; }, 60))
                good_calls++;
        };
        saver.save(RunState{.step = 3}, {}, false);
        REQUIRE(wait_until([&] { return saver.votes(Vote::written); }, 60));
        self.ranks.barrier();
        saver.apply_votes(Vote::written, 1);  // not all: nothing happens
        CHECK(saver.votes(Vote::written));
        saver.apply_votes(Vote::written, 2);
        CHECK(saver.is_under_way());
        CHECK_FALSE(
            (saver.votes(Vote::written) || saver.votes(Vote::committed)));  // what a vote says is of one part of it
        gone_on++;
        self.ranks.barrier();
        if (rank == 0) CHECK(wait_until([&] { return saver.votes(Vote::committed); }, 60));
        self.ranks.barrier();
        CHECK(saver.votes(Vote::committed) == (rank == 0));
        CHECK(saver.is_under_way());
        saver.apply_votes(Vote::committed, 1);
        CHECK_FALSE(saver.is_under_way());
        CHECK(saver.is_saved(3));
    });
    CHECK((calls == 1 && good_calls == 1));
    // What goes wrong in it is everybody's, and the next save begins as if nothing had been.
    group.run([&](int rank) {
        SmallRank self(group, rank);
        SmallSaver saver(flags, self);
        saver.before_tidying = [] { throw Error(kExitUsage, "cannot remove it"); };
        saver.save(RunState{.step = 4}, {}, false);
        CHECK(saver.is_saved(4));
        CHECK(contains(error_of([&] { saver.finish(); }), "cannot remove it"));
        CHECK_FALSE((saver.is_under_way() || saver.is_saved(4)));
        saver.before_tidying = {};
        saver.save(RunState{.step = 5}, {}, true);
        CHECK(saver.is_saved(5));
    });
    CHECK(checkpoint_steps(scratch / "run") == std::vector<int64_t>{3, 4, 5});
}

TEST_CASE("what is being saved is the state at that moment, whatever training does to it meanwhile", "[mpi_saving]") {
    const ScratchFolder scratch;
    LocalGroup group(2);
    group.run([&](int rank) {
        SmallRank self(group, rank);
        RunFlags config;
        RunState state{.step = 3, .tokens = 77};
        config.out_dir = scratch / "waited";
        SmallSaver saver(config, self);
        saver.save(state, {}, true);
        CHECK_FALSE(saver.is_under_way());

        config.out_dir = scratch / "meanwhile";
        SmallSaver meanwhile(config, self);
        meanwhile.save(state, {}, false);
        CHECK(meanwhile.is_under_way());
        state = {};
        self.fill(99);
        meanwhile.finish();
        CHECK(meanwhile.is_saved(3));
    });
    CHECK(difference(step_folder(scratch / "waited", 3), step_folder(scratch / "meanwhile", 3)) == "");
}

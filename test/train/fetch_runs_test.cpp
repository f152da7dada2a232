// Runs whose shards are brought by --fetch, from another folder: the bits are those of a run with all shards on the
// disk, and few of them are there at any time.
#include <filesystem>
#include <fstream>
#include "test/train/host_runs.h"

namespace {

namespace fs = std::filesystem;

// 24 shards of 75 tokens, four windows of 16 each: a step takes six, an epoch 16 steps.
struct FetchRuns {
    const TinyRuns runs;
    const std::string far = runs.path("far"), near = runs.path("near"), seen = runs.path("seen");

    explicit FetchRuns(int shard_tokens = 75, int stories_bytes = 2000) {
        must_succeed(run(program("data/tokenize") + " --stories " + std::to_string(stories_bytes) +
                         " --tokenizer char --shard-tokens " + std::to_string(shard_tokens) + " --out " + far));
        must_succeed(run(program("data/tokenize") + " --list " + far));
        make_near(near);
    }
    // A disk with what a run needs but for the shards.
    void make_near(const std::string& folder) const {
        fs::create_directories(folder);
        for (const char* name : {"shards.json", "tokenizer.json"}) fs::copy(far + "/" + name, folder);
    }
    // The command notes which shards it finds beside its own.
    std::string command() const {
        return "ls \"$(dirname \"$ANVIL_SHARD_PATH\")\" | grep -c bin >>" + seen + "; echo $ANVIL_SHARD >>" + seen +
               ".names; cp " + far + "/$ANVIL_SHARD \"$ANVIL_SHARD_PATH\"";
    }
    FlagMap flags(const std::string& data, const FlagMap& changes = {}) const {
        return with({{"train-data", data + "/train_*.bin"},
                     {"val-data", data + "/val_*.bin"},
                     {"data-order", "shards"},
                     {"checkpoint-every", "5"},
                     {"steps", "30"},
                     {"keep", "9"}},
                    changes);
    }
    FlagMap fetching(const FlagMap& changes = {}) const { return flags(near, with({{"fetch", command()}}, changes)); }
    int most_seen() const {
        int most = 0;
        std::ifstream file(seen);
        for (int n; file >> n;) most = std::max(most, n);
        return most;
    }
    int64_t brought() const {
        const std::string names = read_file(seen + ".names");
        return std::count(names.begin(), names.end(), '\n');
    }
    // Shards that are there now.
    int there(const std::string& folder) const {
        int n = 0;
        for (const auto& entry : fs::directory_iterator(folder + "/fetched"))
            n += contains(entry.path().filename(), ".bin");
        return n;
    }
    void check_same(const std::string& a, const std::string& b, int64_t step = 30) const {
        CHECK(tensor_difference(step_folder(runs.path(a), step), step_folder(runs.path(b), step)) == "");
        CHECK(losses_in(runs.path(a)) == losses_in(runs.path(b)));
    }
};

}  // namespace

TEST_CASE("a run whose shards are brought has the bits of one with all of them", "[fetch_runs][plain]") {
    const FetchRuns t;
    must_succeed(t.runs.train("straight", t.flags(t.far)));
    must_succeed(t.runs.train("a", t.fetching()));
    t.check_same("straight", "a");
    const int64_t of_all = t.brought();
    CHECK(of_all > 40);         // the second epoch brings them again
    CHECK(t.most_seen() <= 1);  // the one in use, beside the one that comes
    CHECK(t.there(t.near) <= 2);
    CHECK(difference(step_folder(t.runs.path("straight"), 30), step_folder(t.runs.path("a"), 30)) == "");
    // A command is for those who gave it.
    CHECK_FALSE(contains(read_file(step_folder(t.runs.path("a"), 30) + "/" + kRunFlagsFile), "ANVIL_SHARD"));

    // Resumed in the middle on an empty disk, and the other way round.
    must_succeed(t.runs.train("b", t.fetching({{"steps", "15"}, {"lr-schedule", "constant"}})));
    must_succeed(t.runs.train("c", t.flags(t.far, {{"lr-schedule", "constant"}})));
    fs::remove_all(t.near);
    t.make_near(t.near);
    fs::remove(t.seen + ".names");
    const Finished on = t.runs.resume("b", t.fetching({{"steps", "30"}}));
    must_succeed(on);
    CHECK_FALSE(contains(on.err, "reading the data from their start"));
    t.check_same("b", "c");
    CHECK(t.brought() < of_all - 15);  // not what the first half has read
    const Finished back = t.runs.resume("b", t.flags(t.far, {{"steps", "35"}}));
    must_succeed(back);
    CHECK_FALSE(contains(back.err, "reading the data from their start"));
}

TEST_CASE("documents are packed across shards that come and go", "[fetch_runs][plain]") {
    const FetchRuns t(900, 9000);
    const FlagMap packs = {{"packing", "best-fit"},
                           {"data-order", "own"},
                           {"document-token", "0"},
                           {"seq-len", "32"},
                           {"total-batch-size", "64"}};
    const Finished straight = t.runs.train("straight", t.flags(t.far, packs));
    must_succeed(straight);
    must_succeed(t.runs.train("a", t.fetching(packs)));
    t.check_same("straight", "a");
    must_succeed(t.runs.train("b", t.fetching(with(packs, {{"steps", "10"}, {"lr-schedule", "constant"}}))));
    must_succeed(t.runs.train("c", t.flags(t.far, with(packs, {{"lr-schedule", "constant"}}))));
    fs::remove_all(t.near);
    t.make_near(t.near);
    const std::string script = fs::absolute("scripts/bucket.sh").string() + " shard " + t.far;
    must_succeed(t.runs.resume("b", t.fetching({{"steps", "30"}, {"fetch", script}})));
    t.check_same("b", "c");
    CHECK(t.most_seen() <= 1);
}

TEST_CASE("a killed run, and a killed command, go on with the same bits", "[fetch_runs][plain]") {
    const FetchRuns t;
    must_succeed(t.runs.train("straight", t.flags(t.far, {{"checkpoint-every", "3"}})));
    // The command ends the trainer while it brings the ninth shard, itself in the middle of the next run's third, and
    // cuts what it leaves.
    const std::string half = "head -c 1100 " + t.far + "/$ANVIL_SHARD >\"$ANVIL_SHARD_PATH\"";
    const auto with_kill = [&](int at, const std::string& kill) {
        return "echo >>" + t.runs.path("count") + "; if [ $(wc -l <" + t.runs.path("count") +
               ") = " + std::to_string(at) + " ]; then " + half + "; " + kill + "; fi; " + t.command();
    };
    const FlagMap saves = {{"checkpoint-every", "3"}, {"resume", "auto"}};
    const auto go = [&](const std::string& command) {
        return run(command_of(t.runs.flags("a", t.fetching(with(saves, {{"fetch", command}})))));
    };
    CHECK(go(with_kill(9, "kill -9 $PPID; sleep 0.3")).exit_code == 128 + SIGKILL);
    const Finished on = go(with_kill(13, "kill -9 $$"));
    must_succeed(on);
    CHECK(contains(on.err, "was ended by signal 9 (Killed); it is tried again"));
    t.check_same("straight", "a");
    for (const auto& entry : fs::directory_iterator(t.near + "/fetched"))
        CHECK_FALSE(contains(entry.path().filename(), ".part."));
}

TEST_CASE("without a shard the run saves, and ends with an error; a hanging command is stopped",
          "[fetch_runs][plain]") {
    const FetchRuns t;
    must_succeed(t.runs.train("straight", t.flags(t.far)));
    const std::string broken = "[ $(ls " + t.runs.path("") + " | grep -c count) -lt 14 ] || exit 7; touch " +
                               t.runs.path("count.$ANVIL_SHARD") + "; " + t.command();
    const Finished ended = t.runs.train("a", t.fetching({{"fetch", broken}, {"comm-timeout", "12"}}));
    CHECK(ended.exit_code == kExitUsage);
    CHECK(contains(ended.err, "warning: --fetch of train_0000"));
    CHECK(contains(ended.err, "ended with exit code 7; it is tried again"));
    CHECK(contains(ended.err, "is not there after 10 s: the command ended with exit code 7; see that"));
    CHECK(!checkpoint_steps(t.runs.path("a")).empty());
    CHECK(checkpoint_steps(t.runs.path("a")).back() > 5);
    // A command that hangs takes a quarter of comm-timeout.
    const std::string once =
        "[ -e " + t.runs.path("hung") + " ] || { touch " + t.runs.path("hung") + "; sleep 1000; }; " + t.command();
    const Finished on = t.runs.resume("a", t.fetching({{"fetch", once}, {"comm-timeout", "12"}}));
    must_succeed(on);
    CHECK(contains(on.err, "took longer than 3 s and was stopped; it is tried again"));
    t.check_same("straight", "a");

    const Finished refused = t.runs.train("b", t.fetching({{"data-order", "own"}}));
    CHECK(refused.exit_code == kExitUsage);
    CHECK(contains(refused.err, "--fetch with --data-order own: a shuffle over all shards needs all of them"));
    const Finished unlisted = t.runs.train("b", with(t.fetching(), {{"train-data", t.runs.path("data/train_*.bin")}}));
    CHECK(unlisted.exit_code == kExitUsage);
    CHECK(contains(unlisted.err, "shards.json: no such file: --fetch needs the list"));
}

TEST_CASE("ranks of one host share what is brought, hosts have their own", "[fetch_runs][plain]") {
    const FetchRuns t(300);  // 18 windows each, and a step takes 16, so ranks are a shard apart at most
    const FlagMap eight = with(kEight, {{"checkpoint-every", "5"}});
    must_succeed(t.runs.train("straight", t.flags(t.far, eight)));
    must_succeed(t.runs.train("virtual", t.fetching(with(eight, {{"virtual-ranks", "2"}}))));
    t.check_same("straight", "virtual");
    const int64_t alone = t.brought();
    fs::remove(t.seen + ".names");
    TcpRun two(2, t.runs.flags("two", t.fetching(eight)), t.runs.path("rank"));
    for (const Finished& rank : two.finish()) must_succeed(rank);
    t.check_same("straight", "two");
    CHECK(t.most_seen() <= 3);
    CHECK(t.brought() < 2 * alone);  // nearly each once

    // Each host with a disk of its own.
    fs::remove(t.seen + ".names");
    const std::string master = "127.0.0.1:" + std::to_string(free_port());
    std::vector<Started> hosts;
    for (const std::string rank : {"0", "1"}) {
        t.make_near(t.runs.path("disk" + rank));
        const FlagMap own = with(t.flags(t.runs.path("disk" + rank), with(eight, {{"fetch", t.command()}})),
                                 {{"rank", rank}, {"world-size", "2"}, {"master", master}});
        hosts.emplace_back("env ANVIL_HOST=" + rank + " " + command_of(t.runs.flags("hosts" + rank, own)),
                           t.runs.path("host" + rank));
    }
    for (const Started& host : hosts) must_succeed(host.finish());
    CHECK(tensor_difference(step_folder(t.runs.path("hosts0"), 30), step_folder(t.runs.path("straight"), 30)) == "");
    CHECK(t.brought() > alone);
}

TEST_CASE("llm.c's order, lengths that grow, a mixture and islands take shards that are brought",
          "[fetch_runs][plain]") {
    const FetchRuns t(300);
    int number = 0;
    for (const FlagMap& how : std::vector<FlagMap>{
             {{"data-order", "llmc"}},
             {{"data-order", "own"}, {"shuffle", "false"}},
             {{"length-growth", "0:8, 10:16"}, {"batch-growth", "5:192"}},
             {{"virtual-ranks", "2"}, {"islands", "2"}, {"outer-every", "5"}, {"total-batch-size", "128"}}}) {
        INFO(how.begin()->first);
        const std::string n = std::to_string(number++);
        must_succeed(t.runs.train("far" + n, t.flags(t.far, how)));
        must_succeed(t.runs.train("near" + n, t.fetching(how)));
        t.check_same("far" + n, "near" + n);
    }
    const auto mixed = [&](const std::string& folder) {
        return FlagMap{{"train-data", folder + "/train_00000[0-2].bin:2," + folder + "/train_00000[3-5].bin:1"}};
    };
    must_succeed(t.runs.train("far", t.flags(t.far, mixed(t.far))));
    must_succeed(t.runs.train("near", t.fetching(mixed(t.near))));
    t.check_same("far", "near");
}

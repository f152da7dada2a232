/*
Ranks without a common folder: each runs in a folder of its own, with relative paths and data of its own, as on several
hosts. Checkpoints travel to rank 0, and what a rank needs of them back.

  ANVIL_KILLS=50 make test OP=placement        as many kills (4 by default)
*/
#include "llmc/checkpoint/placement.h"
#include <signal.h>
#include <sys/resource.h>
#include <cstdlib>
#include "test/train/host_runs.h"  // Hosts

namespace fs = std::filesystem;

namespace {

void wait_for(const std::function<bool()>& condition) { REQUIRE(wait_until(condition, 120)); }

}  // namespace

TEST_CASE("ranks without a common folder save on rank 0 and go on at any number", "[placement]") {
    for (const std::string optimizer : {"adamw", "muon"}) {
        const Hosts hosts(FlagMap{{"checkpoint-every", "4"}, {"optimizer", optimizer}, {"keep", "9"}});
        INFO(optimizer);
        const std::string out = hosts.out("a");
        const FlagMap all = {{"steps", "12"}};
        hosts.train({"one"}, all);
        CHECK(contains(hosts.train({"a", "b"}, all),
                       "checkpoints: to run of rank 0; rank 1 sends its parts there (run is not rank 0's there)"));
        CHECK_FALSE(fs::exists(hosts.out("b")));
        fs::remove_all(step_folder(out, 8));
        fs::remove_all(step_folder(out, 12));
        CHECK(contains(hosts.resume({"a", "b", "c", "d"}),  // other hosts, and more of them
                       "checkpoint: ranks 1, 2 and 3 do not see it; rank 0 sends what is needed of it"));
        CHECK_FALSE(fs::exists(hosts.out("c")));
        fs::remove_all(step_folder(out, 12));
        CHECK(contains(hosts.resume({"a", "c"}), "checkpoint: rank 1 does not see it; rank 0 sends"));
        for (const int64_t step : {4, 8, 12}) {
            INFO("step " << step);
            REQUIRE(verify(step_folder(hosts.out("a"), step)).why == "");
            CHECK(tensor_difference(step_folder(hosts.out("a"), step), step_folder(hosts.out("one"), step)) == "");
        }
        CHECK(losses_in(hosts.out("a")) == losses_in(hosts.out("one")));
        // And it is a checkpoint like any other: one process can resume it.
        fs::remove_all(step_folder(hosts.out("a"), 12));
        hosts.resume({"a"});
        CHECK(tensor_difference(step_folder(hosts.out("a"), 12), step_folder(hosts.out("one"), 12)) == "");
    }
}

TEST_CASE("rank 0 goes on where the newest checkpoint is, and nowhere else", "[placement][plain]") {
    const Hosts hosts(FlagMap{{"checkpoint-every", "2"}, {"steps", "4"}});
    hosts.train({"a"});
    const FlagMap all = with(hosts.flags, {{"resume", "auto"}, {"steps", "8"}});
    hosts.check_refused({"b", "a"}, all, {},
                        {"error: rank 1: run holds checkpoints up to step 4 here, and rank 0 has none: start rank 0 on "
                         "this host, or give another --out-dir"});
    CHECK(checkpoint_steps(hosts.out("b")).empty());
    // A copy is as good, until one of them has gone on.
    fs::copy(hosts.out("a"), hosts.out("b"), fs::copy_options::recursive);
    hosts.resume({"b", "a"}, {{"steps", "6"}});
    hosts.check_refused({"a", "b"}, all, {}, {"up to step 6 here, and rank 0 has them up to step 4: "});
    hosts.resume({"b", "a"}, {{"steps", "8"}});
    CHECK(verify(step_folder(hosts.out("b"), 8)).why == "");
    // What was of two ranks is no flag of one.
    const std::string alone = hosts.resume({"b"}, {{"steps", "9"}});
    CHECK(contains(alone, "from the checkpoint: "));
    CHECK_FALSE(contains(alone, "--world-size"));
}

TEST_CASE("master weights travel too, and are made of weights where the checkpoint has none", "[placement]") {
    const Hosts hosts(FlagMap{{"checkpoint-every", "0"}, {"steps", "4"}});
    for (const std::string from : {"bf16", "fp32"}) {
        INFO(from);
        const std::string name = "of_" + from;
        hosts.train({name}, {{"dtype", from}});
        for (const std::string copy : {"one_", "two_"}) {
            hosts.home(copy + from);
            fs::copy(hosts.out(name), hosts.out(copy + from), fs::copy_options::recursive);
        }
        const FlagMap on = {{"steps", "8"}, {"dtype", "bf16"}};
        hosts.resume({"one_" + from}, on);
        hosts.resume({"two_" + from, "far"}, on);
        CHECK(losses_in(hosts.out("two_" + from)) == losses_in(hosts.out("one_" + from)));
        const SafetensorsReader one(step_folder(hosts.out("one_" + from), 8) + "/" + kModelFile),
            two(step_folder(hosts.out("two_" + from), 8) + "/" + kModelFile);
        for (const Tensor& tensor : one.tensors())
            CHECK(std::memcmp(tensor.data, two.at(tensor.name).data, tensor.size_bytes()) == 0);
    }
}

TEST_CASE("ranks that see one folder write to it, by whatever path", "[placement]") {
    const Hosts hosts(FlagMap{{"steps", "4"}});
    fs::create_directory_symlink(hosts.home("a") + "/run", hosts.home("b") + "/elsewhere");
    const std::vector<FlagMap> own = {{}, {{"out-dir", "elsewhere"}}};
    CHECK(contains(hosts.train({"a", "b"}, {}, own), "checkpoints: all ranks write to run\n"));
    const std::string said = hosts.resume({"a", "b"}, {{"steps", "6"}}, own);
    CHECK(contains(said, "checkpoints: all ranks write to run\n"));
    CHECK_FALSE(contains(said, "does not see it"));
    // Nobody sees what only one has asked for, and a mixture is possible, too.
    CHECK(contains(hosts.resume({"a", "b", "c", "d"}, {{"steps", "8"}}, own),
                   "checkpoints: to run of rank 0; ranks 2 and 3 send their parts there ("));
    CHECK(verify(step_folder(hosts.out("a"), 8)).why == "");
    CHECK(contains(hosts.resume({"a", "b"}, {{"steps", "10"}, {"checkpoint-to", "rank0"}}, own),
                   "checkpoints: to run of rank 0; rank 1 sends its parts there\n"));
    // No probe is left.
    for (const auto& entry : fs::directory_iterator(hosts.out("a")))
        CHECK_FALSE(entry.path().filename().string().starts_with(".probe"));
}

TEST_CASE("a folder that all must share and one does not is found before the first step", "[placement]") {
    const Hosts hosts(FlagMap{{"steps", "4"}, {"checkpoint-to", "shared"}});
    hosts.check_refused({"a", "b"}, hosts.flags, {},
                        {"error: checkpoint-to = shared: rank 1 cannot write to run of rank 0: run is not rank 0's "
                         "there; give an --out-dir that all hosts see, or checkpoint-to = rank0"});
    CHECK(records_in(hosts.out("a"), "step").empty());
    // A rank that cannot write anywhere sends.
    CHECK(contains(hosts.train({"a", "b"}, {{"checkpoint-to", "auto"}}, {{}, {{"out-dir", "/proc/nowhere"}}}),
                   "rank 1 sends its parts there (/proc/nowhere is not rank 0's there)"));
    CHECK(verify(step_folder(hosts.out("a"), 4)).why == "");
    // Rank 0 is another matter.
    hosts.check_refused({"c", "d"}, hosts.flags, {{{"out-dir", "/proc/nowhere"}}, {}},
                        {"error: cannot create the folder /proc/nowhere"});
}

TEST_CASE("a kill while parts travel costs no older checkpoint, and no bit", "[placement]") {
    const char* wish = std::getenv("ANVIL_KILLS");
    const int kills = wish ? std::atoi(wish) : 4;
    REQUIRE(kills > 0);
    const Hosts hosts(FlagMap{{"steps", "40"}, {"checkpoint-every", "1"}});
    hosts.train({"one"});
    const std::string out = hosts.out("a");
    int64_t newest = -1;
    int finished_runs = 0;
    for (int killed = 0; killed < kills;) {
        const size_t victim = size_t(killed % 2);
        const std::vector<Started> ranks = hosts.start({"a", "b"}, with(hosts.flags, {{"resume", "auto"}}));
        // A save is under way, and has been told nothing of what comes.
        const auto is_past = [&] {
            const std::vector<int64_t> steps = checkpoint_steps(out);
            return !steps.empty() && steps.back() > newest + 2 && is_saving(out);
        };
        wait_for([&] { return is_past() || fs::exists(step_folder(out, 40)); });
        kill(ranks[victim].pid, SIGKILL);
        const std::vector<Finished> ended = hosts.finish(ranks);
        INFO(ended[0].err << ended[1].err);
        if (ended[1 - victim].exit_code == 0) {
            finished_runs++;
            REQUIRE(finished_runs < 10);
            fs::remove_all(out);
            newest = -1;
            continue;
        }
        killed++;
        CHECK(ended[1 - victim].exit_code == kExitRank);
        CHECK(contains(ended[1 - victim].err, "rank " + std::to_string(victim)));
        const FoundCheckpoint found = find_checkpoint(out);
        REQUIRE(found.passed_over.empty());
        REQUIRE(found.step > newest);
        newest = found.step;
    }
    hosts.train({"a", "b"}, {{"resume", "auto"}});
    CHECK(tensor_difference(step_folder(out, 40), step_folder(hosts.out("one"), 40)) == "");
    CHECK(losses_in(out) == losses_in(hosts.out("one")));
    CHECK_FALSE(is_saving(out));
}

TEST_CASE("a full disk on rank 0 ends the run with one error, and costs no older checkpoint", "[placement]") {
    for (const std::string in_background : {"false", "true"}) {
        const Hosts hosts(
            FlagMap{{"steps", "1000000"}, {"checkpoint-every", "5"}, {"async-checkpoint", in_background}});
        const std::string out = hosts.out("a");
        const std::vector<Started> ranks = hosts.start({"a", "b", "c", "d"}, hosts.flags);
        wait_for([&] { return !checkpoint_steps(out).empty(); });
        const rlimit small = {32768, RLIM_INFINITY};  // the log has 8 KB by now, and the model 150
        REQUIRE(prlimit(ranks[0].pid, RLIMIT_FSIZE, &small, nullptr) == 0);
        const std::vector<Finished> ended = hosts.finish(ranks);
        INFO(ended[0].err << ended[1].err);
        for (const Finished& rank : ended) CHECK(rank.exit_code == kExitUsage);
        CHECK(contains(ended[0].err, "File too large"));
        CHECK(count(ended[0].err + ended[1].err + ended[2].err + ended[3].err, "error: ") == 1);
        REQUIRE_FALSE(checkpoint_steps(out).empty());
        for (const int64_t step : checkpoint_steps(out)) CHECK(verify(step_folder(out, step)).why == "");
        CHECK_FALSE(is_saving(out));
    }
}

TEST_CASE("data may lie elsewhere on every host, and must be the same", "[placement]") {
    const Hosts hosts(FlagMap{{"steps", "3"}, {"checkpoint-every", "0"}});
    fs::rename(hosts.home("b") + "/data", hosts.home("b") + "/corpus");
    hosts.train({"a", "b"}, {},
                {{}, {{"train-data", "corpus/train_*.bin"}, {"val-data", hosts.home("b") + "/corpus/val_*.bin"}}});
    hosts.train({"one"});
    CHECK(losses_in(hosts.out("a")) == losses_in(hosts.out("one")));

    const auto refused = [&](const std::string& host, const std::string& part, const FlagMap& own = {}) {
        hosts.check_refused({"x", "x", host}, with(hosts.flags, {{"total-batch-size", "96"}}), {{}, {}, own}, {part});
        CHECK_FALSE(fs::exists(hosts.out("x")));
    };
    const std::string shard = "train_000000.bin";
    overwrite(hosts.home("changed") + "/data/" + shard, 2000, "\x05");
    refused("changed", "error: the ranks differ in the training data: " + shard +
                           " holds other tokens on rank 2 than on rank 0; "
                           "give all hosts the same shards, in any folder");
    const auto size = fs::file_size(hosts.home("a") + "/data/" + shard);
    // Whole, but shorter: one token less in the header, too.
    const std::string short_shard = hosts.home("short") + "/data/" + shard;
    const int32_t tokens = int32_t((size - 1024) / 2) - 1;
    overwrite(short_shard, 8, std::string(reinterpret_cast<const char*>(&tokens), 4));
    fs::resize_file(short_shard, size - 2);
    refused("short", shard + " has " + std::to_string(size - 2) + " bytes on rank 2, and " + std::to_string(size) +
                         " on rank 0");
    fs::copy(hosts.home("more") + "/data/" + shard, hosts.home("more") + "/data/train_000001.bin");
    refused("more", "rank 2 has 2 shards, and rank 0 has 1");
    refused("a", "the ranks differ in the validation data: rank 2 has 0 shards, and rank 0 has 1", {{"val-data", ""}});
    put_file(hosts.home("missing") + "/data/unused", "");
    fs::remove(hosts.home("missing") + "/data/" + shard);
    refused("missing", "error: rank 2: ");
    fs::remove(hosts.home("tongues") + "/data/tokenizer.json");
    refused("tongues", "error: the ranks differ in the tokenizer: it is none on rank 2");
}

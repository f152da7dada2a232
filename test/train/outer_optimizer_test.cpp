/*
Islands (--islands): one island equals a plain run, several get the mean of their weights, runs have the same bits
however they are started, stopped and resumed, and errors end with one line.
*/
#include <sstream>
#include "llmc/train/outer_optimizer.h"
#include "test/train/mpi_runs.h"
#include "test/train/rank_runs.h"
#include "test/train/small_rank.h"

// Of two islands of two ranks: a round of three steps, and the last one of two.
static const FlagMap kIslands = {
    {"virtual-ranks", "4"}, {"total-batch-size", "128"}, {"steps", "8"}, {"warmup-steps", "2"}, {"islands", "2"},
    {"outer-every", "3"},   {"checkpoint-every", "3"},   {"keep", "9"}};

TEST_CASE("one island with an outer step of rate 1 after every step is the plain run", "[outer_optimizer][plain]") {
    const TinyRuns runs;
    for (const std::string dtype : {"fp32", "bf16"}) {
        INFO(dtype);
        const FlagMap plain = {{"virtual-ranks", "2"},
                               {"total-batch-size", "128"},
                               {"steps", "5"},
                               {"warmup-steps", "1"},
                               {"dtype", dtype}};
        must_succeed(runs.train("plain" + dtype, plain));
        must_succeed(runs.train(
            "one" + dtype,
            with(plain, {{"islands", "1"}, {"outer-every", "1"}, {"outer-lr", "1"}, {"outer-momentum", "0"}})));
        CHECK(losses_in(runs.path("one" + dtype)) == losses_in(runs.path("plain" + dtype)));
        const auto want = tensors_in(step_folder(runs.path("plain" + dtype), 5)),
                   got = tensors_in(step_folder(runs.path("one" + dtype), 5));
        for (const auto& [name, values] : want) {
            INFO(name);
            REQUIRE(got.count(name) == 1);
            CHECK(std::memcmp(got.at(name).data(), values.data(), values.size() * sizeof(float)) == 0);
        }
        CHECK(records_in(runs.path("one" + dtype), "outer").size() == 5);
    }
}

// In one process: an island has the weights of its own, and each of its ranks a part of them.
TEST_CASE("the outer step leaves the mean of the islands' weights on every rank", "[outer_optimizer]") {
    constexpr int kIslandRanks = 2;
    for (const int islands : {2, 3}) {
        LocalGroup group(islands * kIslandRanks);
        group.run([&](int rank) {
            Cpu cpu(1);
            LocalRanks ranks(group, rank);
            World world{ranks, &group, ""};
            world.island = std::make_shared<IslandRanks>(ranks, islands);
            LocalComm<Cpu> comm(world.local_part(), world.together().rank, cpu);
            ParameterList list(GptShape{2, 2, 32, 16, 60});
            const ShardingPlan plan = plan_sharding(list, {.world_size = kIslandRanks});
            list.place(plan.offsets, plan.buffer_size);
            Gpt<Cpu> model(cpu, list, 2, 16, Recompute::none, comm);
            Optimizer<Cpu> optimizer(cpu, model.parameters, plan, world.together().rank, OptimizerConfig{});
            OuterOptimizer<Cpu, float> outer(world, model, optimizer, comm, islands,
                                             {.learning_rate = 1, .momentum = 0});
            const size_t size = size_t(model.weights.size);
            const auto weights = [&](uint64_t seed) {
                Rng rng(seed, Stream::tests);
                std::vector<float> all(size);
                for (float& x : all) x = float(rng.normal());
                return all;
            };
            const auto set = [&](const std::vector<float>& all) { std::copy_n(all.begin(), size, model.weights.data); };
            set(weights(100));
            outer.begin();
            set(weights(uint64_t(rank / kIslandRanks)));
            REQUIRE(outer.copy_weights());
            REQUIRE(outer.exchange());
            outer.apply();
            std::vector<double> mean(size);
            for (int k = 0; k < islands; k++) {
                const std::vector<float> of_island = weights(uint64_t(k));
                for (size_t i = 0; i < size; i++) mean[i] += double(of_island[i]);
            }
            int64_t wrong = 0;
            for (const Parameter& p : model.parameters.parameters)
                for (int64_t i = p.offset; i < p.offset + p.size(); i++)
                    wrong += model.weights.data[i] != float(mean[size_t(i)] / islands);
            CHECK(wrong == 0);
        });
    }
}

TEST_CASE("a run of islands has the same bits again, after a resume, and with other ranks in an island",
          "[outer_optimizer][slow]") {
    const TinyRuns runs;
    for (const std::string optimizer : {"adamw", "muon"})
        for (const std::string type : {"fp32", "int8"}) {
            if (kSanitized && (optimizer == "muon") != (type == "int8")) continue;
            INFO(optimizer << " " << type);
            const std::string name = optimizer + type;
            // A power of two of micro-batches, so that how many ranks have them changes no sum.
            const FlagMap flags = with(kIslands, {{"optimizer", optimizer},
                                                  {"outer-dtype", type},
                                                  {"grad-sum", "tree"},
                                                  // Of master weights, once.
                                                  {"dtype", optimizer == "muon" && type == "fp32" ? "bf16" : "fp32"}});
            must_succeed(runs.train(name, flags));
            const std::string end = step_folder(runs.path(name), 8);
            // Between outer steps there is nothing to save: at 3, 6 and the end.
            CHECK(checkpoint_steps(runs.path(name)) == std::vector<int64_t>{3, 6, 8});
            const auto tensors = tensors_in(end);
            CHECK(tensors.count("island1.m.wte.weight") == 1);
            CHECK(tensors.at("island1.m.wte.weight") != tensors.at("m.wte.weight"));
            CHECK(tensors.count("island1.outer_error.wte.weight") == (type == "int8"));
            CHECK(tensors.count("island1.outer_momentum.wte.weight") == 0);
            for (const std::string ranks : {"4", "2"}) {
                must_succeed(run(command_of({{"resume", step_folder(runs.path(name), 3)},
                                             {"out-dir", runs.path(name + "on" + ranks)},
                                             {"virtual-ranks", ranks}})));
                CHECK(tensor_difference(step_folder(runs.path(name + "on" + ranks), 8), end) == "");
            }
        }
}

TEST_CASE("at another number of islands each goes on where island k mod their number was", "[outer_optimizer][plain]") {
    const TinyRuns runs;
    must_succeed(runs.train("two", with(kIslands, {{"outer-dtype", "int8"}, {"steps", "3"}})));
    const std::string from = step_folder(runs.path("two"), 3);
    const auto before = tensors_in(from);
    const auto resumed = [&](const std::string& islands, const std::string& steps) {
        const std::string out = runs.path("at" + islands + "_" + steps);
        must_succeed(run(command_of(
            {{"resume", from}, {"out-dir", out}, {"virtual-ranks", "4"}, {"islands", islands}, {"steps", steps}})));
        return tensors_in(step_folder(out, std::stoi(steps)));
    };
    // No step is made, so the saved state equals the loaded one.
    const auto four = resumed("4", "3"), none = resumed("0", "3");
    for (const std::string name : {"m.wte.weight", "v.wte.weight"}) {
        CHECK(four.at(name) == before.at(name));
        CHECK(four.at("island1." + name) == before.at("island1." + name));
        CHECK(four.at("island2." + name) == before.at(name));
        CHECK(four.at("island3." + name) == before.at("island1." + name));
        CHECK(none.at(name) == before.at(name));
        CHECK(none.count("island1." + name) == 0);
    }
    CHECK(four.at("outer_momentum.wte.weight") == before.at("outer_momentum.wte.weight"));
    CHECK(before.at("outer_error.wte.weight") != std::vector<float>(before.at("m.wte.weight").size(), 0.f));
    CHECK(four.at("outer_error.wte.weight") == std::vector<float>(before.at("m.wte.weight").size(), 0.f));
    CHECK(none.count("outer_momentum.wte.weight") == 0);
    resumed("4", "5"), resumed("1", "5"), resumed("0", "5");
}

TEST_CASE("islands between processes have the bits of those in one", "[outer_optimizer][plain]") {
    const TinyRuns runs;
    const FlagMap flags = with(kIslands, {{"outer-dtype", "int8"}});
    must_succeed(runs.train("here", flags));
    // Ranks 2 and 3, the second island, see no folder of rank 0's: what it resumes from comes to them.
    for (const char* place : {"near", "far"}) std::filesystem::create_directory(runs.path(place));
    const std::string name = program("train_gpt"), absolute = std::filesystem::absolute(name);
    for (const bool resumes : {false, true}) {
        FlagMap all = runs.flags("", flags);
        all.erase("virtual-ranks");
        all["out-dir"] = resumes ? "resumed" : "first";
        if (resumes) all["resume"] = "first/step_00000003";
        std::vector<Started> ranks;
        const std::string master = "127.0.0.1:" + std::to_string(free_port());
        for (int r = 0; r < 4; r++) {
            const FlagMap launch = {{"rank", std::to_string(r)}, {"world-size", "4"}, {"master", master}};
            ranks.emplace_back("env -C '" + runs.path(r > 1 ? "far" : "near") + "' " + absolute +
                                   command_of(with(all, launch)).substr(name.size()),
                               runs.path("rank" + std::to_string(r)));
        }
        for (const Started& rank : ranks) must_succeed(rank.finish());
        CHECK(contains(read_file(runs.path("rank0.out")), "checkpoint: ranks 2 and 3 do not see it") == resumes);
        CHECK(tensor_difference(step_folder(runs.path("near/" + all["out-dir"]), 8),
                                step_folder(runs.path("here"), 8)) == "");
    }
}

TEST_CASE("what is due waits for the outer step, and the end is one", "[outer_optimizer]") {
    const TinyRuns runs;
    must_succeed(runs.train("due", with(kIslands, {{"val-every", "2"}, {"checkpoint-every", "4"}})));
    std::vector<std::string> at;
    for (const std::string& record : records_in(runs.path("due"), "val")) at.push_back(record.substr(0, 24));
    // 2 is seen after 3, 4 and 6 after 6, 8 at the end.
    REQUIRE(at.size() == 3);
    CHECK((contains(at[0], "\"step\":3,") && contains(at[1], "\"step\":6,") && contains(at[2], "\"step\":8,")));
    CHECK(checkpoint_steps(runs.path("due")) == std::vector<int64_t>{6, 8});
    const RunState state = state_in(step_folder(runs.path("due"), 8));
    CHECK(state.island_updates == "8,8");
    CHECK(state.tokens == 8 * 128);
}

TEST_CASE("islands that cannot be, or whose weights are ruined, end the run with one line", "[outer_optimizer]") {
    const TinyRuns runs;
    const auto fails = [&](const FlagMap& changes, int exit_code, const std::string& why) {
        const Finished finished = runs.train("wrong", with(kIslands, changes));
        INFO(finished.err);
        CHECK(finished.exit_code == exit_code);
        CHECK(count(finished.err, "error: ") == 1);
        CHECK(contains(finished.err, why));
    };
    fails({{"virtual-ranks", "3"}, {"total-batch-size", "96"}}, 2, "--islands 2 does not divide the 3 ranks");
    fails({{"shard-ranks", "2"}}, 2, "leave --shard-ranks out");
    fails({{"time-budget", "9"}, {"schedule-by", "time"}}, 2, "give --steps");
    // Steps so large that weights overflow.
    fails({{"learning-rate", "3e38"}, {"warmup-steps", "0"}}, kExitDiverged,
          "outer step at step 3: the weights of island 0 (ranks 0 to 1) are not finite, so no island has taken it");
    CHECK(checkpoint_steps(runs.path("wrong")).empty());
    fails({{"learning-rate", "1e30"},
           {"warmup-steps", "0"},
           {"weight-decay", "0"},
           {"outer-every", "12"},
           {"steps", "12"}},
          kExitDiverged, "outer step at step 12: the loss or the gradient of island 0 (ranks 0 to 1) is not finite");
    // The mean may be ruined by itself.
    fails({{"learning-rate", "1000"}, {"warmup-steps", "0"}, {"outer-lr", "3e38"}}, kExitDiverged,
          "the mean of the islands is not finite");
    CHECK(checkpoint_steps(runs.path("wrong")).empty());
}

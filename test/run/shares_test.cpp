// How micro-batches are divided among ranks, and the resulting settings of a run, without any ranks.
#include "llmc/run/shares.h"
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include "llmc/comm/local.h"      // LocalGroup, LocalRanks
#include "llmc/run/run_config.h"  // decide
#include "test/testing.h"

namespace {
using Numbers = std::vector<int64_t>;

double slowest(const Numbers& assigned, const std::vector<double>& ms) {
    double most = 0;
    for (size_t r = 0; r < ms.size(); r++) most = std::max(most, double(assigned[r]) * ms[r]);
    return most;
}

// Over all divisions of `left` among the ranks from `r` on.
double best_of_all(Numbers& assigned, size_t r, int64_t left, const std::vector<double>& ms) {
    if (r + 1 == ms.size()) {
        assigned[r] = left;
        return slowest(assigned, ms);
    }
    double best = std::numeric_limits<double>::infinity();
    for (int64_t own = 1; own <= left - int64_t(ms.size() - r - 1); own++) {
        assigned[r] = own;
        best = std::min(best, best_of_all(assigned, r + 1, left - own, ms));
    }
    return best;
}

RunFlags flags_of(const std::string& balance, int batch_size, int64_t total) {
    RunFlags flags;
    flags.balance = balance, flags.batch_size = batch_size, flags.total_batch_size = total;
    flags.model.seq_len = 16, flags.steps = 10;
    return flags;
}
RunConfig config_of(const RunFlags& flags, int64_t ranks, const std::vector<int>& sizes = {}, int rank = 0) {
    const GptShape shape = flags.model.shape(100);
    const Decision decision = decide(flags, shape, ranks, [](const StepConfig&) { return true; }, sizes);
    return {received(text_of(decision), flags), shape, ranks, rank};
}
}  // namespace

TEST_CASE("micro-batches are assigned so that the last rank is done as early as can be", "[shares]") {
    CHECK(assign_micro_batches({30, 10}, 8) == Numbers{2, 6});
    CHECK(assign_micro_batches({10, 10}, 8) == Numbers{4, 4});
    CHECK(assign_micro_batches({10, 10, 10}, 8) == Numbers{3, 3, 2});  // of equals the lowest
    CHECK(assign_micro_batches({1000, 1}, 8) == Numbers{1, 7});        // none is left out
    CHECK(assign_micro_batches({5}, 3) == Numbers{3});
    Rng rng(7, Stream::tests);
    for (int i = 0; i < 200; i++) {
        std::vector<double> ms(2 + rng.below(3));
        for (double& each : ms) each = 1 + double(rng.below(30));
        const int64_t total = int64_t(ms.size() + rng.below(9));
        const Numbers assigned = assign_micro_batches(ms, total);
        REQUIRE(std::accumulate(assigned.begin(), assigned.end(), int64_t(0)) == total);
        REQUIRE(*std::min_element(assigned.begin(), assigned.end()) >= 1);
        Numbers any(ms.size());
        REQUIRE(slowest(assigned, ms) == best_of_all(any, 0, total, ms));
    }
}

TEST_CASE("a division changes where that is worth it, and what only wavers changes nothing", "[shares]") {
    CHECK(rebalanced({4, 4}, {30, 10}) == Numbers{2, 6});
    CHECK(rebalanced({4, 4}, {10.4, 10}) == Numbers{4, 4});
    CHECK(rebalanced({50, 50}, {10.4, 10}) == Numbers{50, 50});  // 49 and 51 would be 2 % better
    CHECK(rebalanced({50, 50}, {12, 10}) == Numbers{45, 55});
    // Between the speeds that lead there and those that lead back is a range in which neither happens.
    for (const double ms : {12.0, 12.6, 13.0}) {
        CHECK(rebalanced({4, 4}, {ms, 10}) == Numbers{4, 4});
        CHECK(rebalanced({3, 5}, {ms, 10}) == Numbers{3, 5});
    }
    CHECK(rebalanced({4, 4}, {13.2, 10}) == Numbers{3, 5});
    CHECK(rebalanced({3, 5}, {11, 10}) == Numbers{4, 4});
    for (const double unknown : {double(NAN), 0., double(INFINITY)})
        CHECK(rebalanced({4, 4}, {unknown, 10}) == Numbers{4, 4});
}

TEST_CASE("ranks look at their speeds after five steps, then every ten, and all learn the same", "[shares]") {
    LocalGroup group(3);
    group.run([&](int rank) {
        LocalRanks ranks(group, rank);
        Balancer balancer(ranks, {4, 4, 4});
        std::vector<int> looks;
        for (int step = 1; step <= 40; step++) {
            // The first step is slow everywhere, one of the others somewhere. Rank 2 takes 20 ms for a micro-batch at
            // first, and from step 21 on all take 10.
            const double each = step == 1 ? 500 : rank == 1 && step == 4 ? 300 : rank == 2 && step <= 20 ? 20 : 10;
            balancer.step(each * double(balancer.micro_batches()[size_t(rank)]));
            if (!balancer.is_due()) continue;
            looks.push_back(step);
            const bool changed = balancer.look();
            CHECK_FALSE(balancer.is_due());
            CHECK(changed == (step == 5 || step == 30));
            CHECK(balancer.micro_batches() == (step < 30 ? Numbers{5, 5, 2} : Numbers{4, 4, 4}));
            if (rank == 0 && step == 5) CHECK(balancer.ms() == std::vector<double>{10, 10, 20});
            if (rank == 0 && step == 5) CHECK(balancer.text() == "a micro-batch takes 10.0, 10.0, 20.0 ms");
        }
        CHECK(looks == std::vector<int>{5, 10, 20, 30, 40});
    });
}

TEST_CASE("what --balance may be", "[shares]") {
    CHECK(balance_mode("equal").is_equal());
    CHECK(balance_mode("auto").moves());
    CHECK(balance_mode("run/a/log.jsonl").kind == BalanceMode::Kind::followed);
    CHECK(balance_mode("3,1").micro_batches == Numbers{3, 1});
    for (const char* wrong : {"", "fast", "3,", ",3", "3;1", "-1,3", "3,1.5", "1000000000000000,1"}) {
        INFO(wrong);
        const std::string error = error_of([&] { balance_mode(wrong); });
        CHECK(contains(error, "expected equal, auto, the number of micro-batches of each rank"));
    }
    CHECK(contains(error_of([] { balance_mode("3,0"); }), "2: --balance 3,0: rank 1 has no micro-batch"));
}

TEST_CASE("a rank's part of a step follows from all ranks' shares", "[shares]") {
    // 10 sequences of each of three ranks would be 8/3 micro-batches.
    const RunFlags assigned = flags_of("auto", 10, 8 * 160);
    for (int rank = 0; rank < 3; rank++) {
        const StepConfig step = config_of(assigned, 3, {}, rank).step;
        CHECK(step.B == 10);
        CHECK(step.accumulation == (rank < 2 ? 3 : 2));
        CHECK(step.sequences_before(rank) == 30 * rank);
        CHECK((step.sequences() == 80 && step.num_tokens() == 1280));
    }
    CHECK(batch_text(config_of(assigned, 3)) ==
          "10 sequences x 16 tokens x (3 + 3 + 2) micro-batches = 1280 tokens per step");

    const RunFlags sizes = flags_of("equal", 2, 2 * 8 * 16);
    const RunConfig last = config_of(sizes, 2, {2, 6}, 1);
    CHECK((last.step.B == 6 && last.step.accumulation == 2 && last.step.sequences_before(1) == 4));
    CHECK(last.flags.batch_size == 6);
    CHECK(least_batch_size(last.shares) == 2);
    CHECK(batch_text(last) == "(2 x 2 + 6 x 2) sequences x micro-batches x 16 tokens = 256 tokens per step");
    CHECK(config_of(flags_of("5,1", 2, 16 * 16), 2, {2, 6}).shares == Shares{{2, 5}, {6, 1}});
    CHECK(config_of(flags_of("5,3", 2, 0), 2).step.num_tokens() == 256);

    // Equal shares need no list.
    const StepConfig equal = config_of(flags_of("equal", 2, 256), 2, {2, 2}, 1).step;
    CHECK((equal.step_sequences == 0 && equal.sequences_before(1) == 8 && equal.sequences() == 16));
    CHECK(text_of(equal_shares(20, {4, 1}), 8) ==
          "4 sequences x 8 tokens x (1 + 1 + 1 + ... + 1 + 1 + 1) micro-batches");
}

TEST_CASE("shares that do not go together are refused in one line", "[shares]") {
    const auto refused = [](const RunFlags& flags, int64_t ranks, const std::vector<int>& sizes,
                            const std::string& part) {
        const std::string error = error_of([&] {
            flags.validate();
            config_of(flags, ranks, sizes);
        });
        INFO(error);
        CHECK(error.starts_with("2: "));
        CHECK(contains(error, part));
        CHECK(!contains(error, "\n"));
    };
    refused(flags_of("3,1", 2, 256), 2, {}, "--balance 3,1 is a step of 128 tokens, and --total-batch-size is 256");
    refused(flags_of("3,1", 2, 128), 3, {}, "--balance 3,1 is of 2 ranks, and there are 3");
    refused(flags_of("3,1", 2, 128), 1, {}, "--balance 3,1 is of 2 ranks, and there are 1");
    refused(flags_of("3,0", 2, 96), 2, {}, "rank 1 has no micro-batch");
    refused(flags_of("auto", 2, 64), 3, {}, "a step has 2 micro-batches, and each of 3 ranks needs one");
    refused(flags_of("auto", 2, 100), 2, {}, "the nearest are 96 and 128");
    for (const std::string balance : {"auto", "3,1"}) {
        RunFlags deep = flags_of(balance, 0, 128);
        refused(deep, 2, {}, "--batch-size auto (with --depth the default) fills each rank with one micro-batch");
        deep.batch_size = {}, deep.model.depth = 2;
        refused(deep, 2, {}, "--batch-size auto (with --depth the default) fills each rank with one micro-batch");
    }
    refused(flags_of("auto", 2, 256), 2, {2, 6}, "--balance auto moves micro-batches of one size");
    refused(flags_of("a.jsonl", 2, 256), 2, {2, 6}, "--balance a.jsonl is of micro-batches of one size");
    refused(flags_of("equal", 2, 0), 2, {2, 6}, "give --total-batch-size, too");
    refused(flags_of("equal", 2, 260), 2, {2, 6},
            "of 128 tokens together (--batch-size 2,6): the nearest are 256 and 384");
    refused(flags_of("equal", 2, 256), 2, {2, -1}, "--batch-size is 2 on rank 0, and not given on rank 1");
    refused(flags_of("equal", 2, 256), 3, {0, 0, 4}, "--batch-size is auto on rank 0, and 4 on rank 2");
    RunFlags tree = flags_of("auto", 2, 256), noise = flags_of("5,3", 2, 256), sizes = flags_of("equal", 2, 256);
    tree.grad_sum = "tree", noise.noise_scale = sizes.noise_scale = true;
    refused(tree, 2, {}, "--grad-sum tree has the same bits whatever the ranks");
    refused(noise, 2, {}, "leave it or --balance 5,3 out");
    refused(sizes, 2, {2, 6}, "--noise-scale compares ranks with equal shares");
    // What needs equal shares, however somebody asks for others.
    const auto unequal = [&](const RunFlags& flags, const std::vector<int>& sizes, const std::string& advice) {
        RunFlags islands = flags, llmc = flags, sharded = flags;
        islands.islands = 2, llmc.data_order = "llmc", sharded.zero_stage = 2;
        refused(islands, 2, sizes, "--islands: ranks of an island have equal shares of a step: leave it out");
        refused(llmc, 2, sizes, "--data-order llmc: all ranks have as many batches of one size");
        refused(sharded, 2, sizes, "--zero-stage 2 sums gradients after each micro-batch");
        for (const RunFlags& each : {islands, llmc, sharded}) refused(each, 2, sizes, advice);
    };
    for (const char* balance : {"auto", "5,3", "a.jsonl"})
        unequal(flags_of(balance, 2, 256), {}, "or give --balance equal");
    unequal(flags_of("equal", 2, 256), {2, 6}, "give --balance equal and all the same --batch-size");
    // Micro-batches that no equal division takes.
    refused(flags_of("equal", 2, 7 * 32), 2, {}, "; or --balance auto, on CPUs");
    RunFlags tied = flags_of("equal", 2, 7 * 32);
    tied.zero_stage = 2;
    CHECK(!contains(error_of([&] { config_of(tied, 2); }), "--balance"));
}

TEST_CASE("who learns nothing divides nothing, whatever the checkpoint's run did", "[shares]") {
    RunFlags flags = flags_of("auto", 2, 128);
    flags.command = Command::eval;
    CHECK(are_equal(config_of(flags, 4).shares));
    flags.zero_stage = 2, flags.islands = 2;
    CHECK(config_of(flags, 2, {3, 1}).shares.size() == 2);
    flags.balance = "a.jsonl";
    CHECK(config_of(flags, 4).step.sequences() == 8);
}

TEST_CASE("the divisions of a log are those that count after its resumes", "[shares]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "log.jsonl";
    const auto put = [&](const std::string& text) {
        FileWriter(path).write(text.data(), text.size());
        return divisions_in(path);
    };
    const std::string records =
        "{\"type\":\"balance\",\"step\":0,\"micro_batches\":[4,4],\"ms\":[\"nan\",\"nan\"]}\n"
        "{\"type\":\"step\",\"step\":1,\"loss\":1}\n"
        "{\"type\":\"balance\",\"step\":5,\"micro_batches\":[2,6],\"ms\":[30.0,10.0]}\n"
        "{\"type\":\"balance\",\"step\":20,\"micro_batches\":[1,7],\"ms\":[90.0,10.0]}\n";
    CHECK(put(records) == std::map<int64_t, Numbers>{{0, {4, 4}}, {5, {2, 6}}, {20, {1, 7}}});
    CHECK(put(records +
              "{\"type\":\"resume\",\"step\":10}\n{\"type\":\"balance\",\"step\":30,\"micro_batches\":[5,3]}\n") ==
          std::map<int64_t, Numbers>{{0, {4, 4}}, {5, {2, 6}}, {30, {5, 3}}});
    const std::string cut = "{\"type\":\"balance\",\"step\":30,\"micro_b\n",
                      wrong = "{\"type\":\"balance\",\"step\":\"x\"}\n";
    CHECK(put(records + cut).size() == 3);
    CHECK(contains(error_of([&] { put(records + wrong); }), "2: --balance " + path + ": expected numbers"));
    CHECK(contains(error_of([&] { put("{\"type\":\"step\",\"step\":1}\n"); }), "it has no record of a division"));
    CHECK(contains(error_of([&] { divisions_in(scratch / "none.jsonl"); }), "none.jsonl: cannot be read"));
}

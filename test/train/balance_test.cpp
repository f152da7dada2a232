/*
Ranks with unequal shares of a step, in whole runs: they learn what one process learns, save checkpoints that any ranks
can resume, and --balance auto follows the speeds, which ANVIL_MICRO_BATCH_MS sets so that no test depends on a clock.
*/
#include <chrono>
#include <cmath>
#include <thread>
#include "llmc/optim/recipe.h"    // find_recipe
#include "llmc/optim/sharding.h"  // plan_sharding
#include "llmc/train/step.h"      // Stepper
#include "test/train/mpi_runs.h"

namespace {

// Eight micro-batches of 2 x 16 tokens per step.
const FlagMap kStep = {{"total-batch-size", "256"}, {"warmup-steps", "2"}, {"steps", "8"}};

/*
How far losses of two runs may be apart that add up the same n terms of every gradient in another order. A sum of n
terms is wrong by n u times the sum of their magnitudes at most, u = 2^-24, and AdamW's step, a ratio, by at most four
times that relative to |g|: dw = 4 lr n u sum|g_j| / |g|. Its effect on the loss is g dw, in which |g| cancels: over all
P parameters 4 lr n u |g|_1, and |g|_1 <= sqrt(P) |g|_2. Terms are larger than their sum, here up to four times.
*/
std::vector<double> loss_bounds(const std::string& out_dir, double n) {
    constexpr double kParameters = 32000;
    std::vector<double> bounds;
    double sum = 0;
    for (const StepRecord& step : steps_in(out_dir)) {
        bounds.push_back(sum + 1e-6 * step.loss);  // what a forward pass rounds, in any order of weights
        sum += 4 * step.lr * n * 0x1p-24 * std::sqrt(kParameters) * 4 * step.norm;
    }
    return bounds;
}

void check_close(const std::string& out_dir, const std::string& one, double n) {
    const auto got = losses_in(out_dir), want = losses_in(one);
    const std::vector<double> bounds = loss_bounds(one, n);
    REQUIRE(got.size() == want.size());
    for (size_t i = 0; i < got.size(); i++) {
        INFO("step " << i + 1 << ": bound " << bounds[i]);
        CHECK(std::fabs(got[i].first - want[i].first) <= bounds[i]);
    }
    // The first gradient is of the same weights.
    CHECK(std::fabs(got[0].second - want[0].second) <= 4 * n * 0x1p-24 * want[0].second);
}

std::string command(const FlagMap& flags, const std::string& speeds) {
    return "env ANVIL_MICRO_BATCH_MS=" + speeds + " " + command_of(flags);
}

// Of each record of a division: after which step, and how many micro-batches.
std::vector<std::pair<int64_t, std::string>> divisions(const std::string& out_dir) {
    std::vector<std::pair<int64_t, std::string>> all;
    for (const std::string& line : records_in(out_dir, "balance")) {
        int64_t step = -1;
        from_json({{"", "step", &step, ""}}, line, out_dir);
        const size_t begin = line.find("\"micro_batches\":[") + 17;
        all.push_back({step, line.substr(begin, line.find(']', begin) - begin)});
    }
    return all;
}
using Divisions = std::vector<std::pair<int64_t, std::string>>;

// Ranks that meet over TCP, each with flags of its own.
std::vector<Finished> tcp(const FlagMap& flags, const std::vector<FlagMap>& own, const std::string& prefix,
                          const std::string& variables = "") {
    const std::string master = "127.0.0.1:" + std::to_string(free_port());
    std::vector<Started> ranks;
    for (size_t r = 0; r < own.size(); r++) {
        const FlagMap launch = {
            {"rank", std::to_string(r)}, {"world-size", std::to_string(own.size())}, {"master", master}};
        ranks.emplace_back("env " + variables + " ANVIL_HOST=host" + std::to_string(r) + " " +
                               command_of(with(with(flags, launch), own[r])),
                           prefix + std::to_string(r));
    }
    std::vector<Finished> ended;
    for (const Started& rank : ranks) ended.push_back(rank.finish());
    return ended;
}

}  // namespace

TEST_CASE("ranks with unequal shares learn what one process learns", "[balance]") {
    const TinyRuns runs;
    must_succeed(runs.train("one", kStep));
    const std::string one = runs.path("one");
    struct Case {
        std::string ranks, balance, dropout;
    };
    for (const Case& c : {Case{"2", "5,3", "0"}, {"3", "1,5,2", "0"}, {"3", "1,5,2", "0.3"}}) {
        const std::string name = "on" + c.ranks + "at" + c.dropout;
        INFO(c.balance << ", dropout " << c.dropout);
        const FlagMap flags = with(kStep, {{"dropout", c.dropout}});
        std::string alone = one;
        if (c.dropout != "0") {
            alone = runs.path("alone");
            must_succeed(runs.train("alone", flags));
        }
        must_succeed(runs.train(name, with(flags, {{"virtual-ranks", c.ranks}, {"balance", c.balance}})));
        const std::string out = runs.path(name);
        CHECK(losses_in(out)[0].first == losses_in(alone)[0].first);  // the same micro-batches, exactly added up
        check_close(out, alone, 8);
        CHECK(state_in(step_folder(out, 8)).data == state_in(step_folder(alone, 8)).data);
        CHECK(divisions(out) == Divisions{{0, c.balance}});
    }
    // Equal shares are what they were, to the last bit, whether somebody asks for them or not.
    must_succeed(runs.train("equal", with(kStep, {{"virtual-ranks", "2"}})));
    must_succeed(runs.train("asked", with(kStep, {{"virtual-ranks", "2"}, {"balance", "4,4"}})));
    CHECK(losses_in(runs.path("asked")) == losses_in(runs.path("equal")));
    CHECK(tensor_difference(step_folder(runs.path("asked"), 8), step_folder(runs.path("equal"), 8)) == "");
}

TEST_CASE("--batch-size may differ from rank to rank, and a run goes on at other sizes and ranks", "[balance][plain]") {
    const TinyRuns runs;
    const FlagMap flags = with(kStep, {{"checkpoint-every", "4"}});
    must_succeed(runs.train("one", flags));
    const std::string one = runs.path("one"), two = runs.path("two");
    const std::vector<Finished> ended =
        tcp(runs.flags("two", flags), {{{"batch-size", "6"}}, {{"batch-size", "2"}, {"threads", "2"}}}, two);
    for (const Finished& rank : ended) must_succeed(rank);
    CHECK(contains(ended[0].out, "batch: (6 x 2 + 2 x 2) sequences x micro-batches x 16 tokens = 256 tokens per step"));
    // Batches of other sizes: the terms that are added up are those of tokens.
    check_close(two, one, 256);
    const auto loss_of = [](const std::string& out) {
        double loss = 0;
        from_json({{"", "loss", &loss, ""}}, records_in(out, "val").back(), out);
        return loss;
    };
    CHECK(std::fabs(loss_of(two) - loss_of(one)) <= loss_bounds(one, 256).back() * 2);
    CHECK(contains(records_in(two, "ranks").back(), "\"sequences\":[12,4]"));

    const std::string middle = step_folder(two, 4);
    const auto go_on = [&](const std::string& name, const std::vector<FlagMap>& own) {
        INFO(name);
        const FlagMap resumed = {{"resume", middle}, {"out-dir", runs.path(name)}};
        for (const Finished& rank : tcp(resumed, own, runs.path(name))) must_succeed(rank);
        const auto got = losses_in(runs.path(name)), want = losses_in(one);
        REQUIRE(got.size() == 4);
        for (size_t i = 0; i < 4; i++)
            CHECK(std::fabs(got[i].first - want[4 + i].first) <= loss_bounds(one, 256)[4 + i]);
        CHECK(state_in(step_folder(runs.path(name), 8)).data == state_in(step_folder(one, 8)).data);
    };
    go_on("three", {{{"batch-size", "1"}}, {{"batch-size", "4"}}, {{"batch-size", "3"}}});
    go_on("listed", {{{"batch-size", "2"}, {"balance", "1,7"}}, {{"batch-size", "2"}, {"balance", "1,7"}}});
    must_succeed(run(command_of({{"resume", middle}, {"out-dir", runs.path("alone")}, {"batch-size", "8"}})));
    CHECK(std::fabs(losses_in(runs.path("alone"))[3].first - losses_in(one)[7].first) <= loss_bounds(one, 256)[7]);
}

TEST_CASE("--balance auto assigns as speeds say, and its log can be followed bit for bit", "[balance]") {
    const TinyRuns runs;
    const FlagMap flags =
        with(kStep, {{"steps", "14"}, {"checkpoint-every", "7"}, {"virtual-ranks", "2"}, {"balance", "auto"}});
    const std::string slow = runs.path("slow");
    const Finished finished = run(command(runs.flags("slow", flags), "30,10"));
    must_succeed(finished);
    CHECK(divisions(slow) == Divisions{{0, "4,4"}, {5, "2,6"}});
    CHECK(contains(records_in(slow, "balance")[1], "\"sequences\":[4,12],\"ms\":[30.0,10.0]"));
    CHECK(contains(finished.out,
                   "balance: 2 sequences x 16 tokens x (2 + 6) micro-batches, after step 5 (a micro-batch "
                   "takes 30.0, 10.0 ms)"));
    must_succeed(runs.train("one", with(kStep, {{"steps", "14"}})));
    check_close(slow, runs.path("one"), 8);

    must_succeed(runs.train("again", with(flags, {{"balance", slow + "/log.jsonl"}})));
    CHECK(divisions(runs.path("again")) == Divisions{{0, "4,4"}, {5, "2,6"}});
    CHECK(losses_in(runs.path("again")) == losses_in(slow));
    CHECK(tensor_difference(step_folder(runs.path("again"), 14), step_folder(slow, 14)) == "");

    // As many ranks go on as they were: the same bits. Then others are slow, or there are more of them, or one.
    const auto go_on = [&](const std::string& name, const std::string& speeds, const FlagMap& changes) {
        must_succeed(
            run(command(with({{"resume", step_folder(slow, 7)}, {"out-dir", runs.path(name)}}, changes), speeds)));
        return runs.path(name);
    };
    const std::string same = go_on("same", "30,10", {{"virtual-ranks", "2"}});
    CHECK(divisions(same) == Divisions{{7, "2,6"}});
    CHECK(tensor_difference(step_folder(same, 14), step_folder(slow, 14)) == "");
    CHECK(divisions(go_on("drift", "10,30", {{"virtual-ranks", "2"}})) == Divisions{{7, "2,6"}, {12, "6,2"}});
    CHECK(divisions(go_on("three", "10,30,10", {{"virtual-ranks", "3"}})) == Divisions{{7, "3,3,2"}, {12, "4,1,3"}});
    const std::string alone = go_on("alone", "10", {});
    CHECK(divisions(alone).empty());
    CHECK(std::fabs(losses_in(alone)[6].first - losses_in(slow)[13].first) <= loss_bounds(slow, 8)[13]);
}

TEST_CASE("processes measure themselves, and whatever they find they learn what one process learns",
          "[balance][plain][mpi]") {
    const TinyRuns runs;
    const FlagMap flags = with(kStep, {{"steps", "12"}});
    must_succeed(runs.train("one", flags));
    for (const Finished& rank : tcp(with(runs.flags("two", flags), {{"balance", "auto"}}), {{}, {}}, runs.path("two")))
        must_succeed(rank);
    check_close(runs.path("two"), runs.path("one"), 8);
    const std::vector<Finished> told = tcp(with(runs.flags("told", flags), {{"balance", "auto"}}), {{}, {}},
                                           runs.path("told"), "ANVIL_MICRO_BATCH_MS=10,70");
    for (const Finished& rank : told) must_succeed(rank);
    CHECK(divisions(runs.path("told")) == Divisions{{0, "4,4"}, {5, "7,1"}});
    check_close(runs.path("told"), runs.path("one"), 8);
    if (!has_mpi()) return;
    must_succeed(mpirun(2, command(with(runs.flags("mpi", flags), {{"balance", "auto"}}), "10,70")));
    CHECK(losses_in(runs.path("mpi")) == losses_in(runs.path("told")));
}

TEST_CASE("what a micro-batch takes is waiting for data and computing, and not communication", "[balance]") {
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::milliseconds kPause(20);
    struct SlowComm : NoComm<Cpu> {
        using NoComm<Cpu>::NoComm;
        int pauses = 0;
        Work reduce_scatter(float*, int64_t) override {
            std::this_thread::sleep_for(kPause);
            pauses++;
            return {};
        }
    };
    struct SlowData {
        Batch batch;
        const Batch& next() {
            std::this_thread::sleep_for(kPause);
            return batch;
        }
    };
    Cpu cpu(1);
    SlowComm comm(cpu);
    ParameterList list(GptShape{2, 2, 32, 16, 60});
    const ShardingPlan plan = plan_sharding(list, {.world_size = 1, .bucket_elements = 4096});
    list.place(plan.offsets, plan.buffer_size);
    Gpt<Cpu> model(cpu, list, 2, 16, Recompute::none, comm);
    Optimizer<Cpu> optimizer(cpu, model.parameters, plan, 0, OptimizerConfig{});
    model.initialize_weights(1);
    SlowData data{{std::vector<int32_t>(32, 1), std::vector<int32_t>(32, 2)}};
    Stepper<Cpu> stepper(model, optimizer, comm, {2, 16, 3, 1.0, 1}, 0);
    const Clock::time_point began = Clock::now();
    stepper.start(data, find_recipe("gpt2").rules.rates(1));
    stepper.finish();
    const double all_ms = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
    REQUIRE(comm.pauses > 1);
    CHECK(stepper.micro_batches_ms() >= 3 * 20);
    CHECK(all_ms - stepper.micro_batches_ms() >= 20. * comm.pauses);
}

TEST_CASE("the step that --balance makes of micro-batches is kept, on other ranks and without it", "[balance][plain]") {
    const TinyRuns runs;
    must_succeed(
        runs.train("a", {{"steps", "6"}, {"total-batch-size", "0"}, {"virtual-ranks", "2"}, {"balance", "3,1"}}));
    for (const std::string ranks : {"1", "2"}) {
        const Finished resumed = runs.resume("a", {{"virtual-ranks", ranks}});
        must_succeed(resumed);
        CHECK(contains(resumed.out, " = 128 tokens per step"));
    }
}

TEST_CASE("what ranks cannot share is refused in one line", "[balance][plain]") {
    const TinyRuns runs;
    const auto refused = [&](const Finished& ended, const std::string& part) {
        INFO(ended.err);
        CHECK(ended.exit_code == kExitUsage);
        CHECK(count(ended.err, "error: ") == 1);
        CHECK(contains(ended.err, part));
    };
    const FlagMap two = with(kStep, {{"virtual-ranks", "2"}});
    refused(runs.train("a", with(two, {{"balance", "8,0"}})), "--balance 8,0: rank 1 has no micro-batch");
    refused(runs.train("a", with(two, {{"balance", "3,3"}})), "a step of 192 tokens, and --total-batch-size is 256");
    refused(runs.train("a", with(two, {{"balance", "3,3,2"}})), "is of 3 ranks, and there are 2");
    refused(runs.train("a", with(two, {{"balance", runs.path("no.jsonl")}})), "no.jsonl: cannot be read");
    CHECK_FALSE(std::filesystem::exists(runs.path("a")));  // nothing has begun
    refused(run(command(runs.flags("a", with(two, {{"balance", "auto"}})), "1,2,3")),
            "expected a number for each of 2 ranks");
    for (const Finished& rank :
         tcp(runs.flags("b", kStep), {{{"batch-size", "2"}}, {{"batch-size", "3"}}}, runs.path("b"))) {
        CHECK(rank.exit_code == kExitUsage);
        if (!rank.err.empty()) refused(rank, "(--batch-size 2,3)");
    }
}

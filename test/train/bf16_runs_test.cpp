// train_gpt in bf16 on the CPU, as a user runs it: threads, ranks and a resume change no bit; and --dtype auto.
#include "llmc/io/sharded_tensors.h"  // ShardedTensors
#include "test/train/rank_runs.h"

namespace fs = std::filesystem;

namespace {

const FlagMap kBf16 = {{"dtype", "bf16"}, {"device", "cpu"}};

}  // namespace

TEST_CASE("a run in bf16 has the same bits at any number of threads and of ranks", "[bf16_runs]") {
    const TinyRuns runs;
    for (const std::string optimizer : {"adamw", "muon"}) {
        const FlagMap flags = with(with(kBf16, kEight), {{"optimizer", optimizer}, {"steps", "12"}});
        const std::string name = optimizer;
        must_succeed(runs.train(name, flags));
        const std::string one = step_folder(runs.path(name), 12);
        const auto want = losses_in(runs.path(name));
        REQUIRE(want.size() == 12);
        CHECK(want.back().first < want.front().first);
        for (const std::string threads : {"2", "3"}) {
            INFO(optimizer << ", " << threads << " threads");
            must_succeed(runs.train(name + threads, with(flags, {{"threads", threads}})));
            CHECK(difference(step_folder(runs.path(name + threads), 12), one) == "");
        }
        for (const std::string ranks : {"2", "4"}) {
            INFO(optimizer << ", " << ranks << " ranks");
            must_succeed(runs.train(name + "ranks" + ranks, with(flags, {{"virtual-ranks", ranks}})));
            CHECK(losses_in(runs.path(name + "ranks" + ranks)) == want);
            CHECK(tensor_difference(step_folder(runs.path(name + "ranks" + ranks), 12), one) == "");
        }
    }
}

// A loss is a mean over tokens of which each is off by a few roundings of either sign: below a unit, as in
// bf16_models.h.
TEST_CASE("a run in bf16 begins as one in fp32 does, is resumed bit for bit, and is of use", "[bf16_runs]") {
    const TinyRuns runs;
    const FlagMap flags = with(kBf16, {{"steps", "9"}, {"prompt", "The "}});
    must_succeed(runs.train("fp32", with(flags, {{"dtype", "fp32"}})));
    must_succeed(runs.train("whole", flags));
    const double exact = steps_in(runs.path("fp32"))[0].loss, loss = steps_in(runs.path("whole"))[0].loss;
    CHECK(std::fabs(loss - exact) <= kEpsBf16 * exact);
    CHECK(loss != exact);

    must_succeed(runs.train("parts", with(flags, {{"checkpoint-every", "3"}, {"keep", "9"}})));
    const std::string whole = step_folder(runs.path("whole"), 9);
    CHECK(difference(step_folder(runs.path("parts"), 9), whole) == "");
    for (const int step : {6, 9}) fs::remove_all(step_folder(runs.path("parts"), step));
    must_succeed(runs.resume("parts", {{"threads", "2"}}));
    CHECK(difference(step_folder(runs.path("parts"), 9), whole) == "");

    // The master weights are stored with the state: most are not bf16 numbers. The model's own file has them rounded.
    const ShardedTensors state(whole, kOptimizerStem);
    std::vector<float> master_weights(4 * 32 * 32);
    state.read(master_weights.data(), "master.h.0.mlp.c_fc.weight", 0, int64_t(master_weights.size()));
    size_t between = 0;
    for (const float x : master_weights) between += to_float(to_bf16(x)) != x;
    CHECK(between > master_weights.size() / 2);
    CHECK(fs::file_size(whole + "/model.safetensors") <
          0.6 * double(fs::file_size(step_folder(runs.path("fp32"), 9) + "/model.safetensors")));

    // It is looked at and continued in bf16, and goes on in fp32 where somebody wants that.
    const Finished seen = run(command_of({{"resume", runs.path("whole")}}, "eval") + " --summary");
    must_succeed(seen);
    const Finished text = run(
        command_of({{"resume", runs.path("whole")}, {"prompt", "Once"}, {"sample-tokens", "11"}, {"temperature", "1"}},
                   "generate"));
    must_succeed(text);
    CHECK(text.out.size() == 11);
    must_succeed(runs.resume("whole", {{"dtype", "fp32"}, {"steps", "10"}}));
    CHECK(steps_in(runs.path("whole")).size() == 10);
}

TEST_CASE("--memory lean has the same bits at any number of threads and of ranks, and after a resume", "[bf16_runs]") {
    const TinyRuns runs;
    for (const std::string optimizer : {"adamw", "muon"}) {
        const FlagMap flags = with(
            with(kBf16, kEight),
            {{"optimizer", optimizer}, {"memory", "lean"}, {"steps", "8"}, {"checkpoint-every", "4"}, {"keep", "9"}});
        const auto path = [&](const std::string& how) { return runs.path(optimizer + how); };
        must_succeed(runs.train(optimizer, flags));
        const std::string one = step_folder(path(""), 8);
        const auto want = losses_in(path(""));
        REQUIRE(want.size() == 8);
        CHECK(want.back().first < want.front().first);
        must_succeed(runs.train(optimizer + "threads", with(flags, {{"threads", "3"}})));
        CHECK(difference(step_folder(path("threads"), 8), one) == "");
        for (const std::string ranks : {"2", "4"}) {
            INFO(optimizer << ", " << ranks << " ranks");
            must_succeed(runs.train(optimizer + ranks, with(flags, {{"virtual-ranks", ranks}})));
            CHECK(losses_in(path(ranks)) == want);
            CHECK(tensor_difference(step_folder(path(ranks), 8), one) == "");
        }
        for (const auto& [from, to] : {std::pair<std::string, std::string>{"4", "1"}, {"", "2"}}) {
            INFO(optimizer << " from " << from << " to " << to << " ranks");
            const std::string out = path("from" + from + "to" + to);
            must_succeed(
                run(command_of({{"resume", step_folder(path(from), 4)}, {"out-dir", out}, {"virtual-ranks", to}})));
            CHECK(tensor_difference(step_folder(out, 8), one) == "");
        }
        const ShardedTensors state(one, kOptimizerStem);
        CHECK(state.has("m.h.0.mlp.c_fc.weight"));
        CHECK(!state.has("master.h.0.mlp.c_fc.weight"));
    }
}

TEST_CASE("--memory lean goes on from master weights, which are rounded, and not back to them", "[bf16_runs]") {
    const TinyRuns runs;
    const FlagMap flags = with(kBf16, {{"steps", "4"}, {"warmup-steps", "1"}});
    must_succeed(runs.train("full", flags));
    const std::string full = step_folder(runs.path("full"), 4);
    const auto resumed = [&](const std::string& from, const std::string& out, const FlagMap& more) {
        return run(command_of(with({{"resume", from}, {"out-dir", runs.path(out)}}, more)));
    };
    // Nothing is trained, so the new weights are the old ones, rounded as those beside master weights are.
    const Finished converted = resumed(full, "lean", {{"memory", "lean"}, {"steps", "4"}});
    must_succeed(converted);
    CHECK(contains(converted.out, "are rounded to bf16; from here on they have no fp32 master weights\n"));
    const std::string lean = step_folder(runs.path("lean"), 4);
    CHECK(read_file(lean + "/model.safetensors") == read_file(full + "/model.safetensors"));
    const Finished again = resumed(lean, "more", {{"steps", "6"}});
    must_succeed(again);
    CHECK(!contains(again.out, "are rounded to bf16"));
    const Finished back = resumed(lean, "back", {{"memory", "full"}, {"steps", "6"}});
    CHECK(back.exit_code == 2);
    CHECK(contains(back.err, "has no fp32 master weights"));
    CHECK(contains(back.err, "--init-from"));
    // Its weights are a model like any other.
    must_succeed(runs.train("anew", with(flags, {{"init-from", lean}})));
    must_succeed(run(command_of({{"resume", lean}, {"dtype", "fp32"}}, "eval")));

    const auto refused = [&](const FlagMap& more, const std::string& why) {
        const Finished wrong = runs.train("wrong", with(with(flags, {{"memory", "lean"}}), more));
        CHECK(wrong.exit_code == 2);
        INFO(wrong.err);
        CHECK(contains(wrong.err, why));
        CHECK(std::count(wrong.err.begin(), wrong.err.end(), '\n') == 1);
    };
    refused({{"dtype", "fp32"}}, "--dtype is fp32: give --dtype bf16");
    refused({{"moments", "fp32"}}, "leave --moments fp32 out");
    refused({{"virtual-ranks", "2"}, {"islands", "2"}}, "--islands average fp32 master weights");
    refused({{"memory", "small"}}, "--memory small");
    const Finished plan = runs.train("plan", with(flags, {{"memory", "lean"}, {"dry-run", "true"}}));
    must_succeed(plan);
    CHECK((contains(plan.out, "moments, 4") && !contains(plan.out, "master weights")));
    CHECK(contains(plan.out, "bf16; some layers' fp32, "));
}

// Six layers, so that on one rank, too, gradients of some have the memory of others.
TEST_CASE("--memory lean sums gradients in bf16, with the same bits each time", "[bf16_runs]") {
    const TinyRuns runs;
    for (const std::string optimizer : {"adamw", "muon"}) {
        const FlagMap flags = with(with(kBf16, kEight), {{"optimizer", optimizer},
                                                         {"memory", "lean"},
                                                         {"num-layers", "6"},
                                                         {"steps", "4"},
                                                         {"checkpoint-every", "2"},
                                                         {"keep", "9"}});
        const FlagMap lean = with(flags, {{"grad-sum", "fp32"}});
        const auto path = [&](const std::string& how) { return runs.path(optimizer + how); };
        must_succeed(runs.train(optimizer + "exact", flags));
        for (const std::string ranks : {"1", "2", "4"}) {
            INFO(optimizer << ", " << ranks << " ranks");
            const FlagMap on_ranks = with(lean, {{"virtual-ranks", ranks}});
            must_succeed(runs.train(optimizer + ranks, on_ranks));
            const std::string end = step_folder(path(ranks), 4);
            must_succeed(
                runs.train(optimizer + ranks + "again", with(on_ranks, {{"zero-stage", "2"}, {"threads", "2"}})));
            CHECK(tensor_difference(step_folder(path(ranks + "again"), 4), end) == "");
            const std::string out = path(ranks + "resumed");
            must_succeed(
                run(command_of({{"resume", step_folder(path(ranks), 2)}, {"out-dir", out}, {"virtual-ranks", ranks}})));
            CHECK(tensor_difference(step_folder(out, 4), end) == "");
            // Eight micro-batches over the ranks: each sum is rounded by less than a unit.
            const auto got = losses_in(path(ranks)), exact = losses_in(path("exact"));
            REQUIRE(got.size() == 4);
            CHECK(got[0].first == exact[0].first);
            CHECK(got[0].second != exact[0].second);
            CHECK(std::fabs(got[0].second - exact[0].second) <= 8 / std::stod(ranks) * std::exp2(-7) * exact[0].second);
            CHECK(got[3].first < got[0].first);
        }
    }
    for (const auto& [flag, value] : {std::pair{"noise-scale", "true"}, {"data-order", "llmc"}}) {
        const Finished wrong = runs.train("wrong", with(kBf16, {{"memory", "lean"}, {flag, value}}));
        CHECK(wrong.exit_code == 2);
        CHECK(contains(wrong.err, "--memory lean"));
    }
}

TEST_CASE("--dtype auto is the type that it says, and ranks agree on it", "[bf16_runs]") {
    const TinyRuns runs;
    const FlagMap flags = {{"dtype", "auto"}, {"device", "cpu"}, {"steps", "2"}, {"warmup-steps", "0"}};
    for (const std::string ranks : {"0", "2"}) {
        const Finished finished =
            runs.train("auto" + ranks, with(flags, {{"virtual-ranks", ranks}, {"total-batch-size", "0"}}));
        must_succeed(finished);
        INFO(finished.err);
        const std::string said = "--dtype auto: ";
        REQUIRE(finished.err.starts_with(said));
        CHECK(finished.err.find(said, 1) == std::string::npos);  // by one rank
        const std::string type = finished.err.substr(said.size(), 4);
        CHECK((type == "bf16" || type == "fp32"));
        must_succeed(runs.train("told" + ranks,
                                with(flags, {{"dtype", type}, {"virtual-ranks", ranks}, {"total-batch-size", "0"}})));
        CHECK(difference(step_folder(runs.path("auto" + ranks), 2), step_folder(runs.path("told" + ranks), 2)) == "");
    }
    const Finished told = runs.train("told", with(flags, {{"dtype", "fp32"}}));
    must_succeed(told);
    CHECK(told.err == "");
    const Finished plan = runs.train("plan", with(flags, {{"dtype", "bf16"}, {"dry-run", "true"}}));
    must_succeed(plan);
    CHECK((contains(plan.out, "moments, 8") && contains(plan.out, "; master weights, 4")));
}

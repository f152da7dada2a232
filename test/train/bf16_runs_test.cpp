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
    CHECK(contains(plan.out, "moments and master weights"));
}

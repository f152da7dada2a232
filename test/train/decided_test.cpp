// What a run decides at its start stays decided when it is resumed: the type, the warm-up and the tokens per step. And
// an evaluation has the same result at any batch size.
#include <nlohmann/json.hpp>
#include "llmc/optim/schedule.h"  // learning_rate
#include "test/program.h"

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Everything that is decided is left open, and a checkpoint is in the middle.
const FlagMap kOpen = {
    {"total-batch-size", "0"}, {"warmup-steps", "recipe"}, {"steps", "40"}, {"checkpoint-every", "20"}, {"keep", "9"},
    {"print-every", "1000"}};

FlagMap with(FlagMap flags, const FlagMap& more) {
    for (const auto& [name, value] : more) flags[name] = value;
    return flags;
}

json flags_in(const std::string& checkpoint) { return json::parse(read_file(checkpoint + "/" + kRunFlagsFile)); }

// Makes a checkpoint one of an older program, which did not tell what it had decided and had flags that are gone.
void make_older(const std::string& checkpoint, const std::string& dtype) {
    json flags = flags_in(checkpoint), state = json::parse(read_file(checkpoint + "/state.json"));
    flags["total-batch-size"] = 0;
    flags["warmup-steps"] = nullptr;
    flags["dtype"] = dtype;
    flags["checkpoint-local"] = "local", flags["local-every"] = 3, flags["tensorboard"] = true;
    flags["dependent-launch"] = true;
    state.erase("learning_rate");
    put_file(checkpoint + "/" + kRunFlagsFile, flags.dump());
    put_file(checkpoint + "/state.json", state.dump());
    renew_manifest(checkpoint);
}

struct Resumed {
    const TinyRuns& runs;
    std::string checkpoint;
    Finished to(const std::string& out, const FlagMap& flags) const {
        return run(command_of(with({{"resume", checkpoint}, {"out-dir", runs.path(out)}}, flags)));
    }
};

}  // namespace

TEST_CASE("a resumed run keeps its type, its warm-up and its tokens per step, also from an older checkpoint",
          "[decided]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", with(kOpen, {{"virtual-ranks", "2"}, {"grad-sum", "tree"}})));
    const std::string middle = step_folder(runs.path("a"), 20);
    CHECK(flags_in(middle)["warmup-steps"] == 4);
    CHECK(flags_in(middle)["total-batch-size"] == 64);
    CHECK(state_in(middle).learning_rate == steps_in(runs.path("a"))[19].lr);
    for (const bool is_older : {false, true}) {
        INFO((is_older ? "older" : "new"));
        if (is_older) make_older(middle, "auto");
        const Resumed from{runs, middle};
        const std::string suffix = is_older ? "_older" : "";

        // On one rank the same micro-batches and so the same bits, on four the same steps.
        for (const std::string ranks : {"0", "4"}) {
            const std::string out = "ranks" + ranks + suffix;
            const Finished ended = from.to(out, {{"virtual-ranks", ranks}});
            must_succeed(ended);
            CHECK(ended.err == "");  // no type was measured
            CHECK(contains(ended.out, " = 64 tokens per step\n"));
            CHECK(contains(ended.out,
                           "batch size: 1, not 2, to keep the 64 tokens per step of the run, 16 for each of 4 "
                           "ranks\n") == (ranks == "4"));
            CHECK_FALSE(contains(ended.out, "another schedule"));
            const std::vector<StepRecord> got = steps_in(runs.path(out)), want = steps_in(runs.path("a"));
            REQUIRE(got.size() == 20);
            for (size_t i = 0; i < 20; i++) {
                CHECK(got[i].loss == Approx(want[i + 20].loss).epsilon(ranks == "0" ? 0 : 1e-5));
                CHECK(got[i].lr == want[i + 20].lr);
            }
        }
        const Finished three = from.to("three", {{"virtual-ranks", "3"}});
        CHECK(three.exit_code == kExitUsage);
        CHECK(contains(three.err,
                       "--total-batch-size 64, the tokens per step of the resumed run, is not a multiple of "
                       "--batch-size 2 x --seq-len 16 x 3 ranks = 96 tokens: the nearest is 96"));
        const Finished sixes = from.to("sixes", {{"batch-size", "3"}});
        CHECK(sixes.exit_code == kExitUsage);
        CHECK(contains(sixes.err, " = 48 tokens: the nearest are 48 and 96; or --batch-size 2 and 4\n"));
        const Finished asked = from.to("asked" + suffix, {{"batch-size", "3"}, {"total-batch-size", "48"}});
        must_succeed(asked);
        CHECK(contains(asked.out, " = 48 tokens per step\n"));

        // Longer: no second warm-up.
        const Finished longer = from.to("longer" + suffix, {{"steps", "400"}});
        must_succeed(longer);
        RunFlags flags;
        from_json(flags.fields(), read_file(step_folder(runs.path("longer" + suffix), 400) + "/" + kRunFlagsFile), "");
        CHECK(flags.warmup_steps == 4);
        const Schedule schedule = flags.chosen_recipe().schedule(400);
        const std::vector<StepRecord> steps = steps_in(runs.path("longer" + suffix));
        REQUIRE(steps.size() == 380);
        for (const StepRecord& step : steps) CHECK(step.lr == learning_rate(schedule, step.step - 1));
        CHECK(steps[0].lr > 0.95 * schedule.max);
        if (!is_older)
            CHECK(contains(longer.out, format("\nlearning rate: %.2e in step 20, %.2e in step 21, by another schedule "
                                              "(--steps)\n",
                                              state_in(middle).learning_rate, steps[0].lr)));
    }
}

TEST_CASE("--dtype auto is measured once, at the start of a run", "[decided]") {
    const TinyRuns runs;
    const FlagMap few = {{"steps", "2"}, {"warmup-steps", "0"}, {"device", "cpu"}};
    const Finished first = runs.train("auto", with(few, {{"dtype", "auto"}}));
    must_succeed(first);
    REQUIRE(first.err.starts_with("--dtype auto: "));
    CHECK(flags_in(step_folder(runs.path("auto"), 2))["dtype"] == first.err.substr(14, 4));
    // One of these types is not what a measurement would give. An older checkpoint has weights of the type.
    for (const std::string type : {"fp32", "bf16"}) {
        must_succeed(runs.train(type, with(few, {{"dtype", type}})));
        const std::string checkpoint = step_folder(runs.path(type), 2);
        make_older(checkpoint, "auto");
        for (const std::string asked : {"", "auto"}) {
            FlagMap flags = {{"steps", "3"}};
            if (!asked.empty()) flags["dtype"] = asked;
            const Finished resumed = Resumed{runs, checkpoint}.to(type + asked + "_on", flags);
            must_succeed(resumed);
            CHECK(resumed.err == "");
            CHECK(contains(resumed.out, " parameters in " + type + ","));
        }
        CHECK(run(command_of({{"resume", checkpoint}}, "eval")).err == "");
    }
}

TEST_CASE("flags that a resumed run cannot follow are refused or said", "[decided]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", {{"steps", "6"}, {"warmup-steps", "5"}}));
    const Finished below = runs.resume("a", {{"steps", "4"}});
    CHECK(below.exit_code == 0);
    CHECK(below.err == "warning: --steps 4 is below the checkpoint's step 6: nothing is trained\n");
    CHECK(checkpoint_steps(runs.path("a")) == std::vector<int64_t>{6});
    CHECK(runs.resume("a", {{"steps", "6"}}).err == "");
    for (const auto& [name, value] : {std::pair{"model", "gpt2-124M"}, {"depth", "2"}}) {
        const Finished other = runs.resume("a", {{name, value}});
        CHECK(other.exit_code == kExitUsage);
        CHECK(
            contains(other.err, "is of a run with another --" + std::string(name) + ": leave it out, or start a new"));
    }
    must_succeed(runs.resume("a", {{"model", "custom"}}));
}

TEST_CASE("an evaluation has one result at any batch size and number of ranks", "[decided]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", {{"steps", "2"}, {"warmup-steps", "0"}, {"val-tokens", "0"}}));
    const auto loss_of = [&](const FlagMap& flags) {
        const Finished seen = run(command_of(with({{"resume", runs.path("a")}, {"summary", "true"}}, flags), "eval"));
        must_succeed(seen);
        return seen.out.substr(seen.out.find("val_loss:"), 28);  // six decimals
    };
    const std::string loss = loss_of({});
    for (const std::string batch_size : {"1", "3", "100", "auto"}) CHECK(loss_of({{"batch-size", batch_size}}) == loss);
    CHECK(loss_of({{"virtual-ranks", "3"}}) == loss);
    CHECK(loss_of({{"virtual-ranks", "2"}, {"batch-size", "7"}}) == loss);
    CHECK(loss_of({{"val-tokens", "64"}}) != loss);
}

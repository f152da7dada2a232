// Runs whose optimizer's state lies in host memory: the bits of those without, through saves, stops and resumes.
#include "test/program.h"          // TinyRuns
#include "test/train/rank_runs.h"  // with, losses_in, tensor_difference

namespace {

// Eight micro-batches a step, so that gradients are the same tree on any number of ranks.
const FlagMap kSteps = {{"total-batch-size", "256"}, {"grad-sum", "tree"}, {"steps", "6"}, {"warmup-steps", "2"}};
const FlagMap kOffload = {{"offload", "optimizer"}};

}  // namespace

TEST_CASE("a run has the same bits with offloaded state, on any number of ranks", "[offload_runs]") {
    const TinyRuns runs;
    for (const FlagMap& kind :
         {FlagMap{{"optimizer", "muon"}, {"dtype", "bf16"}}, FlagMap{{"optimizer", "adamw"}, {"moments", "bf16"}},
          FlagMap{{"optimizer", "muon"}, {"moments", "bf16"}, {"dtype", "bf16"}},
          FlagMap{{"optimizer", "muon"}, {"memory", "lean"}, {"dtype", "bf16"}},
          FlagMap{{"optimizer", "adamw"}, {"memory", "lean"}, {"dtype", "bf16"}}}) {
        std::string name;
        for (const auto& [flag, value] : kind) name += value + " ";
        const FlagMap flags = with(kSteps, kind);
        must_succeed(runs.train(name, flags));
        const auto same = [&](const std::string& how, const FlagMap& more) {
            INFO(name << how);
            const Finished done = runs.train(name + how, with(with(flags, kOffload), more));
            must_succeed(done);
            CHECK(contains(done.out, ": saves nothing on a CPU"));
            CHECK(losses_in(runs.path(name + how)) == losses_in(runs.path(name)));
            CHECK(tensor_difference(step_folder(runs.path(name + how), 6), step_folder(runs.path(name), 6)) == "");
        };
        same("1", {});
        same("some", {{"offload", "optimizer:40"}});
        CHECK(difference(step_folder(runs.path(name + "1"), 6), step_folder(runs.path(name), 6)) == "");
        same("2", {{"virtual-ranks", "2"}, {"offload", "optimizer:auto"}});
        same("4 sharded", {{"virtual-ranks", "4"}, {"zero-stage", "2"}});
        if (kSanitized) break;
    }
}

TEST_CASE("offloaded state is saved and resumed as any other, with and without --offload", "[offload_runs]") {
    const TinyRuns runs;
    const FlagMap flags =
        with(kSteps, {{"optimizer", "muon"}, {"dtype", "bf16"}, {"checkpoint-every", "2"}, {"keep", "9"}});
    must_succeed(runs.train("whole", flags));
    must_succeed(runs.train("a", with(flags, kOffload)));
    // In the background from a copy, and at once from where it lies.
    must_succeed(runs.train("b", with(with(flags, kOffload), {{"async-checkpoint", "false"}})));
    for (const std::string run : {"a", "b"})
        for (const int64_t step : {2, 4, 6})
            CHECK(difference(step_folder(runs.path(run), step), step_folder(runs.path("whole"), step)) == "");
    const auto go_on = [&](const std::string& out, const std::string& from, const FlagMap& more) {
        must_succeed(run(command_of(
            with({{"resume", step_folder(runs.path(from), 2)}, {"out-dir", runs.path(out)}, {"keep", "9"}}, more))));
        CHECK(tensor_difference(step_folder(runs.path(out), 6), step_folder(runs.path("whole"), 6)) == "");
    };
    go_on("with", "whole", {{"offload", "optimizer"}, {"virtual-ranks", "2"}});
    go_on("without", "a", {{"offload", "none"}, {"virtual-ranks", "4"}});
    go_on("some", "a", {{"offload", "optimizer:50"}});
    go_on("whole again", "some", {{"offload", "optimizer"}, {"virtual-ranks", "2"}});
    go_on("as before", "a", {});
    CHECK(contains(read_file(step_folder(runs.path("as before"), 6) + "/train_config.json"),
                   "\"offload\": \"optimizer\""));
    // An evaluation of such a run.
    const Finished evaluated = run(program("train_gpt") + " eval --resume " + runs.path("a") + " --threads 1");
    must_succeed(evaluated);
    const std::string whole = run(program("train_gpt") + " eval --resume " + runs.path("whole") + " --threads 1").out;
    REQUIRE(contains(whole, "\nval "));
    CHECK(contains(evaluated.out, whole.substr(whole.find("\nval "))));
}

TEST_CASE("a stopped run with offloaded state has saved the state of its last step", "[offload_runs]") {
    const TinyRuns runs(20000);
    const FlagMap flags = with(kSteps, {{"lr-schedule", "constant"}, {"warmup-steps", "0"}});
    const std::string out = runs.path("stopped");
    const Started started(command_of(runs.flags("stopped", with(with(flags, kOffload), {{"steps", "100000"}}))), out);
    for (int i = 0; i < 3000; i++, usleep(10000))
        if (std::filesystem::exists(out + "/log.jsonl") && records_in(out, "step").size() >= 3) break;
    must_succeed(started.finish(SIGTERM));
    const int64_t stopped = steps_in(out).back().step;
    must_succeed(runs.train("whole", with(flags, {{"steps", std::to_string(stopped)}})));
    CHECK(tensor_difference(step_folder(out, stopped), step_folder(runs.path("whole"), stopped)) == "");
}

TEST_CASE("what offloaded state needs is in the plan, and what does not go with it is said", "[offload_runs]") {
    const TinyRuns runs;
    const Finished dry = runs.train("dry", {{"dry-run", "true"}, {"offload", "optimizer"}});
    must_succeed(dry);
    CHECK(contains(dry.out, "  the stages of the update, three at a time\n"));
    CHECK(contains(dry.out, "  offloaded "));
    const auto refused = [&](const Finished& done, const std::string& says) {
        CHECK(done.exit_code == 2);
        CHECK(contains(done.err, says));
    };
    refused(runs.train("c", {{"offload", "optimizer"}, {"virtual-ranks", "2"}, {"islands", "2"}}),
            "leave --offload optimizer out");
    refused(runs.train("c", {{"offload", "weights"}}), "--offload weights: expected ");
    refused(runs.train("c", {{"offload", "optimizer:101"}}), "--offload optimizer:101: expected up to 100 percent");
    for (const std::string command : {"eval", "generate"})
        refused(run(program("train_gpt") + " " + command + " --offload optimizer --resume " + runs.path("a")),
                "--offload");
}

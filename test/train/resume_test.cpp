// A run that was interrupted and resumed equals an uninterrupted run, bit for bit, in all of its files.
#include "test/program.h"

namespace fs = std::filesystem;

namespace {

// A sample and a validation (on half of the data, always the same) after every third step, a checkpoint after every
// sixth.
const FlagMap kWatched = {{"steps", "30"},      {"checkpoint-every", "6"}, {"keep", "9"},          {"val-every", "3"},
                          {"val-tokens", "96"}, {"sample-every", "3"},     {"sample-tokens", "8"}, {"prompt", "The "}};

FlagMap with(FlagMap flags, const FlagMap& more) {
    for (const auto& [name, value] : more) flags[name] = value;
    return flags;
}

std::string field_of(const std::string& record, const std::string& name) {
    std::string value;
    from_json({{"", name.c_str(), &value, ""}}, record, "log.jsonl");
    return value;
}

// What the logs say of the steps after `from`, without times: "" if it is the same.
std::string log_difference(const std::string& got, const std::string& want, int64_t from) {
    const auto text_of = [&](const std::string& out_dir) {
        std::string text;
        for (const StepRecord& r : steps_in(out_dir))
            if (r.step > from) text += format("step %ld %.17g %.17g %.17g\n", r.step, r.loss, r.norm, r.lr);
        for (const std::string type : {"val", "sample"})
            for (const auto& [step, line] : records_by_step(out_dir, type))
                if (step > from) text += line + "\n";
        return text;
    };
    const std::string one = text_of(got), other = text_of(want);
    return one == other ? "" : one + "against\n" + other;
}

RunFlags config_in(const std::string& checkpoint) {
    RunFlags config;
    from_json(config.fields(), read_file(checkpoint + "/" + kRunFlagsFile), checkpoint);
    return config;
}

void flip_bit(const std::string& path, size_t at) {
    std::string content = read_file(path);
    content[at] = char(content[at] ^ 4);
    put_file(path, content);
}

}  // namespace

TEST_CASE("a resumed run is the undisturbed run, bit for bit", "[resume]") {
    const TinyRuns runs;
    must_succeed(runs.train("straight", kWatched));
    const std::string straight = runs.path("straight");
    // The epoch ends in the 19th step: after the checkpoints of 6 and 18, before that of 24.
    REQUIRE(state_in(step_folder(straight, 18)).data.epoch == 0);
    REQUIRE(state_in(step_folder(straight, 24)).data.epoch == 1);

    // From one checkpoint, into a folder of its own; with other threads, because they must not matter.
    for (const int64_t from : {6, 18, 24}) {
        const std::string name = "from_" + std::to_string(from);
        const Finished finished = run(command_of({{"resume", step_folder(straight, from)},
                                                  {"out-dir", runs.path(name)},
                                                  {"threads", from == 6    ? "1"
                                                              : from == 18 ? "2"
                                                                           : "3"}}));
        must_succeed(finished);
        CHECK(finished.err == "");
        for (int64_t step = from + 6; step <= 30; step += 6)
            CHECK(difference(step_folder(runs.path(name), step), step_folder(straight, step)) == "");
        CHECK(log_difference(runs.path(name), straight, from) == "");
        CHECK(records_in(runs.path(name), "resume").size() == 1);
    }
}

TEST_CASE("a run in muP stays in muP when it is resumed, and keeps its base width", "[resume]") {
    const TinyRuns runs;
    const FlagMap mup = {{"mup-base-width", "8"},
                         {"steps", "4"},
                         {"warmup-steps", "0"},
                         {"checkpoint-every", "2"},
                         {"learning-rate", "0.01"}};
    const Finished straight = runs.train("straight", mup),
                   standard = runs.train("standard", with(mup, {{"mup-base-width", "32"}}));
    must_succeed(straight);
    CHECK(contains(straight.out, "muP: standard at 8 channels, here 32: learning rate of matrices and lm_head x 0.25"));
    must_succeed(standard);
    CHECK_FALSE(contains(standard.out, "muP"));
    const std::string half = step_folder(runs.path("straight"), 2);
    const Finished resumed = run(command_of({{"resume", half}, {"out-dir", runs.path("resumed")}}));
    must_succeed(resumed);
    CHECK(contains(resumed.out, "muP: standard at 8 channels, here 32"));
    CHECK(difference(step_folder(runs.path("resumed"), 4), step_folder(runs.path("straight"), 4)) == "");
    CHECK(difference(step_folder(runs.path("straight"), 4), step_folder(runs.path("standard"), 4)) != "");
    // At its base width it is the standard parametrization.
    must_succeed(runs.train("none", with(mup, {{"mup-base-width", "0"}})));
    CHECK(difference(step_folder(runs.path("standard"), 4), step_folder(runs.path("none"), 4)) == "");
    const Finished other =
        run(command_of({{"resume", half}, {"out-dir", runs.path("other")}, {"mup-base-width", "16"}}));
    CHECK(other.exit_code == kExitUsage);
    CHECK(contains(other.err, "is of a run with another --mup-base-width"));
}

TEST_CASE("a run that was stopped, at any step, goes on as if it had not been", "[resume]") {
    const TinyRuns runs;
    // A sample and a validation are due at each step, so at the one where the run is stopped, too.
    const FlagMap endless = with(kWatched, {{"steps", "100000"},
                                            {"lr-schedule", "constant"},
                                            {"warmup-steps", "0"},
                                            {"checkpoint-every", "0"},
                                            {"val-every", "1"},
                                            {"sample-every", "1"}});
    for (const std::string how : {"SIGTERM", "SIGINT", "SIGHUP", "time budget"}) {
        const std::string name = how.substr(0, 4), out = runs.path(name);
        FlagMap flags = runs.flags(name, endless);
        if (how == "time budget") flags["time-budget"] = "0.02";
        const Started started(command_of(flags), out);
        if (how != "time budget")
            for (int i = 0; i < 3000; i++, usleep(10000))
                if (fs::exists(out + "/log.jsonl") && records_in(out, "step").size() >= 4) break;
        must_succeed(started.finish(how == "SIGTERM"  ? SIGTERM
                                    : how == "SIGINT" ? SIGINT
                                    : how == "SIGHUP" ? SIGHUP
                                                      : 0));

        const std::vector<std::string> ends = records_in(out, "end");
        REQUIRE(ends.size() == 1);
        CHECK(field_of(ends[0], "reason") == how);
        const int64_t stopped = steps_in(out).back().step;
        REQUIRE(stopped >= (how == "time budget" ? 1 : 4));
        CHECK(checkpoint_steps(out) == std::vector<int64_t>{stopped});  // of the current step, and no other

        const std::string to = std::to_string(stopped + 3);
        must_succeed(runs.resume(name, {{"steps", to}, {"time-budget", "0"}}));
        must_succeed(runs.train("straight " + name, with(endless, {{"steps", to}})));
        CHECK(difference(step_folder(out, stopped + 3), step_folder(runs.path("straight " + name), stopped + 3)) == "");
        CHECK(log_difference(out, runs.path("straight " + name), 0) == "");
    }
}

TEST_CASE("a used-up time budget ends a resumed run where it is", "[resume]") {
    const TinyRuns runs;
    const Finished ended = runs.train("a", {{"steps", "100000"}, {"time-budget", "0.01"}});
    must_succeed(ended);
    const std::vector<int64_t> steps = checkpoint_steps(runs.path("a"));
    REQUIRE(steps.size() == 1);
    CHECK(contains(ended.out, format("\nstopped at step %ld of 100000, before the end of its schedules: --time-budget "
                                     "0.01 is used up; a larger one, with --resume, continues\n",
                                     steps[0])));
    CHECK(state_in(step_folder(runs.path("a"), steps[0])).training_s >= 0.01);
    CHECK(runs.resume("a").exit_code == 0);
    CHECK(checkpoint_steps(runs.path("a")) == steps);
    CHECK(steps_in(runs.path("a")).size() == size_t(steps[0]));
}

TEST_CASE("auto starts anew where there is nothing, and goes on where there is something", "[resume]") {
    const TinyRuns runs;
    const FlagMap flags = runs.flags("a", {{"resume", "auto"}, {"steps", "6"}});
    must_succeed(run(command_of(flags)));
    CHECK(records_in(runs.path("a"), "start").size() == 1);
    CHECK(checkpoint_steps(runs.path("a")) == std::vector<int64_t>{6});
    must_succeed(run(command_of(with(flags, {{"steps", "8"}}))));
    CHECK(records_in(runs.path("a"), "start").size() == 1);
    CHECK(records_in(runs.path("a"), "resume").size() == 1);
    CHECK(steps_in(runs.path("a")).size() == 8);
    CHECK(checkpoint_steps(runs.path("a")) == std::vector<int64_t>{6, 8});
}

TEST_CASE("a resumed run keeps its flags but those that are given", "[resume]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", {{"steps", "6"}, {"beta2", "0.9"}, {"learning-rate", "0.002"}}));
    // Named without a slash, from within the run's folder; the data are named by whole paths.
    const std::string here = fs::absolute(program("train_gpt"));
    const Finished finished =
        run("cd " + runs.path("a") + " && " + here + " --resume step_00000006 --steps 9 --learning-rate 0.004");
    must_succeed(finished);
    const RunFlags before = config_in(step_folder(runs.path("a"), 6)),
                   after = config_in(step_folder(runs.path("a"), 9));
    CHECK(after.beta2 == 0.9);
    CHECK(after.batch_size == 2);
    CHECK(after.model.channels == 32);
    CHECK(after.seed == before.seed);
    CHECK(after.steps == 9);
    CHECK(after.learning_rate == 0.004);
    const std::vector<StepRecord> steps = steps_in(runs.path("a"));
    REQUIRE(steps.size() == 9);
    CHECK(steps[5].lr == learning_rate(before.chosen_recipe().schedule(*before.steps), 5));
    CHECK(steps[8].lr == learning_rate(after.chosen_recipe().schedule(*after.steps), 8));
}

TEST_CASE("--keep keeps the newest checkpoints", "[resume]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", {{"checkpoint-every", "2"}, {"steps", "9"}, {"keep", "3"}}));
    CHECK(checkpoint_steps(runs.path("a")) == std::vector<int64_t>{6, 8, 9});
    must_succeed(runs.resume("a", {{"steps", "12"}, {"keep", "1"}}));
    CHECK(checkpoint_steps(runs.path("a")) == std::vector<int64_t>{12});
}

TEST_CASE("what a run left that was killed in its last save is gone after the next one, which saves nothing",
          "[resume]") {
    const TinyRuns runs;
    const FlagMap flags = {{"steps", "6"}, {"checkpoint-every", "2"}, {"resume", "auto"}};
    must_succeed(runs.train("run", with(flags, {{"keep", "3"}})));
    const std::string out = runs.path("run");
    REQUIRE(checkpoint_steps(out) == std::vector<int64_t>{2, 4, 6});
    fs::rename(step_folder(out, 2), step_folder(out, 2) + ".tmp");  // half of it may be deleted
    REQUIRE(is_saving(out));
    must_succeed(runs.train("run", with(flags, {{"keep", "1"}})));
    CHECK(!is_saving(out));
    CHECK(checkpoint_steps(out) == std::vector<int64_t>{6});
}

TEST_CASE("a damaged checkpoint is passed over, and the run still ends the same", "[resume]") {
    const TinyRuns runs;
    const FlagMap flags = {{"checkpoint-every", "4"}, {"steps", "12"}, {"keep", "9"}};
    must_succeed(runs.train("straight", flags));
    fs::copy(runs.path("straight"), runs.path("a"), fs::copy_options::recursive);
    const std::string out = runs.path("a");
    flip_bit(step_folder(out, 12) + "/model.safetensors",
             fs::file_size(step_folder(out, 12) + "/model.safetensors") - 9);
    fs::resize_file(step_folder(out, 8) + "/state.json", 20);
    const Finished finished = runs.resume("a");
    must_succeed(finished);
    const std::string bytes = std::to_string(fs::file_size(step_folder(runs.path("straight"), 8) + "/state.json"));
    CHECK(finished.err == "warning: passed over " + step_folder(out, 12) +
                              ": model.safetensors: tensor transformer.ln_f.bias is damaged (its checksum differs)\n" +
                              "warning: passed over " + step_folder(out, 8) + ": state.json has 20 bytes, expected " +
                              bytes + " (cut short)\n");
    const std::vector<std::string> resumed = records_in(out, "resume");
    REQUIRE(resumed.size() == 1);
    CHECK(contains(resumed[0], step_folder(out, 8) + ": state.json has 20 bytes"));
    for (const int64_t step : {8, 12})  // the damaged ones are replaced
        CHECK(difference(step_folder(out, step), step_folder(runs.path("straight"), step)) == "");
}

TEST_CASE("a folder is of one run, and of its past alone", "[resume]") {
    const TinyRuns runs;
    const FlagMap flags = {{"checkpoint-every", "2"}, {"steps", "4"}, {"warmup-steps", "2"}};
    must_succeed(runs.train("a", flags));
    must_succeed(runs.train("b", flags));
    const auto refused = [&](const FlagMap& wish, const std::string& why) {
        const Finished finished = run(command_of(wish));
        INFO(finished.err);
        CHECK(finished.exit_code == 2);
        CHECK(contains(finished.err, why));
    };
    refused(runs.flags("a", flags), runs.path("a") + " holds the checkpoints of a run: continue it with --resume auto");
    refused({{"resume", step_folder(runs.path("a"), 2)}}, "holds newer checkpoints than step 2, up to step 4");
    refused({{"resume", runs.path("a")}, {"out-dir", runs.path("b")}}, "of another run than " + runs.path("a"));
    CHECK(difference(step_folder(runs.path("a"), 4), step_folder(runs.path("b"), 4)) == "");
}

TEST_CASE("a position in other data means nothing: they are read from their start", "[resume]") {
    const TinyRuns runs;
    must_succeed(runs.train("a", {{"steps", "6"}}));
    const Finished finished = runs.resume("a", {{"steps", "8"}, {"seed", "8"}});
    must_succeed(finished);
    CHECK(contains(finished.err, "warning: changed since " + step_folder(runs.path("a"), 6) + ": --seed; reading"));
    CHECK(state_in(step_folder(runs.path("a"), 8)).data.position == 2 * 6);  // two steps of six windows
    const Finished two = runs.resume("a", {{"steps", "9"}, {"seed", "9"}, {"shuffle", "false"}});
    must_succeed(two);
    CHECK(contains(two.err, ": --shuffle, --seed; reading the data from their start\n"));
    fs::copy(runs.path("data/train_000000.bin"), runs.path("data/train_000001.bin"));
    const Finished more = runs.resume("a", {{"steps", "10"}});
    must_succeed(more);
    CHECK(
        contains(more.err, ": the shards or weights of --train-data, or the token that documents begin with; reading"));
}

TEST_CASE("data that a moved run does not find are looked for where its relative path leads, and that is said",
          "[resume]") {
    const TinyRuns runs;
    const std::string here = fs::absolute(program("train_gpt"));
    const FlagMap relative = {{"train-data", "data/train_*.bin"}, {"val-data", "data/val_*.bin"}, {"out-dir", "a"}};
    FlagMap flags = runs.flags("a", with(relative, {{"steps", "6"}}));
    const auto run_in = [&](const std::string& folder, const std::string& arguments) {
        return run("cd '" + folder + "' && " + here + arguments);
    };
    must_succeed(run_in(runs.scratch.path, command_of(flags).substr(program("train_gpt").size())));
    fs::create_directory(runs.path("elsewhere"));
    for (const std::string command : {" train --steps 8", " eval"}) {
        INFO(command);
        const Finished moved = run_in(runs.path("elsewhere"), command + " --resume ../a");
        CHECK(moved.exit_code == 2);
        CHECK(contains(moved.err, "no file matches 'data/"));
        CHECK(contains(moved.err, "/elsewhere: this relative path is from the checkpoint; resume in the folder where"));
    }
    must_succeed(run_in(runs.path("elsewhere"),
                        " train --steps 8 --resume ../a --train-data '../data/train_*.bin' "
                        "--val-data '../data/val_*.bin'"));
}

// --save-best and --patience: which checkpoint is kept and when a run ends, also if it was killed or resumed.
#include <cmath>
#include "test/test_clock.h"  // now_s
#include "test/train/rank_runs.h"

namespace fs = std::filesystem;

namespace {

// A learning rate at which the validation loss falls and rises; the same bits at 1, 2 and 4 ranks.
const FlagMap kRestless = {
    {"steps", "200"},     {"learning-rate", "5e-2"}, {"lr-schedule", "constant"}, {"warmup-steps", "0"},
    {"val-every", "10"},  {"val-tokens", "0"},       {"total-batch-size", "128"}, {"grad-sum", "tree"},
    {"save-best", "true"}};

struct Validation {
    int64_t step;
    double loss;
};

std::vector<Validation> validations_of(const std::string& out_dir) {
    std::vector<Validation> all;
    for (const auto& [step, line] : records_by_step(out_dir, "val")) {
        double loss = NAN;
        from_json({{"", "loss", &loss, ""}}, line, out_dir);
        all.push_back({step, loss});
    }
    return all;
}

Validation best_of(const std::vector<Validation>& all) {
    Validation best = {-1, INFINITY};
    for (const Validation& one : all)
        if (one.loss < best.loss) best = one;
    return best;
}

std::string reason_in(const std::string& out_dir) {
    std::string reason;
    from_json({{"", "reason", &reason, ""}}, records_in(out_dir, "end").back(), out_dir);
    return reason;
}

// The loss that the checkpoint of OUT/best has when it is validated by itself, as it is printed.
std::string loss_of_best(const TinyRuns& runs, const std::string& name) {
    const Finished seen = run(program("train_gpt") + " eval --resume " + runs.path(name) + "/best --val-data '" +
                              runs.path("data/val_*.bin") + "' --val-tokens 0 --summary");
    must_succeed(seen);
    const size_t at = seen.out.find("val_loss:");
    REQUIRE(at != std::string::npos);
    return seen.out.substr(at + 20, 8);
}

}  // namespace

TEST_CASE("the checkpoint of the lowest validation loss is kept, and is what its link leads to", "[best]") {
    const TinyRuns runs;
    for (const std::string ranks : {"0", "4"}) {
        const std::string name = "ranks" + ranks, out = runs.path(name);
        const Finished done = runs.train(name, with(kRestless, {{"virtual-ranks", ranks}, {"summary", "true"}}));
        must_succeed(done);
        const std::vector<Validation> all = validations_of(out);
        const Validation best = best_of(all);
        REQUIRE(best.step < all.back().step);  // or this shows nothing
        REQUIRE(best.step > all.front().step);
        CHECK(best_step(out) == best.step);
        CHECK(checkpoint_steps(out).front() == best.step);
        CHECK(checkpoint_steps(out).size() <= 3);  // --keep 2, and this one
        CHECK(verify(step_folder(out, best.step)).why == "");
        CHECK(state_in(step_folder(out, best.step)).best.step == best.step);
        CHECK(loss_of_best(runs, name) == format("%.6f", best.loss));
        CHECK(contains(done.out, format("best validation loss: %.4f at step %ld, in %s/best\n", best.loss, best.step,
                                        out.c_str())));
        CHECK(contains(done.out, format("best_val_loss:      %.6f\nbest_step:          %ld\n", best.loss, best.step)));
    }
}

TEST_CASE("the last validation's mark stays where checkpoints are copied to a bucket", "[best]") {
    const TinyRuns runs;
    // The last step is saved before it is validated.
    must_succeed(
        runs.train("a", with(kRestless, {{"steps", "35"}, {"learning-rate", "1e-3"}, {"after-checkpoint", "true"}})));
    REQUIRE(best_of(validations_of(runs.path("a"))).step == 35);
    REQUIRE(checkpoint_steps(runs.path("a")).size() > 1);
    CHECK(best_step(runs.path("a")) == 35);
}

TEST_CASE("patience ends a run after so many validations without a lower loss", "[best]") {
    const TinyRuns runs;
    must_succeed(runs.train("all", kRestless));
    const std::vector<Validation> all = validations_of(runs.path("all"));
    // When it should end: at the first validation that is the third one in a row above the lowest before.
    int64_t end = -1, worse = 0;
    double lowest = INFINITY;
    for (const Validation& one : all) {
        worse = one.loss < lowest ? 0 : worse + 1;
        lowest = std::min(lowest, one.loss);
        if (worse == 3) {
            end = one.step;
            break;
        }
    }
    REQUIRE(end > 0);
    REQUIRE(end < 200);
    for (const std::string ranks : {"0", "2"}) {
        const std::string name = "patient" + ranks, out = runs.path(name);
        const Finished done =
            runs.train(name, with(kRestless, {{"patience", "3"}, {"virtual-ranks", ranks}, {"keep", "1"}}));
        must_succeed(done);
        CHECK(reason_in(out) == "patience");
        const int64_t last = steps_in(out).back().step;
        CHECK(last == end);
        CHECK(last == validations_of(out).back().step);
        CHECK(best_step(out) == best_of(validations_of(out)).step);
        CHECK(last == best_step(out) + 30);
        CHECK(done.out.ends_with(
            format("stopped early, at step %ld: no lower loss in the last 3 validations (--patience 3)\n", last)));
        CHECK(checkpoint_steps(out) == std::vector<int64_t>{best_step(out), last});

        // A resumed run ends at once, and continues with more patience.
        const Finished again = runs.resume(name);
        must_succeed(again);
        CHECK(steps_in(out).back().step == last);
        CHECK(reason_in(out) == "patience");
        must_succeed(runs.resume(name, {{"patience", "4"}}));
        CHECK(steps_in(out).back().step >= last + 10);
    }
    // What is kept has learned as much as a run that is no longer.
    const std::string best = std::to_string(best_step(runs.path("patient0")));
    must_succeed(runs.train("short", with(kRestless, {{"steps", best}})));
    CHECK(tensor_difference(step_folder(runs.path("patient0"), std::stol(best)),
                            step_folder(runs.path("short"), std::stol(best))) == "");
}

TEST_CASE("a run that is killed again and again keeps its best checkpoint, and ends as patience would have it",
          "[best]") {
    const TinyRuns runs;
    const FlagMap flags =
        with(kRestless, {{"patience", "5"}, {"checkpoint-every", "20"}, {"val-every", "5"}, {"steps", "1000"}});
    const double begin_s = now_s();
    must_succeed(runs.train("straight", flags));
    double longest_s = (now_s() - begin_s) / 2;  // before a kill
    const std::string want = runs.path("straight"), out = runs.path("killed");
    REQUIRE(reason_in(want) == "patience");
    const int64_t end = steps_in(want).back().step;
    const std::string command = command_of(runs.flags("killed", with(flags, {{"resume", "auto"}})));
    const auto check_end = [&] {
        CHECK(reason_in(out) == "patience");
        CHECK(steps_in(out).back().step == end);
        CHECK(best_step(out) == best_step(want));
        CHECK(difference(step_folder(out, end), step_folder(want, end)) == "");
        CHECK(difference(step_folder(out, best_step(out)), step_folder(want, best_step(want))) == "");
    };
    Rng rng(2, Stream::tests);
    int64_t newest = -1;
    // A run that comes to its end before its kill is compared and begun again.
    for (int kills = 0; kills < 12;) {
        const double moment_s = rng.uniform() * longest_s;
        const Started started(command, out);
        usleep(useconds_t(moment_s * 1e6));
        const Finished one = started.finish(SIGKILL);
        INFO(one.err);
        if (one.exit_code == 0) {
            check_end();
            fs::remove_all(out);
            newest = -1;
            longest_s *= 0.8;
            continue;
        }
        REQUIRE(one.exit_code == 128 + SIGKILL);
        kills++;
        longest_s *= 1.05;  // so that it gets on
        const int64_t best = best_step(out);
        REQUIRE(best >= newest);  // what was best is never taken back for something older
        if (best >= 0) REQUIRE(verify(step_folder(out, best)).why == "");
        newest = best;
    }
    must_succeed(run(command));
    check_end();
}

TEST_CASE("what the last validation of a run found is known after a resume", "[best]") {
    const TinyRuns runs;
    // The end is no multiple of --val-every, and the best so far: its checkpoint is older than its loss.
    const FlagMap flags = with(kRestless, {{"steps", "15"}, {"learning-rate", "1e-3"}});
    must_succeed(runs.train("a", flags));
    const std::string out = runs.path("a");
    REQUIRE(best_step(out) == 15);
    CHECK(state_in(step_folder(out, 15)).best.step == 10);
    // From here on the loss grows, so nothing is better than step 15.
    const Finished on = runs.resume("a", {{"steps", "40"}, {"learning-rate", "2"}, {"grad-clip", "0"}});
    must_succeed(on);
    REQUIRE(best_of(validations_of(out)).step == 15);
    CHECK(best_step(out) == 15);
    CHECK(state_in(step_folder(out, 40)).best.step == 15);

    // Other validation data are another measure.
    must_succeed(runs.train("b", flags));
    const Finished other = runs.resume("b", {{"steps", "20"}, {"val-tokens", "32"}});
    must_succeed(other);
    CHECK(contains(other.err, "its best loss, "));
    CHECK(contains(other.err, "is no measure\n"));
}

TEST_CASE("what --save-best and --patience cannot do is said in one line", "[best]") {
    const TinyRuns runs;
    const auto refused = [&](const FlagMap& flags, const std::string& part) {
        const Finished done = runs.train("x", flags);
        INFO(done.err);
        CHECK(done.exit_code == kExitUsage);
        CHECK(contains(done.err, part));
        CHECK(std::count(done.err.begin(), done.err.end(), '\n') == 1);
    };
    refused({{"patience", "3"}, {"val-every", "0"}},
            "--patience 3 counts validations during the run, and --val-every is 0");
    refused({{"patience", "3"}, {"val-data", ""}}, "--patience needs a validation loss: give --val-data");
    refused({{"save-best", "true"}, {"val-data", ""}}, "--save-best needs a validation loss: give --val-data");
    refused({{"patience", "-1"}}, "--patience -1: expected an integer of at least 0");
    fs::create_directories(runs.path("x/best"));
    refused({{"save-best", "true"}}, "/best is in the way: --save-best makes a link of that name");
}

/*
The golden run: twenty steps of a tiny model must yield exactly the numbers of test/golden/train_fp32.txt, a line "step
loss norm" per step and then the validation loss, each double with 17 digits. This detects any change of the arithmetic,
of the data order or of the initialization. A second run, of three steps in FP8, is in train_fp8.txt, with its scales.
An intended change renews the files, in a commit of its own that says why:

  ANVIL_GOLDEN=renew make test OP=golden
*/
#include <cstdlib>
#include "test/program.h"

namespace {

constexpr const char *kGolden = "test/golden/train_fp32.txt", *kGoldenFp8 = "test/golden/train_fp8.txt";

bool renews() {
    const char* wish = std::getenv("ANVIL_GOLDEN");
    return wish && std::string(wish) == "renew";
}

std::string numbers_of(const std::string& out_dir) {
    std::string text;
    for (const StepRecord& r : steps_in(out_dir)) text += format("%ld %.17g %.17g\n", r.step, r.loss, r.norm);
    for (const auto& [step, line] : records_by_step(out_dir, "val")) {
        double loss = 0;
        from_json({{"", "loss", &loss, ""}}, line, out_dir);
        text += format("val %ld %.17g\n", step, loss);
    }
    return text;
}

}  // namespace

TEST_CASE("the golden run, at 1, 2 and 3 threads and again", "[golden]") {
    const TinyRuns runs;
    for (const std::string name : {"1", "2", "3", "again"}) {
        must_succeed(runs.train(name, {{"threads", name == "again" ? "1" : name}}));
    }
    if (renews()) put_file(kGolden, numbers_of(runs.path("1")));

    const std::string golden = read_file(kGolden);
    for (const std::string name : {"1", "2", "3", "again"}) {
        INFO("run " << name);
        CHECK(numbers_of(runs.path(name)) == golden);
        CHECK(difference(step_folder(runs.path(name), 20), step_folder(runs.path("1"), 20)) == "");
    }

    // The run is worth the name: accumulation, a second epoch, and steps with and without clipping.
    const std::vector<StepRecord> steps = steps_in(runs.path("1"));
    REQUIRE(steps.size() == 20);
    const auto clipped = std::count_if(steps.begin(), steps.end(), [](const StepRecord& r) { return r.norm > 1.5; });
    CHECK((clipped >= 3 && clipped <= 17));
    CHECK(state_in(step_folder(runs.path("1"), 20)).data.epoch == 1);
    CHECK(steps.back().loss < steps.front().loss - 0.2);
}

// A scale of another tensor, or of another micro-batch, would show in these numbers.
TEST_CASE("the golden run in FP8, whatever is recomputed", "[golden]") {
    const TinyRuns runs;
    const FlagMap fp8 = {
        {"dtype", "fp8"}, {"channels", "128"}, {"num-layers", "3"}, {"steps", "3"}, {"warmup-steps", "0"}};
    for (const std::string recompute : {"none", "norms", "block"}) {
        FlagMap flags = fp8;
        flags["recompute"] = recompute;
        must_succeed(runs.train(recompute, flags));
        if (renews()) put_file(kGoldenFp8, numbers_of(runs.path("none")));
        INFO("--recompute " << recompute);
        CHECK(numbers_of(runs.path(recompute)) == read_file(kGoldenFp8));
    }
}

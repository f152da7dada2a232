// The committed predictions equal the output of `plan`: dev/results/predict.py.
#include "test/program.h"  // program
#include "test/testing.h"

static std::string folder_of_programs() {
    const std::string path = program("train_gpt");
    return path.substr(0, path.rfind('/') + 1);
}

// A row is further off than its limit, which needs a reason; a reason of one that is not; a bound, which needs none.
TEST_CASE("a published measurement far from its prediction needs a reason", "[predict]") {
    const auto problems = [](const char* gpu, int published, const char* more) {
        return run(format("python3 -c 'import sys; sys.path.insert(0, \"dev/results\"); import published; row = dict("
                          "gpu=\"%s\", gpus=8, model=\"d24\", flags=\"-\", tokens_per_s=%d, **dict(%s)); "
                          "print(list(published.problems([(row, [1, 100, 200])])))'",
                          gpu, published, more))
            .out;
    };
    CHECK(problems("H100", 90, "") == "[]\n");
    CHECK(problems("H200", 89, "") == "['8 x H200, d24, -: +12.4 %, where 12 % are allowed']\n");
    CHECK(problems("4090", 89, "") == "[]\n");
    CHECK(contains(problems("4090", 120, ""), "-16.7 %, where 15 % are allowed"));
    CHECK(problems("4090", 120, "outside=\"why\"") == "[]\n");
    CHECK(contains(problems("4090", 100, "outside=\"why\""), "is within its limit: remove 'outside'"));
    CHECK(problems("A100", 10, "bound=\"why\"") == "[]\n");
}

// Not under the sanitizers, which would run the same plans ten times as slowly.
TEST_CASE("the committed predictions are those of plan, and a change shows", "[predict][plan][plain][slow]") {
    const std::string command = "ANVIL_PROGRAMS=" + folder_of_programs() + " dev/results/predict.py --check";
    const Finished same = run(command);
    INFO(same.out << same.err);
    CHECK(same.exit_code == 0);
    CHECK(same.out.empty());
    const Finished other = run("ANVIL_HEAD_ROWS=4096 " + command);
    INFO(other.out << other.err);
    CHECK(other.exit_code == 1);
    CHECK(contains(other.out, "gpt2-124M on H100: "));
    CHECK(contains(other.out, " launches a micro-batch, "));
    CHECK(contains(other.out, "doc/results/published.json: 4090, Qwen2.5-1.5B: error: --trace: the run DOES NOT FIT"));
    CHECK(contains(other.out, "doc/results/steps-predicted.json: not what `plan` says now\n"));
    CHECK(contains(other.out, "doc/predicted.md: not what `plan` says now\n"));
    CHECK(contains(other.out, "dev/results/predict.py --renew writes them"));
    const Finished nowhere = run("ANVIL_PROGRAMS=/nowhere dev/results/predict.py --check");
    CHECK(nowhere.exit_code == 1);
    CHECK(contains(nowhere.err, "train_gpt is missing: run make first"));
}

// The committed predictions equal the output of `plan`: dev/results/predict.py.
#include "test/program.h"  // program
#include "test/testing.h"

static std::string folder_of_programs() {
    const std::string path = program("train_gpt");
    return path.substr(0, path.rfind('/') + 1);
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
    CHECK(contains(other.out, "gpt2-124M on H200: "));
    CHECK(contains(other.out, " launches a micro-batch, "));
    CHECK(contains(other.out, "doc/results/steps-predicted.json: not what `plan` says now\n"));
    CHECK(contains(other.out, "doc/predicted.md: not what `plan` says now\n"));
    CHECK(contains(other.out, "dev/results/predict.py --renew writes them"));
    const Finished nowhere = run("ANVIL_PROGRAMS=/nowhere dev/results/predict.py --check");
    CHECK(nowhere.exit_code == 1);
    CHECK(contains(nowhere.err, "train_gpt is missing: run make first"));
}

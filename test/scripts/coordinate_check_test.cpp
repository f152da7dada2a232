// scripts/coordinate_check.py: a table of sizes, a chart of them, and whether they pass.
#include "test/program.h"

TEST_CASE("scripts/coordinate_check.py prints and draws what runs report", "[coordinate_check]") {
    const TinyRuns runs;
    const std::string chart = runs.path("check.svg");
    const auto check = [&](const std::string& options) {
        return run("python3 -B scripts/coordinate_check.py --widths 16,64 --steps 3 --out " + chart + " " + options +
                   " -- --seq-len 16 --batch-size 2 --train-data '" + runs.path("data/train_*.bin") + "' --val-data '" +
                   runs.path("data/val_*.bin") + "'");
    };
    const Finished good = check("");
    INFO(good.out << good.err);
    REQUIRE(good.exit_code == 0);
    CHECK(contains(good.out, "standard\n  step                   16        64    growth\n     1 embedding "));
    CHECK(contains(good.out, "\nmuP, mup-base-width = 16\n"));
    CHECK(contains(good.out, "\n     3 logits "));
    CHECK(contains(good.out, "expected within 2.00x: yes"));
    const std::string svg = read_file(chart);
    for (const char* part : {"</svg>", ">logits</text>", ">standard</text>", ">channels</text>", "<polyline"})
        CHECK(contains(svg, part));
    const Finished bad = run("python3 -B scripts/coordinate_check.py --widths 16 --out " + chart);
    CHECK(bad.exit_code == 2);
    CHECK(contains(bad.err, "expected at least one step and two widths"));
    const Finished failed = check("--lines 'norm = none'");
    CHECK(failed.exit_code == 1);
    CHECK(contains(failed.err, "norm = none: expected one of"));
}

TEST_CASE("the best learning rate was measured to transfer in muP, and not in the standard parametrization",
          "[coordinate_check]") {
    const Finished said = run("python3 -B dev/results/mup.py --check");
    INFO(said.out << said.err);
    CHECK(said.exit_code == 0);
}

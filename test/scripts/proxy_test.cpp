// scripts/proxy.sh: that it runs to its end; and its arms A and D, shorter and on the built-in stories: GPT-2 with
// AdamW against nanochat's model with Muon. This detects a model that learns badly although each op is correct.
#include <sstream>
#include "test/comma_locale.h"
#include "test/program.h"

namespace {

// The flags of an arm, as the script has them, for half as many steps.
FlagMap flags_of(const std::string& arm) {
    const Finished printed = run("scripts/proxy.sh --flags " + arm);
    must_succeed(printed);
    FlagMap flags;
    std::istringstream words(printed.out);
    for (std::string name, value; words >> name >> value;) flags[name.substr(2)] = value;
    REQUIRE(flags.at("steps") == "300");
    REQUIRE(flags.at("warmup-steps") == "30");
    flags["steps"] = "150", flags["warmup-steps"] = "15";
    return flags;
}

struct Arms {
    TinyRuns runs{400000};  // 150 steps of 1024 characters are 40% of an epoch

    // The validation loss at the end.
    double train(const std::string& arm, const std::string& out) const {
        FlagMap flags = flags_of(arm);
        flags.insert({{"train-data", runs.path("data/train_*.bin")},
                      {"val-data", runs.path("data/val_*.bin")},
                      {"out-dir", runs.path(out)},
                      {"val-every", "0"},
                      {"val-tokens", "0"},
                      {"checkpoint-every", "0"},
                      {"sample-tokens", "0"},
                      {"dtype", "fp32"},
                      {"seed", "1"}});
        must_succeed(run(command_of(flags)));
        double loss = 0;
        from_json({{"", "loss", &loss, ""}}, records_in(runs.path(out), "val").back(), out);
        return loss;
    }
};

}  // namespace

// [plain]: under the sanitizers test/train/zero_test.cpp trains such models, for a few steps.
TEST_CASE("a modern model with Muon learns stories faster than GPT-2 with AdamW", "[proxy][plain][slow]") {
    const Arms arms;
    const double a = arms.train("A", "A"), d = arms.train("D", "D");
    INFO("A " << a << ", D " << d << " nats a character");
    // Seeds 1, 2, 3: A 1.707, 1.751, 1.832, D 0.381, 0.365, 0.364. The bounds leave each twice the width of its own,
    // and their distance the sum of both.
    CHECK(a < 2.1);
    CHECK(d < 0.42);
    CHECK(a - d > 1.1);
    CHECK(arms.train("D", "D again") == d);
    CHECK(difference(step_folder(arms.runs.path("D"), 150), step_folder(arms.runs.path("D again"), 150)) == "");
}

TEST_CASE("scripts/proxy.sh runs every arm to its end", "[proxy]") {
    const ScratchFolder scratch;
    for (const char* folder : {"data", "scripts"}) std::filesystem::create_directory(scratch / folder);
    for (const char* name : {"train_gpt", "data/tokenize"})
        std::filesystem::create_symlink(std::filesystem::absolute(program(name)), scratch / name);
    for (const char* name : {"scripts/proxy.sh", "configs"})
        std::filesystem::create_symlink(std::filesystem::absolute(name), scratch / name);
    std::string text;
    for (int i = 0; i < 3000; i++) text += "It was line " + std::to_string(i * 7919 % 3000) + " of a stormy night.\n\n";
    put_file(scratch / "text.txt", text);
    const Finished ended =
        run(comma_locale() + scratch / "scripts/proxy.sh" + " --seeds 1 --steps 2 --text " + scratch / "text.txt");
    INFO(ended.out << ended.err);
    CHECK(ended.exit_code == 1);  // nothing is learned in two steps, and all else is as it should be
    CHECK(ended.err == "");
    for (const char* arm :
         {"A   gpt2       AdamW", "B   gpt2       Muon", "C   nanochat   AdamW", "D   nanochat   Muon"})
        CHECK(contains(ended.out, std::string("\n") + arm));
    CHECK(contains(ended.out, "\nA   gpt2       AdamW  4.7"));
    CHECK_FALSE(contains(ended.out, "-nan"));
    CHECK(contains(ended.out, "two runs of D are the same, bit for bit: yes\n"));
}

// The number of plans that cuDNN and cuBLASLt make in a run with all features: only as many as its steps need, for
// samples of any length and for growing windows. With the emulator's cuDNN, which counts like the real one.
#include "llmc/cuda/cuda_kernels.h"
#include "test/cuda_testing.h"  // ON_DEVICE
#include "test/program.h"       // TinyRuns

#ifdef ANVIL_EMULATED
namespace {

// Two windows, in batches of 2 x 160 tokens: what grows goes through 128 and, in the layer that sees all, through none.
const FlagMap kFlags = {{"device", "cuda"},      {"dtype", "bf16"},           {"num-heads", "1"},
                        {"channels", "64"},      {"seq-len", "160"},          {"window-pattern", "SL"},
                        {"short-window", "140"}, {"total-batch-size", "320"}, {"steps", "6"},
                        {"warmup-steps", "0"},   {"val-every", "2"},          {"val-tokens", "640"},
                        {"sample-every", "3"},   {"prompt", "Once"},          {"sample-tokens", "20"}};

FlagMap with(FlagMap flags, const FlagMap& more) {
    for (const auto& [name, value] : more) flags[name] = value;
    return flags;
}

struct Plans {
    int64_t attention = -1, gemm = -1, timed = -1;
    bool operator==(const Plans&) const = default;
};

Finished with_cudnn(const std::string& command) { return run("ANVIL_EMULATOR_CUDNN=1 " + command); }

Plans plans_of(const TinyRuns& runs, const std::string& out, const FlagMap& more) {
    const FlagMap both_passes = with(kFlags, {{"attention", "cudnn"}});
    must_succeed(with_cudnn(command_of(runs.flags(out, with(both_passes, more)))));
    const std::string end = records_in(runs.path(out), "end").at(0);
    const auto number = [&](const std::string& name) {
        const size_t at = end.find("\"" + name + "\":");
        REQUIRE(at != std::string::npos);
        return int64_t(std::stoll(end.substr(at + name.size() + 3)));
    };
    return {number("attention"), number("gemm"), number("timed")};
}

}  // namespace

TEST_CASE("a run makes no plan but those of its steps", "[plans][once][plain][slow]" ON_DEVICE) {
    const TinyRuns runs(20000);
    const Plans plain = plans_of(runs, "plain", {{"sample-tokens", "0"}, {"val-data", ""}});
    CHECK(plain.attention == 4);  // two windows, forward and backward
    CHECK(plain.timed == 0);
    // Products of a step and the head: four layers' kinds and the head three times each.
    CHECK(plain.gemm >= 15);
    CHECK(plain.gemm <= 30);
    // Validation has a step's shapes.
    CHECK(plans_of(runs, "val", {{"sample-tokens", "0"}}) == plain);
    // A sample has a prompt of one length, and then one token after the other.
    const Plans sampled = plans_of(runs, "sampled", {});
    CHECK(sampled.attention == plain.attention);
    CHECK(sampled.gemm <= plain.gemm + 10);
    CHECK(records_in(runs.path("sampled"), "sample").size() == 2);
    // Windows that grow are our own kernels', whatever their size.
    const Plans grown = plans_of(runs, "grown", {{"window-warmup-steps", "5"}});
    CHECK(grown == sampled);

    const std::string start = records_in(runs.path("plain"), "start").at(0);
    CHECK(contains(start,
                   "\"kernels\":{\"attention\":\"emulated cuDNN 9.19.0 for batches of 2 x 160, the same bits each "
                   "time; own kernels elsewhere\",\"gemm\":\"emulated, first of its ranking (--tune-matmul times "
                   "them)\",\"head_rows\":320}"));
}

TEST_CASE("products are timed in steps alone, and the file has them after the first", "[plans][once]" ON_DEVICE) {
    const TinyRuns runs(20000);
    const std::string file = runs.path("matmul.txt");
    const FlagMap tuned = {{"tune-matmul", file}};
    const Plans plain = plans_of(runs, "plain", {{"sample-tokens", "0"}, {"val-data", ""}});
    const Plans first = plans_of(runs, "first", tuned);
    CHECK(first.timed == plain.gemm);  // no prompt, no sample
    const std::string lines = read_file(file);
    CHECK(std::count(lines.begin(), lines.end(), '\n') == first.timed + 1);
    const Plans second = plans_of(runs, "second", tuned);
    CHECK(second.timed == 0);
    CHECK(second.gemm == first.gemm);
    CHECK(read_file(file) == lines);
    CHECK(contains(records_in(runs.path("second"), "start").at(0), format("%ld timed algorithms known", first.timed)));
}

TEST_CASE("a run that learns nothing makes no plan for backward", "[plans][once][plain]" ON_DEVICE) {
    const TinyRuns runs(20000);
    plans_of(runs, "trained", {{"sample-tokens", "0"}});
    const Finished seen =
        with_cudnn(command_of({{"resume", runs.path("trained")}, {"out-dir", runs.path("trained")}}, "eval"));
    must_succeed(seen);
    CHECK(
        contains(seen.out, "attention: emulated cuDNN 9.19.0 for batches of 2 x 160, forward; own kernels elsewhere"));
}

TEST_CASE("whose attention runs is said at the start, and why", "[plans][once]" ON_DEVICE) {
    const TinyRuns runs(20000);
    const FlagMap flags = with(kFlags, {{"steps", "1"}, {"sample-tokens", "0"}, {"val-data", ""}});
    int number = 0;
    const auto says = [&](const std::string& environment, const FlagMap& more) {
        const Finished done =
            run(environment + command_of(runs.flags("run" + std::to_string(number++), with(flags, more))));
        const size_t at = done.out.find("\nattention: ");
        return done.exit_code != 0 ? done.err : done.out.substr(at + 1, done.out.find('\n', at + 1) - at - 1);
    };
    const std::string cudnn = "ANVIL_EMULATOR_CUDNN=1 ";
    CHECK(contains(says("", {}), "attention: own kernels (cuDNN: this build of Anvil has no cuDNN"));
    CHECK(contains(says("", {{"attention", "cudnn"}}), "--attention cudnn: this build of Anvil has no cuDNN"));
    CHECK(contains(says(cudnn, {{"attention", "own"}}), "attention: own kernels (--attention own); GEMM: "));
    CHECK(contains(says(cudnn, {{"document-token", "0"}}), "own kernels (cuDNN: the graph has no mask for several"));
    CHECK(contains(says(cudnn, {{"dtype", "fp32"}}), "own kernels (cuDNN's are for bf16)"));
    CHECK(contains(says(cudnn, {{"deterministic", "false"}, {"attention", "cudnn"}}),
                   "2 x 160, backward at its fastest; own kernels elsewhere"));
    CHECK(contains(says(cudnn, {}), "2 x 160, forward, and our own backward; own kernels elsewhere"));
    CHECK(contains(says(cudnn, {}), "head: 320 of 320 rows of logits at a time"));
}
#endif

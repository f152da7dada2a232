// The gradient noise scale: of gradients with known noise, and of a run on one rank.
#include "llmc/run/noise_scale.h"
#include "llmc/base/rng.h"         // Rng
#include "test/program.h"          // TinyRuns, steps_in
#include "test/train/rank_runs.h"  // with

TEST_CASE("exact norms give the exact noise scale", "[noise_scale]") {
    // E|g_B|^2 = |G|^2 + S / B.
    const double signal = 0.25, noise = 3000;
    const auto norm = [&](double tokens) { return signal + noise / tokens; };
    NoiseScale scale;
    CHECK(std::isnan(scale.tokens()));
    for (int i = 0; i < 3; i++) {
        scale.add(1000, norm(1000), 8000, norm(8000));
        CHECK(std::fabs(scale.tokens() - noise / signal) <= 1e-12 * noise / signal);
    }
    scale.add(1000, std::nan(""), 8000, norm(8000));  // a step that was not finite
    CHECK(std::fabs(scale.tokens() - noise / signal) <= 1e-12 * noise / signal);
}

TEST_CASE("gradients drawn with known noise are found out", "[noise_scale]") {
    // 64 numbers of mean 0.1 and, a token, standard deviation 2: |G|^2 = 0.64, S = 256, so 400 tokens.
    constexpr int kNumbers = 64, kRanks = 4;
    constexpr double kTokens = 100;
    Rng rng(5, Stream::tests);
    NoiseScale scale(0.999);
    for (int step = 0; step < 4000; step++) {
        double small = 0, big = 0, sums[kNumbers] = {};
        for (int rank = 0; rank < kRanks; rank++)
            for (double& sum : sums) {
                const double g = 0.1 + 2 / std::sqrt(kTokens) * rng.normal();
                small += g * g / kRanks;
                sum += g / kRanks;
            }
        for (const double g : sums) big += g * g;
        scale.add(kTokens, small, kRanks * kTokens, big);
    }
    // Some 1000 steps count. The estimate of S has a relative standard deviation of about sqrt(2 / (64 * 3)) = 0.1 a
    // step, that of |G|^2 of about 0.9: 0.03 together.
    CHECK(std::fabs(scale.tokens() - 400) <= 4 * 0.03 * 400);
}

TEST_CASE("a gradient that is all noise has no finite scale", "[noise_scale]") {
    NoiseScale scale;
    scale.add(100, 1, 400, 0.25);  // S = 100, |G|^2 = 0
    CHECK(std::isnan(scale.tokens()));
}

TEST_CASE("of one rank the first micro-batch is compared with the step", "[noise_scale][plain]") {
    const TinyRuns runs;
    const FlagMap whole = {
        {"steps", "1"}, {"warmup-steps", "0"}, {"batch-size", "2"}, {"seq-len", "16"}, {"total-batch-size", "256"}};
    // As a step of its own it has the same windows and weights.
    must_succeed(runs.train("part", with(whole, {{"total-batch-size", "32"}})));
    const double small = std::pow(steps_in(runs.path("part"))[0].norm, 2);
    for (const std::string order : {"fp32", "tree"}) {
        const std::string out = runs.path(order);
        must_succeed(runs.train(order, with(whole, {{"grad-sum", order}, {"noise-scale", "true"}})));
        const double big = std::pow(steps_in(out)[0].norm, 2);
        NoiseScale wanted;
        wanted.add(32, small, 256, big);
        double tokens = 0;
        from_json({{"", "noise_scale", &tokens, ""}}, records_in(out, "step")[0], "log.jsonl");
        INFO(order << ": " << tokens << ", and by two runs' norms " << wanted.tokens());
        // Norms are logged with nine digits: squares are off by 1e-8, and the two differences of them by so much more.
        const double noise = small - big, signal = 256 * big - 32 * small;
        REQUIRE(noise > 0);
        REQUIRE(signal > 0);
        const double off = 1e-8 * ((small + big) / noise + (256 * big + 32 * small) / signal);
        CHECK(std::fabs(tokens / wanted.tokens() - 1) <= 2 * off);
    }
    const Finished refused = runs.train("refused", {{"noise-scale", "true"}, {"batch-size", "6"}});
    CHECK(refused.exit_code == 2);
    CHECK(contains(refused.err,
                   "--noise-scale compares the parts of a step, and this step is one micro-batch of one rank"));
}

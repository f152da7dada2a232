// Softmax cross-entropy against PyTorch: small and huge logits, the last column, GPT-2's vocabulary in its padding.
#include "llmc/cpu/cross_entropy.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, bell, check_relative
#include "test/testing.h"

constexpr float kLoss = 0.25f;  // dloss in the fixtures

// logits (N,V) as rows of Vp. The padding holds NaN: an op that reads it shows.
static Floats padded(const Floats& logits, int64_t N, int64_t V, int64_t Vp) {
    Floats rows(size_t(N * Vp), std::nanf(""));
    for (int64_t n = 0; n < N; n++) std::copy_n(&logits[size_t(n * V)], V, &rows[size_t(n * Vp)]);
    return rows;
}

// The first V columns of rows of Vp, after checking that the others are zero.
static Floats without_padding(const Floats& rows, int64_t N, int64_t V, int64_t Vp) {
    Floats columns;
    int64_t not_zero = 0;
    for (int64_t n = 0; n < N; n++) {
        columns.insert(columns.end(), rows.begin() + n * Vp, rows.begin() + n * Vp + V);
        for (int64_t v = V; v < Vp; v++) not_zero += rows[size_t(n * Vp + v)] != 0;
    }
    CHECK(not_zero == 0);
    return columns;
}

// {losses of forward, losses of forward_backward, dlogits (N,V)}
static std::vector<Floats> run_both(const Floats& logits, const Ints& targets, int64_t N, int64_t V, int64_t Vp,
                                    float softcap = 0) {
    const Floats rows = padded(logits, N, V, Vp);
    auto got = on_any_threads([&](Cpu& cpu) {
        Guarded losses{size_t(N)}, fused_losses{size_t(N)}, dlogits(rows);
        cross_entropy_forward(cpu, losses, rows.data(), targets.data(), N, V, Vp, softcap);
        cross_entropy_forward_backward(cpu, fused_losses, dlogits, targets.data(), kLoss, N, V, Vp, softcap);
        return std::vector{losses.get(), fused_losses.get(), dlogits.get()};
    });
    got[2] = without_padding(got[2], N, V, Vp);
    return got;
}

TEST_CASE("cross_entropy agrees with PyTorch", "[cross_entropy]") {
    const Fixture f("cross_entropy");
    const auto [N, V, Vp] = GENERATE(table<int, int, int>(
        {{1, 1, 1}, {1, 1, 128}, {1, 5, 5}, {1, 5, 128}, {3, 7, 8}, {5, 65, 128}, {4, 301, 384}, {6, 33, 64}}));
    const std::string name = format("%dx%d.", N, V), want = "want." + name;
    INFO(name << " padded to " << Vp);
    const auto got = run_both(f.floats(name + "logits"), f.ints(name + "targets"), N, V, Vp);
    // exp is off by a unit or two, and its argument, a difference of two logits, by half a unit; the sum adds one.
    check_close("losses", got[0], f.floats(want + "losses"), 4 * kEpsF32);
    check_close("losses of the fused op", got[1], f.floats(want + "losses"), 4 * kEpsF32);
    check_close("dlogits", got[2], f.floats(want + "dlogits"), 8 * kEpsF32);
}

TEST_CASE("cross_entropy of capped logits agrees with PyTorch", "[cross_entropy]") {
    const Fixture f("cross_entropy");
    const auto [N, V, Vp, softcap] = GENERATE(
        table<int, int, int, float>({{1, 5, 5, 15.f}, {5, 65, 128, 15.f}, {4, 301, 384, 30.f}, {3, 33, 64, 8.f}}));
    const std::string name = format("%dx%d.softcap.", N, V), want = "want." + name;
    INFO(name << " padded to " << Vp);
    const auto got = run_both(f.floats(name + "logits"), f.ints(name + "targets"), N, V, Vp, softcap);
    // A capped logit c - 2c / (e + 1) is rounded as a number below 2c twice, which with e's error makes 2c units. A
    // loss is the difference of two such errors, and so is the exponent of a probability.
    const Floats losses = f.floats(want + "losses");
    std::vector<double> bounds;
    for (const float loss : losses) bounds.push_back(4 * kEpsF32 * (std::fabs(loss) + softcap));
    check_within("losses", got[0], losses, bounds);
    check_within("losses of the fused op", got[1], losses, bounds);
    check_close("dlogits", got[2], f.floats(want + "dlogits"), (8 + 4 * softcap) * kEpsF32);
}

TEST_CASE("cross_entropy: a cap far above all logits changes nothing, one far below makes them equal",
          "[cross_entropy]") {
    const int64_t N = 3, V = 40;
    const Floats logits = randn(size_t(N * V), 1);
    const Ints targets = {1, 2, 39};
    const auto plain = run_both(logits, targets, N, V, 48), capped = run_both(logits, targets, N, V, 48, 1e4f);
    // c - 2c / (e + 1) is as coarse as c: 2c units, as above, and tanh(y) is y up to y^3 / 3 < 1e-7 of |logits| < 5
    for (size_t i = 0; i < size_t(N); i++) CHECK(std::fabs(capped[0][i] - plain[0][i]) <= 4e4 * kEpsF32 + 2e-6);
    Floats huge = logits;
    for (float& x : huge) x = std::fabs(x) < 0.01f ? 1e30f : x * 1e30f;
    const auto flat = run_both(huge, targets, N, V, 48, 1e-3f);  // every one of them is +-c, and the slope is 0
    for (const float d : flat[2]) CHECK(d == 0);
    for (const float loss : flat[1]) CHECK(std::fabs(loss - std::log(40.f)) <= 2e-3f + 4 * kEpsF32 * 4);
}

TEST_CASE("cross_entropy over GPT-2's padded vocabulary agrees with PyTorch", "[cross_entropy]") {
    const int64_t N = 3, V = 50257, Vp = 50304;
    const Fixture f("cross_entropy");
    const Ints targets = f.ints("gpt2.targets");
    const auto got = run_both(bell(50257, N * V, 2), targets, N, V, Vp);
    check_relative("losses", got[0], f.floats("want.gpt2.losses"), 4 * kEpsF32);
    check_relative("losses of the fused op", got[1], f.floats("want.gpt2.losses"), 4 * kEpsF32);
    Floats every_53rd, at_target;
    for (int64_t n = 0; n < N; n++) {
        for (int64_t v = 0; v < V; v += 53) every_53rd.push_back(got[2][size_t(n * V + v)]);
        at_target.push_back(got[2][size_t(n * V + targets[size_t(n)])]);
    }
    // Logits lie in (-8, 8), so an exponent is at most 16 and its half unit of rounding makes 8 units of each tiny p.
    check_relative("dlogits", every_53rd, f.floats("want.gpt2.dlogits_every_53rd"), (8 + 4) * kEpsF32);
    check_relative("dlogits at the targets", at_target, f.floats("want.gpt2.dlogits_target"), 4 * kEpsF32);
}

TEST_CASE("cross_entropy of equal logits is log V, and its gradients sum to zero", "[cross_entropy]") {
    const int64_t V = 1024;
    const auto got = run_both(Floats(size_t(V), 88.f), {77}, 1, V, 1152);
    CHECK(got[0][0] == float(std::log(1024.)));
    CHECK(got[1][0] == got[0][0]);
    double sum = 0;
    for (const float d : got[2]) sum += d;
    CHECK(sum == 0);  // 1023 times 2^-12 and -(1 - 2^-10) / 4: all exact
    CHECK(got[2][76] == kLoss / 1024);
}

TEST_CASE("cross_entropy hands a NaN on", "[cross_entropy]") {
    const int64_t N = 3, V = 40;
    const int64_t at = GENERATE(0, 20, 39);
    Floats logits = randn(size_t(N * V), 1);
    logits[size_t(V + at)] = std::nanf("");
    const auto got = run_both(logits, {1, 2, 3}, N, V, 128, GENERATE(0.f, 15.f));
    for (const Floats& losses : {got[0], got[1]}) {
        CHECK(std::isnan(losses[1]));
        CHECK(count_not_finite(losses) == 1);
    }
    CHECK(all_nan(Floats(got[2].begin() + V, got[2].begin() + 2 * V)));
    CHECK(count_not_finite(got[2]) == V);
}

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

static Softcap tanh_cap(float limit) { return {Softcap::Kind::tanh, limit}; }
static Softcap isru_cap(float limit) { return {Softcap::Kind::isru, limit}; }

// {losses of forward, losses of forward_backward, dlogits (N,V)}
static std::vector<Floats> run_both(const Floats& logits, const Ints& targets, int64_t N, int64_t V, int64_t Vp,
                                    Softcap softcap = {}) {
    const Floats rows = padded(logits, N, V, Vp);
    auto got = on_any_threads([&](Cpu& cpu) {
        Guarded losses{size_t(N)}, fused_losses{size_t(N)}, dlogits(rows);
        cross_entropy_forward<float>(cpu, losses, rows.data(), targets.data(), N, V, Vp, softcap);
        cross_entropy_forward_backward<float>(cpu, fused_losses, dlogits, targets.data(), kLoss, N, V, Vp, softcap);
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

// How many units of its limit c a capped logit is off by. tanh: c - 2c / (e + 1) is rounded as a number below 2c twice,
// which with e's error makes 2. isru: 1 / c and y round twice, y^2 + 1 counts half after the root, then there are
// root, quotient and product: 5.5 half units. A loss is the difference of two such errors, and so is the exponent of a
// probability.
static double cap_error(Softcap::Kind kind) { return kind == Softcap::Kind::tanh ? 2 : 3; }

TEST_CASE("cross_entropy of capped logits agrees with PyTorch", "[cross_entropy]") {
    const Fixture f("cross_entropy");
    const auto [N, V, Vp, limit] = GENERATE(
        table<int, int, int, float>({{1, 5, 5, 15.f}, {5, 65, 128, 15.f}, {4, 301, 384, 30.f}, {3, 33, 64, 8.f}}));
    const auto kind = GENERATE(Softcap::Kind::tanh, Softcap::Kind::isru);
    const std::string cap_name = kind == Softcap::Kind::tanh ? "softcap." : "isru.";
    const std::string name = format("%dx%d.", N, V) + cap_name, want = "want." + name;
    INFO(name << " padded to " << Vp);
    const auto got = run_both(f.floats(name + "logits"), f.ints(name + "targets"), N, V, Vp, {kind, limit});
    const Floats losses = f.floats(want + "losses");
    const double cap_units = 2 * cap_error(kind) * limit;
    std::vector<double> bounds;
    for (const float loss : losses) bounds.push_back((4 * std::fabs(loss) + cap_units) * kEpsF32);
    check_within("losses", got[0], losses, bounds);
    check_within("losses of the fused op", got[1], losses, bounds);
    check_close("dlogits", got[2], f.floats(want + "dlogits"), (8 + cap_units) * kEpsF32);
}

TEST_CASE("cross_entropy of capped logits as large as floats are agrees with PyTorch", "[cross_entropy]") {
    const Fixture f("cross_entropy");
    const int64_t N = 4, V = 8;
    const auto kind = GENERATE(Softcap::Kind::tanh, Softcap::Kind::isru);
    const std::string want = kind == Softcap::Kind::tanh ? "want.far.tanh." : "want.far.isru.";
    const Floats logits = f.floats("far.logits");
    const auto got = run_both(logits, f.ints("far.targets"), N, V, 48, {kind, 15});
    const double cap_units = 2 * cap_error(kind) * 15;
    // what is uncertain of a loss is absolute, and these are up to 30: half a unit of that more
    const Floats losses = f.floats(want + "losses");
    check_within("losses", got[0], losses, std::vector<double>(4, (16 + 4 + cap_units) * kEpsF32));
    check_within("losses of the fused op", got[1], losses, std::vector<double>(4, (16 + 4 + cap_units) * kEpsF32));
    // Exponents are as large here; a slope is a product of three factors, each as exact as the cap.
    check_relative("dlogits", got[2], f.floats(want + "dlogits"), (16 + 8 + 2 * cap_units) * kEpsF32);
    Floats bent;
    for (const float x : logits) bent.push_back(capped(x, {kind, 15}));
    check_equal("the host's", bent, f.floats(want + "bent"));  // in double, rounded once, as the reference
}

TEST_CASE("cross_entropy: infinite logits are at the cap", "[cross_entropy]") {
    const int64_t V = 20;
    const auto cap = GENERATE(tanh_cap(2), isru_cap(2));
    Floats logits(size_t(V), -INFINITY), largest(size_t(V), -std::numeric_limits<float>::max());
    logits[0] = logits[17] = INFINITY, largest[0] = largest[17] = std::numeric_limits<float>::max();
    const auto infinite = run_both(logits, {17}, 1, V, 32, cap), finite = run_both(largest, {17}, 1, V, 32, cap);
    for (size_t i = 0; i < 2; i++) {
        CHECK(infinite[i][0] == finite[i][0]);
        // two logits of 2 and eighteen of -2
        CHECK(std::fabs(infinite[i][0] - std::log(2 + 18 * std::exp(-4.))) <= 4 * kEpsF32);
    }
    for (const auto& got : {infinite, finite}) CHECK(got[2] == Floats(size_t(V), 0));
    CHECK(capped(INFINITY, cap) == 2);
    CHECK(capped(-INFINITY, cap) == -2);
    CHECK(std::isnan(capped(std::nanf(""), cap)));
}

TEST_CASE("a softcap needs a limit", "[cross_entropy]") {
    const float logits[2] = {1, 2};
    const int32_t target = 0;
    float losses = 0, rows[2] = {1, 2};
    Cpu cpu(1);
    CHECK(capped(7, {}) == 7);
    const auto cap = GENERATE(tanh_cap(0), isru_cap(-1), isru_cap(std::nanf("")));
    CHECK(contains(error_of([&] { capped(1, cap); }), "internal"));
    CHECK(contains(error_of([&] { cross_entropy_forward<float>(cpu, &losses, logits, &target, 1, 2, 2, cap); }),
                   "internal"));
    CHECK(
        contains(error_of([&] { cross_entropy_forward_backward<float>(cpu, &losses, rows, &target, 1, 1, 2, 2, cap); }),
                 "internal"));
}

TEST_CASE("cross_entropy: a cap far above all logits changes nothing, one far below makes them equal",
          "[cross_entropy]") {
    const int64_t N = 3, V = 40;
    const Floats logits = randn(size_t(N * V), 1);
    const Ints targets = {1, 2, 39};
    const auto kind = GENERATE(Softcap::Kind::tanh, Softcap::Kind::isru);
    const auto plain = run_both(logits, targets, N, V, 48), bent = run_both(logits, targets, N, V, 48, {kind, 1e4f});
    // c - 2c / (e + 1) is as coarse as c: 2c units, as above, and tanh(y) is y up to y^3 / 3, y / sqrt(y^2 + 1) up to
    // y^3 / 2: < 1e-7 of |logits| < 5
    for (size_t i = 0; i < size_t(N); i++) CHECK(std::fabs(bent[0][i] - plain[0][i]) <= 4e4 * kEpsF32 + 2e-6);
    Floats huge = logits;
    for (float& x : huge) x = std::fabs(x) < 0.01f ? 1e30f : x * 1e30f;
    const auto flat = run_both(huge, targets, N, V, 48, {kind, 1e-3f});  // every one of them is +-c, and the slope is 0
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
    const auto got = run_both(logits, {1, 2, 3}, N, V, 128, GENERATE(Softcap{}, tanh_cap(15), isru_cap(15)));
    for (const Floats& losses : {got[0], got[1]}) {
        CHECK(std::isnan(losses[1]));
        CHECK(count_not_finite(losses) == 1);
    }
    CHECK(all_nan(Floats(got[2].begin() + V, got[2].begin() + 2 * V)));
    CHECK(count_not_finite(got[2]) == V);
}

TEST_CASE("cross_entropy in bf16 rounds each gradient once, and losses not at all", "[cross_entropy]") {
    const auto [N, V, Vp] =
        GENERATE(table<int64_t, int64_t, int64_t>({{1, 1, 1}, {1, 5, 128}, {7, 301, 384}, {2, 50257, 50304}}));
    const Softcap cap = GENERATE(Softcap{}, tanh_cap(5), isru_cap(5));
    INFO(N << " x " << V << " padded to " << Vp);
    check_rounds_once([N = N, V = V, Vp = Vp, cap]<class T>(Cpu& cpu) {
        const auto logits = bf16_randn<T>(N * V, 1, 4);
        Floats wide;
        for (const T x : logits) wide.push_back(to_float(x));
        Ints targets;
        for (int64_t n = 0; n < N; n++) targets.push_back(int32_t((n + 1) * 37 % V));
        Guarded<T> rows(padded(wide, N, V, Vp));
        Guarded losses{size_t(N)}, fused_losses{size_t(N)};
        cross_entropy_forward(cpu, losses, rows.data(), targets.data(), N, V, Vp, cap);
        cross_entropy_forward_backward(cpu, fused_losses, rows.data(), targets.data(), kLoss, N, V, Vp, cap);
        return std::vector{losses.get(), fused_losses.get(), stored(rows)};
    });
}

TEST_CASE("cross_entropy: a target below 0 has no loss and no gradient, and changes no other row", "[cross_entropy]") {
    const int64_t N = 5, V = 301, Vp = 384;
    const Softcap cap = GENERATE(Softcap{}, tanh_cap(15), isru_cap(15));
    Floats logits = randn(size_t(N * V), 1, 4);
    const Ints all = {7, 0, 300, 33, 5}, some = {7, -1, 300, -100, INT32_MIN};
    const auto want = run_both(logits, all, N, V, Vp, cap);
    logits[size_t(V + 9)] = std::nanf("");  // of a row that does not count
    const auto got = run_both(logits, some, N, V, Vp, cap);
    for (size_t n = 0; n < size_t(N); n++) {
        INFO("row " << n);
        const bool counts = some[n] >= 0;
        CHECK(got[0][n] == (counts ? want[0][n] : 0));
        CHECK(got[1][n] == (counts ? want[1][n] : 0));
        const auto row = ptrdiff_t(n) * V;
        const Floats got_row(got[2].begin() + row, got[2].begin() + row + V);
        CHECK(got_row == (counts ? Floats(want[2].begin() + row, want[2].begin() + row + V) : Floats(size_t(V), 0)));
    }
}

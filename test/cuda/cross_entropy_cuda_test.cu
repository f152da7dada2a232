// Softmax cross-entropy on the device: against PyTorch in f32, against the CPU in bf16.
#include "llmc/cuda/cross_entropy.cuh"
#include "llmc/cpu/cross_entropy.h"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same
#include "test/fixture.h"       // Fixture
#include "test/op_testing.h"    // bell

constexpr float kLoss = 0.25f;  // dloss in the fixtures

static Softcap tanh_cap(float limit) { return {Softcap::Kind::tanh, limit}; }
static Softcap isru_cap(float limit) { return {Softcap::Kind::isru, limit}; }

// {losses of forward, losses of forward_backward, dlogits (N,V)}; the padding holds NaN before, and zeros after.
template <class T>
static std::vector<Floats> on_device(const Floats& logits, const Ints& targets, int64_t N, int64_t V, int64_t Vp,
                                     Softcap softcap = {}) {
    Cuda cuda;
    Floats rows(size_t(N * Vp), NAN);
    for (int64_t n = 0; n < N; n++) std::copy_n(&logits[size_t(n * V)], V, &rows[size_t(n * Vp)]);
    const OnDevice<T> d_logits(cuda, rows);
    const OnDevice<int32_t> d_targets(cuda, targets);
    auto got = twice_the_same([&] {
        OnDevice<float> losses(cuda, size_t(N)), fused(cuda, size_t(N));
        OnDevice<T> d_rows(cuda, rows);
        cross_entropy_forward(cuda, losses.data, d_logits.data, d_targets.data, N, V, Vp, softcap);
        cross_entropy_forward_backward(cuda, fused.data, d_rows.data, d_targets.data, kLoss, N, V, Vp, softcap);
        return std::vector{losses.get(), fused.get(), d_rows.get()};
    });
    Floats dlogits;
    int64_t not_zero = 0;
    for (int64_t n = 0; n < N; n++) {
        dlogits.insert(dlogits.end(), got[2].begin() + n * Vp, got[2].begin() + n * Vp + V);
        for (int64_t v = V; v < Vp; v++) not_zero += got[2][size_t(n * Vp + v)] != 0;
    }
    CHECK(not_zero == 0);
    return {got[0], got[1], dlogits};
}

// Units by which two capped logits are off together: a loss has the difference of two such errors, and so has the
// exponent of a probability. tanh: c - 2c / (e + 1) is rounded as a number below 2c twice, which with e's error makes
// 2c units. isru: 1 / c, y, y^2 + 1 and the product half a unit each, the root two: 3.75 of at most c.
static double cap_units(Softcap cap) { return 2 * double(cap.limit) * (cap.kind == Softcap::Kind::isru ? 4 : 2); }

static void check_losses(const Floats& got, const Floats& want, double eps, double units) {
    std::vector<double> bounds;
    for (const float loss : want)
        bounds.push_back(eps * (std::fabs(loss) + rms(want.data(), int64_t(want.size()))) + units * kEpsF32);
    check_within("losses", got, want, bounds);
}

TEST_CASE("cross_entropy on the device agrees with PyTorch", "[cross_entropy]" ON_DEVICE) {
    const Fixture f("cross_entropy");
    const auto [N, V, Vp, softcap] = GENERATE(table<int, int, int, Softcap>({{1, 1, 4, {}},
                                                                             {1, 1, 128, {}},
                                                                             {1, 5, 8, {}},
                                                                             {3, 7, 8, {}},
                                                                             {5, 65, 128, {}},
                                                                             {4, 301, 384, {}},
                                                                             {6, 33, 64, {}},
                                                                             {1, 5, 8, tanh_cap(15)},
                                                                             {5, 65, 128, tanh_cap(15)},
                                                                             {4, 301, 384, tanh_cap(30)},
                                                                             {3, 33, 64, tanh_cap(8)},
                                                                             {1, 5, 8, isru_cap(15)},
                                                                             {5, 65, 128, isru_cap(15)},
                                                                             {4, 301, 384, isru_cap(30)},
                                                                             {3, 33, 64, isru_cap(8)}}));
    const char* cap_names[] = {"", "softcap.", "isru."};
    const std::string name = format("%dx%d.", N, V) + cap_names[int(softcap.kind)], want = "want." + name;
    INFO(name << " padded to " << Vp);
    const auto got = on_device<float>(f.floats(name + "logits"), f.ints(name + "targets"), N, V, Vp, softcap);
    // As in cross_entropy_test.cpp, and a unit for each of the quotient, the power of 2 and its rounded log2(e).
    check_losses(got[0], f.floats(want + "losses"), 4 * kEpsF32, cap_units(softcap));
    check_losses(got[1], f.floats(want + "losses"), 4 * kEpsF32, cap_units(softcap));
    check_close("dlogits", got[2], f.floats(want + "dlogits"), (8 + cap_units(softcap)) * kEpsF32);
}

TEST_CASE("cross_entropy on the device of capped logits as large as floats are agrees with PyTorch",
          "[cross_entropy]" ON_DEVICE) {
    const Fixture f("cross_entropy");
    const auto cap = GENERATE(tanh_cap(15), isru_cap(15));
    const std::string want = cap.kind == Softcap::Kind::tanh ? "want.far.tanh." : "want.far.isru.";
    const auto got = on_device<float>(f.floats("far.logits"), f.ints("far.targets"), 4, 8, 16, cap);
    check_losses(got[0], f.floats(want + "losses"), 4 * kEpsF32, cap_units(cap));
    check_losses(got[1], f.floats(want + "losses"), 4 * kEpsF32, cap_units(cap));
    // An exponent of up to 30: half a unit for the difference, for log2(e) and for their product; a slope is a product
    // of three factors, each as exact as the cap. Results below the smallest normal number are 0.
    std::vector<double> bounds;
    for (const float d : f.floats(want + "dlogits"))
        bounds.push_back((48 + 8 + 2 * cap_units(cap)) * kEpsF32 * std::fabs(d) + 0x1p-126);
    check_within("dlogits", got[2], f.floats(want + "dlogits"), bounds);
}

TEST_CASE("cross_entropy on the device over GPT-2's padded vocabulary agrees with PyTorch",
          "[cross_entropy]" ON_DEVICE) {
    const int64_t N = 3, V = 50257, Vp = 50304;
    const Fixture f("cross_entropy");
    const Ints targets = f.ints("gpt2.targets");
    const auto got = on_device<float>(bell(50257, N * V, 2), targets, N, V, Vp);
    check_relative("losses", got[0], f.floats("want.gpt2.losses"), 4 * kEpsF32);
    check_relative("losses of the fused op", got[1], f.floats("want.gpt2.losses"), 4 * kEpsF32);
    Floats every_53rd, at_target;
    for (int64_t n = 0; n < N; n++) {
        for (int64_t v = 0; v < V; v += 53) every_53rd.push_back(got[2][size_t(n * V + v)]);
        at_target.push_back(got[2][size_t(n * V + targets[size_t(n)])]);
    }
    // Logits lie in (-8, 8), so an exponent is at most 16: half a unit for the difference, for log2(e) and for their
    // product make 24 units of each tiny p.
    check_relative("dlogits", every_53rd, f.floats("want.gpt2.dlogits_every_53rd"), (24 + 6) * kEpsF32);
    check_relative("dlogits at the targets", at_target, f.floats("want.gpt2.dlogits_target"), 6 * kEpsF32);
}

TEST_CASE("cross_entropy in bf16 agrees with the CPU", "[cross_entropy]" ON_DEVICE) {
    // Targets in the first and the last column, in the last pack; several packs a thread, and a vocabulary without
    // padding.
    const auto [N, V, Vp] =
        GENERATE(table<int, int, int>({{1, 3, 8}, {4, 65, 128}, {3, 4096, 4096}, {3, 50257, 50304}}));
    const Softcap softcap = GENERATE(Softcap{}, tanh_cap(15), isru_cap(15));
    INFO(N << " x " << V << ", cap " << int(softcap.kind));
    const Floats logits = rounded<bf16>(randn(size_t(N * V), 1, 4));
    Ints targets;
    for (int n = 0; n < N; n++) targets.push_back(n == 0 ? V - 1 : (n - 1) * (V - 2) / 2);
    Cpu cpu;
    Floats losses(size_t(N), 0), dlogits = logits;
    cross_entropy_forward_backward(cpu, losses.data(), dlogits.data(), targets.data(), kLoss, N, V, V, softcap);
    const auto got = on_device<bf16>(logits, targets, N, V, Vp, softcap);
    check_losses(got[0], losses, 8 * kEpsF32, 2 * cap_units(softcap));  // both sides' errors
    check_losses(got[1], losses, 8 * kEpsF32, 2 * cap_units(softcap));
    // half a unit of bf16 for what is stored, beside which those of f32 are little
    std::vector<double> bounds;
    for (const float d : dlogits)
        bounds.push_back((kEpsBf16 / 2 + (40 + 2 * cap_units(softcap)) * kEpsF32) * std::fabs(d) +
                         8 * kEpsF32 * kLoss / V);
    check_within("dlogits", got[2], dlogits, bounds);
}

TEST_CASE("cross_entropy on the device: logits of minus infinity are never predicted", "[cross_entropy]" ON_DEVICE) {
    const int64_t N = 2, V = 6000;  // all that some threads see
    Floats logits = randn(size_t(N * V), 1), few;
    for (int64_t n = 0; n < N; n++)
        for (int64_t v = 0; v < V; v++) {
            float& x = logits[size_t(n * V + v)];
            if (v % 1000 >= 10) x = -INFINITY;
            if (v % 1000 < 10) few.push_back(x);
        }
    const auto got = on_device<float>(logits, {5000, 3}, N, V, 6016), want = on_device<float>(few, {50, 3}, N, 60, 64);
    check_close("losses", got[0], want[0], 2 * kEpsF32);  // the same terms in another order
    check_close("losses of the fused op", got[1], want[1], 2 * kEpsF32);
    Floats kept;
    for (size_t i = 0; i < got[2].size(); i++)
        if (i % 1000 < 10)
            kept.push_back(got[2][i]);
        else if (got[2][i] != 0)
            FAIL_CHECK("a gradient of " << got[2][i]);
    check_close("dlogits", kept, want[2], 4 * kEpsF32);
}

TEST_CASE("cross_entropy on the device: a cap far below all logits makes them equal", "[cross_entropy]" ON_DEVICE) {
    const int64_t V = 40;
    Floats logits = randn(size_t(V), 1);
    for (float& x : logits) x = x < 0 ? -1e30f : 1e30f;  // each becomes -c or c, where the slope is 0
    const Softcap softcap = GENERATE(tanh_cap(1e-3f), isru_cap(1e-3f));
    const auto got = on_device<float>(logits, {7}, 1, V, 64, softcap);
    for (const float d : got[2]) CHECK(d == 0);
    for (const Floats& losses : {got[0], got[1]})
        CHECK(std::fabs(losses[0] - std::log(40.)) <= 2 * softcap.limit + 4 * kEpsF32 * std::log(40.));
}

TEST_CASE("cross_entropy on the device of equal logits is log V, and its gradients sum to zero",
          "[cross_entropy]" ON_DEVICE) {
    const int64_t V = 1024;
    const auto got = on_device<float>(Floats(size_t(V), 88.f), {77}, 1, V, 1152);
    CHECK(std::fabs(got[0][0] - std::log(1024.)) <= 2 * kEpsF32 * std::log(1024.));
    CHECK(got[1][0] == got[0][0]);
    double sum = 0;
    for (const float d : got[2]) sum += d;
    CHECK(sum == 0);  // 1023 times 2^-12 and -(1 - 2^-10) / 4: all exact
    CHECK(got[2][76] == kLoss / 1024);
}

TEST_CASE("cross_entropy on the device hands a NaN on", "[cross_entropy]" ON_DEVICE) {
    const int64_t N = 3, V = 5001;
    const int64_t at = GENERATE(0, 2050, 5000);
    Floats logits = randn(size_t(N * V), 1);
    logits[size_t(V + at)] = NAN;
    const auto got = on_device<float>(logits, {1, 2, 3}, N, V, 5120, GENERATE(Softcap{}, tanh_cap(15), isru_cap(15)));
    for (const Floats& losses : {got[0], got[1]}) {
        CHECK(std::isnan(losses[1]));
        CHECK(count_not_finite(losses) == 1);
    }
    CHECK(all_nan(Floats(got[2].begin() + V, got[2].begin() + 2 * V)));
    CHECK(count_not_finite(got[2]) == V);
}

TEST_CASE("cross_entropy's kernel refuses rows that are not a multiple of 16 bytes, and a cap without a limit",
          "[cross_entropy]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> logits(cuda, 12);
    OnDevice<float> losses(cuda, 1);
    const OnDevice<int32_t> targets(cuda, Ints{0});
    const std::string refused = "2: cross_entropy of rows of 12: they must be a multiple of 8, 16 bytes";
    CHECK(error_of([&] { cross_entropy_forward(cuda, losses.data, logits.data, targets.data, 1, 5, 12); }) == refused);
    CHECK(error_of([&] {
              cross_entropy_forward_backward(cuda, losses.data, logits.data, targets.data, 1, 1, 5, 12);
          }) == refused);
    CHECK(contains(
        error_of([&] { cross_entropy_forward(cuda, losses.data, logits.data, targets.data, 1, 5, 8, isru_cap(0)); }),
        "internal"));
}

TEST_CASE("cross_entropy on the device: a target below 0 has no loss and no gradient, and changes no other row",
          "[cross_entropy]" ON_DEVICE) {
    const int64_t N = 5, V = 4099, Vp = 4224;  // a row of several packs per thread
    const Softcap cap = GENERATE(Softcap{}, tanh_cap(15), isru_cap(15));
    Floats logits = randn(size_t(N * V), 1, 4);
    const Ints all = {7, 0, 4098, 33, 5}, some = {7, -1, 4098, -100, INT32_MIN};
    const auto want = on_device<bf16>(logits, all, N, V, Vp, cap);
    logits[size_t(V + 9)] = NAN;  // of a row that does not count
    const auto got = on_device<bf16>(logits, some, N, V, Vp, cap);
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

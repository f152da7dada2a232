// RMSNorm, its fusion with the residual addition, and its backward against PyTorch, with and without a gain.
#include "llmc/cpu/rmsnorm.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, check_equal, check_relative, plus
#include "test/testing.h"

constexpr float kEps = 1e-5f;

// Roundings of half a unit each. The sum of squares is at worst C / 16 of them a lane and 4 more in the tree, all of
// one sign; the root halves them. Then the mean, the sum with eps, root, quotient, and two products.
static double rstd_units(int64_t C) { return (double(C) / 16 + 4) / 4 + 2; }
static double out_units(int64_t C) { return rstd_units(C) + 1; }
// x has rstd_units and one product, and appears twice in x * mean(g x) beside g; the mean is a sum of the same length,
// of terms whose sizes have a mean of at most rms(g) rms(x) = rms(g).
static double dinp_units(int64_t C) { return 3 * rstd_units(C) + (double(C) / 16 + 4) / 2 + 4; }

static const auto kCases = {std::pair{1, 8}, {3, 7}, {3, 33}, {17, 48}, {1, 1536}, {5, 100}, {40, 16}};

TEST_CASE("rmsnorm agrees with PyTorch", "[rmsnorm]") {
    const Fixture f("rmsnorm");
    const auto [N, C] = GENERATE(values(kCases));
    const std::string name = format("%dx%d.", N, C), want = "want." + name;
    INFO(name);
    const Floats inp = f.floats(name + "inp1"), weight = f.floats(name + "weight"), dout = f.floats(name + "dout");
    const Floats dinp_start = randn(inp.size(), 1), dweight_start = randn(weight.size(), 2);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(inp.size()), rstd{size_t(N)}, dinp(dinp_start), dweight(dweight_start);
        rmsnorm_forward<float>(cpu, out.data(), rstd, inp.data(), weight.data(), N, C, kEps);
        rmsnorm_backward<float>(cpu, dinp, dweight, dout.data(), inp.data(), weight.data(), rstd, N, C);
        return std::vector{out.get(), rstd.get(), dinp.get(), dweight.get()};
    });
    check_relative("out", got[0], f.floats(want + "out"), out_units(C) * kEpsF32);
    check_relative("rstd", got[1], f.floats(want + "rstd"), rstd_units(C) * kEpsF32);
    check_close("dinp", got[2], plus(dinp_start, f.floats(want + "dinp")), dinp_units(C) * kEpsF32);
    // N terms, each as exact as out without its gain, and N sums
    check_close("dweight", got[3], plus(dweight_start, f.floats(want + "dweight")),
                (out_units(C) + double(N) / 2) * kEpsF32);
}

TEST_CASE("rmsnorm without a gain agrees with PyTorch", "[rmsnorm]") {
    const Fixture f("rmsnorm");
    const auto [N, C] = GENERATE(values(kCases));
    const std::string name = format("%dx%d.", N, C), want = "want." + name;
    INFO(name);
    const Floats inp = f.floats(name + "inp1"), dout = f.floats(name + "dout"), start = randn(inp.size(), 1);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(inp.size()), rstd{size_t(N)}, dinp(start);
        rmsnorm_forward<float>(cpu, out.data(), rstd, inp.data(), nullptr, N, C, kEps);
        rmsnorm_backward<float>(cpu, dinp, nullptr, dout.data(), inp.data(), nullptr, rstd, N, C);
        return std::vector{out.get(), rstd.get(), dinp.get()};
    });
    check_relative("out", got[0], f.floats(want + "out_no_gain"), out_units(C) * kEpsF32);
    check_relative("rstd", got[1], f.floats(want + "rstd"), rstd_units(C) * kEpsF32);
    check_close("dinp", got[2], plus(start, f.floats(want + "dinp_no_gain")), dinp_units(C) * kEpsF32);
}

TEST_CASE("residual_rmsnorm_forward agrees with PyTorch", "[rmsnorm]") {
    const Fixture f("rmsnorm");
    const auto [N, C] = GENERATE(values(kCases));
    const std::string name = format("%dx%d.", N, C), want = "want." + name;
    INFO(name);
    const Floats inp1 = f.floats(name + "inp1"), inp2 = f.floats(name + "inp2"), weight = f.floats(name + "weight");
    for (const float* gain : {weight.data(), static_cast<const float*>(nullptr)}) {
        const auto got = on_any_threads([&](Cpu& cpu) {
            Guarded residual(inp1.size()), out(inp1.size()), rstd{size_t(N)};
            residual_rmsnorm_forward<float>(cpu, residual, out.data(), rstd, inp1.data(), inp2.data(), gain, N, C,
                                            kEps);
            return std::vector{residual.get(), out.get(), rstd.get()};
        });
        check_equal("residual", got[0], f.floats(want + "residual"));
        if (gain) check_relative("out", got[1], f.floats(want + "residual_out"), out_units(C) * kEpsF32);
        // The fused op is the two ops one after the other, bit for bit: backward and checkpoints must not tell them
        // apart.
        Cpu cpu(1);
        Guarded out(inp1.size()), rstd{size_t(N)};
        rmsnorm_forward<float>(cpu, out.data(), rstd, got[0].data(), gain, N, C, kEps);
        check_equal("out", got[1], out.get());
        check_equal("rstd", got[2], rstd.get());
    }
}

TEST_CASE("rmsnorm_backward: a frozen gain changes no other gradient, a gain needs its weight", "[rmsnorm]") {
    const int64_t N = 70, C = 21;
    const Floats inp = randn(size_t(N * C), 1), dout = randn(size_t(N * C), 2), weight = randn(size_t(C), 3);
    const Floats rstd(size_t(N), 0.75f), start = randn(size_t(N * C), 4);
    Cpu cpu(2);
    Guarded both(start), frozen(start), dweight(size_t(C), 0);
    rmsnorm_backward<float>(cpu, both, dweight, dout.data(), inp.data(), weight.data(), rstd.data(), N, C);
    rmsnorm_backward<float>(cpu, frozen, nullptr, dout.data(), inp.data(), weight.data(), rstd.data(), N, C);
    check_equal("dinp", frozen.get(), both.get());
    CHECK(contains(error_of([&] {
                       rmsnorm_backward<float>(cpu, both, dweight, dout.data(), inp.data(), nullptr, rstd.data(), N, C);
                   }),
                   "internal"));
}

TEST_CASE("rmsnorm_backward: dinp is overwritten or added to", "[rmsnorm]") {
    const int64_t N = 70, C = 33;
    const size_t n = size_t(N * C), columns = size_t(C);
    const Floats inp = randn(n, 1), weight = randn(columns, 2), dout = randn(n, 3), rstd(size_t(N), 1.5f);
    const auto backward = [&](Cpu& cpu, float start, Write write) {
        Guarded dinp(n, start), dweight(columns, 0);
        rmsnorm_backward<float>(cpu, dinp, dweight, dout.data(), inp.data(), weight.data(), rstd.data(), N, C, write);
        return std::vector{dinp.get(), dweight.get()};
    };
    const auto set = on_any_threads([&](Cpu& cpu) { return backward(cpu, std::nanf(""), Write::set); });
    Cpu cpu(1);
    const auto from_zeros = backward(cpu, 0, Write::add);
    check_equal("dinp over NaN", set[0], from_zeros[0]);
    check_equal("dweight", set[1], from_zeros[1]);
}

TEST_CASE("rmsnorm_backward: sums over rows of whole numbers are exact", "[rmsnorm]") {
    const int64_t N = 100, C = 70;  // several chunks of rows, and an odd rest
    const Floats inp = whole_numbers(N * C, 1, 100), dout = whole_numbers(N * C, 2, 100);
    const Floats weight(size_t(C), 1), rstd(size_t(N), 0.5f), start = whole_numbers(C, 3, 1000);
    Floats want = start;
    for (int64_t i = 0; i < N * C; i++) want[size_t(i % C)] += dout[size_t(i)] * (inp[size_t(i)] * 0.5f);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded dinp(size_t(N * C), 0), dweight(start);
        rmsnorm_backward<float>(cpu, dinp, dweight, dout.data(), inp.data(), weight.data(), rstd.data(), N, C);
        return std::vector{dweight.get(), dinp.get()};
    });
    check_equal("dweight", got[0], want);
}

TEST_CASE("rmsnorm: a NaN spoils its row and no other; a row of zeros stays zero", "[rmsnorm]") {
    const int64_t N = 3, C = 21;
    const int64_t at = GENERATE(0, 15, 16, 20);
    Floats inp = randn(size_t(N * C), 1);
    inp[size_t(C + at)] = std::nanf("");
    std::fill_n(inp.begin(), C, 0.f);
    const Floats weight(size_t(C), 1), dout = randn(size_t(N * C), 2);
    Cpu cpu(2);
    Guarded out(size_t(N * C)), rstd{size_t(N)}, dinp(size_t(N * C), 0), dweight(size_t(C), 0);
    rmsnorm_forward<float>(cpu, out.data(), rstd, inp.data(), weight.data(), N, C, kEps);
    rmsnorm_backward<float>(cpu, dinp, dweight, dout.data(), inp.data(), weight.data(), rstd, N, C);
    for (const Floats& x : {out.get(), dinp.get()}) {
        CHECK(all_nan(Floats(x.begin() + C, x.begin() + 2 * C)));
        CHECK(count_not_finite(x) == C);
    }
    CHECK(Floats(out.data(), out + C) == Floats(size_t(C), 0));
    CHECK(all_nan(dweight.get()));
}

TEST_CASE("rmsnorm in bf16 rounds each result once", "[rmsnorm]") {
    const auto [N, C] = GENERATE(table<int64_t, int64_t>({{1, 8}, {3, 7}, {70, 33}, {2, 768}}));
    const bool gain = GENERATE(true, false);
    INFO(N << " x " << C << (gain ? "" : " without a gain"));
    check_rounds_once([N = N, C = C, gain]<class T>(Cpu& cpu) {
        const auto inp = bf16_randn<T>(N * C, 1, 3), more = bf16_randn<T>(N * C, 2), dout = bf16_randn<T>(N * C, 3);
        const auto gains = bf16_randn<T>(C, 4);
        const T* weight = gain ? gains.data() : nullptr;
        const size_t n = size_t(N * C), rows = size_t(N);
        Guarded<T> out(n), dinp(rounded<bf16>(randn(n, 5))), residual(n), fused(n), unfused(n);
        Guarded rstd(rows), dweight(randn(size_t(C), 6));
        rmsnorm_forward(cpu, out.data(), rstd, inp.data(), weight, N, C, kEps);
        rmsnorm_backward(cpu, dinp.data(), gain ? dweight.data() : nullptr, dout.data(), inp.data(), weight, rstd, N,
                         C);
        std::vector results{stored(out), rstd.get(), stored(dinp), dweight.get()};
        // The residual stream is what the norm after it sees, rounded as it is.
        residual_rmsnorm_forward(cpu, residual.data(), fused.data(), rstd, inp.data(), more.data(), weight, N, C, kEps);
        results.push_back(stored(residual));
        rmsnorm_forward(cpu, unfused.data(), rstd, residual.data(), weight, N, C, kEps);
        check_equal("out after the residual", fused.get(), unfused.get());
        return results;
    });
}

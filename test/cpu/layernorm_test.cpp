// LayerNorm, its fusion with the residual addition, and its backward against PyTorch.
#include "llmc/cpu/layernorm.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, check_equal, plus, check_within
#include "test/testing.h"

constexpr float kEps = 1e-5f;

// A float32 mean is off by at least half a unit of itself, which is |mean| * rstd half units of a normalized value. The
// rest are a few roundings of one unit each: the subtraction, rstd, two products, the sums over C in 16 lanes.
static double tolerance(const Floats& mean, const Floats& rstd) {
    double offset = 0;
    for (size_t n = 0; n < mean.size(); n++) offset = std::max(offset, double(std::fabs(mean[n] * rstd[n])));
    return (4 + offset) * kEpsF32;
}

// rms(row) units for the mean: what its terms are rounded by, however much they cancel.
static void check_means(const Floats& got, const Floats& want, const Floats& inp, int64_t C) {
    std::vector<double> bounds;
    for (size_t n = 0; n < want.size(); n++) bounds.push_back(2 * kEpsF32 * rms(&inp[n * size_t(C)], C));
    check_within("mean", got, want, bounds);
}

TEST_CASE("layernorm agrees with PyTorch", "[layernorm]") {
    const Fixture f("layernorm");
    const auto [N, C] = GENERATE(
        table<int, int>({{1, 8}, {3, 7}, {3, 33}, {17, 48}, {2, 768}, {5, 100}, {40, 16}}));  // 5x100: inp near 1000
    const std::string name = format("%dx%d.", N, C), want = "want." + name;
    INFO(name);
    const Floats inp = f.floats(name + "inp1"), weight = f.floats(name + "weight"), bias = f.floats(name + "bias");
    const Floats dout = f.floats(name + "dout");
    const Floats dinp_start = randn(inp.size(), 1), dweight_start = randn(weight.size(), 2),
                 dbias_start = randn(bias.size(), 3);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(inp.size()), mean{size_t(N)}, rstd{size_t(N)};
        layernorm_forward<float>(cpu, out.data(), mean, rstd, inp.data(), weight.data(), bias.data(), N, C, kEps);
        Guarded dinp(dinp_start), dweight(dweight_start), dbias(dbias_start);
        layernorm_backward<float>(cpu, dinp.data(), dweight, dbias, dout.data(), inp.data(), weight.data(), mean, rstd,
                                  N, C);
        return std::vector{out.get(), mean.get(), rstd.get(), dinp.get(), dweight.get(), dbias.get()};
    });
    const double rel = tolerance(f.floats(want + "mean"), f.floats(want + "rstd"));
    check_close("out", got[0], f.floats(want + "out"), rel);
    check_means(got[1], f.floats(want + "mean"), inp, C);
    check_relative("rstd", got[2], f.floats(want + "rstd"), rel);
    check_close("dinp", got[3], plus(dinp_start, f.floats(want + "dinp")), rel);
    check_close("dweight", got[4], plus(dweight_start, f.floats(want + "dweight")), rel);
    check_close("dbias", got[5], plus(dbias_start, f.floats(want + "dbias")), 4 * kEpsF32);
}

TEST_CASE("residual_layernorm_forward agrees with PyTorch", "[layernorm]") {
    const Fixture f("layernorm");
    const auto [N, C] = GENERATE(table<int, int>({{1, 8}, {3, 7}, {3, 33}, {17, 48}, {2, 768}, {5, 100}, {40, 16}}));
    const std::string name = format("%dx%d.", N, C), want = "want." + name;
    INFO(name);
    const Floats inp1 = f.floats(name + "inp1"), inp2 = f.floats(name + "inp2");
    const Floats weight = f.floats(name + "weight"), bias = f.floats(name + "bias");
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded residual(inp1.size()), out(inp1.size()), mean{size_t(N)}, rstd{size_t(N)};
        residual_layernorm_forward<float>(cpu, residual, out.data(), mean, rstd, inp1.data(), inp2.data(),
                                          weight.data(), bias.data(), N, C, kEps);
        return std::vector{residual.get(), out.get(), mean.get(), rstd.get()};
    });
    check_equal("residual", got[0], f.floats(want + "residual"));
    check_close("out", got[1], f.floats(want + "residual_out"), tolerance(got[2], got[3]));
    // The fused op is the two ops one after the other, bit for bit: backward and checkpoints must not tell them apart.
    Cpu cpu(1);
    Guarded out(inp1.size()), mean{size_t(N)}, rstd{size_t(N)};
    layernorm_forward<float>(cpu, out.data(), mean, rstd, got[0].data(), weight.data(), bias.data(), N, C, kEps);
    check_equal("out", got[1], out.get());
    check_equal("mean", got[2], mean.get());
    check_equal("rstd", got[3], rstd.get());
}

TEST_CASE("layernorm_backward: bias sums of whole numbers are exact", "[layernorm]") {
    const int64_t N = 100, C = 70;
    const Floats inp = randn(size_t(N * C), 1), weight = randn(size_t(C), 2), dout = whole_numbers(N * C, 3, 1000);
    const Floats mean(size_t(N), 0.25f), rstd(size_t(N), 1.5f), start = whole_numbers(C, 4, 1000);
    Floats want = start;
    for (int64_t i = 0; i < N * C; i++) want[size_t(i % C)] += dout[size_t(i)];
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded dinp(size_t(N * C), 0), dweight(size_t(C), 0), dbias(start);
        layernorm_backward<float>(cpu, dinp.data(), dweight, dbias, dout.data(), inp.data(), weight.data(), mean.data(),
                                  rstd.data(), N, C);
        return std::vector{dbias.get(), dweight.get(), dinp.get()};
    });
    check_equal("dbias", got[0], want);
}

static float largest(const Floats& x) {
    float most = 0;
    for (const float value : x) most = std::max(most, std::fabs(value));
    return most;
}

TEST_CASE("layernorm: the largest magnitude of what forward stores", "[layernorm]") {
    const int64_t N = 70, C = 33;
    const Floats inp = randn(size_t(N * C), 1), more = randn(size_t(N * C), 2), weight = randn(size_t(C), 3),
                 bias = randn(size_t(C), 4);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(inp.size()), fused(inp.size()), residual(inp.size()), mean{size_t(N)}, rstd{size_t(N)}, amax(2);
        layernorm_forward<float>(cpu, {out, amax}, mean, rstd, inp.data(), weight.data(), bias.data(), N, C, kEps);
        residual_layernorm_forward<float>(cpu, residual, {fused, amax.data() + 1}, mean, rstd, inp.data(), more.data(),
                                          weight.data(), bias.data(), N, C, kEps);
        return std::vector{out.get(), fused.get(), amax.get()};
    });
    check_equal("amax", got[2], {largest(got[0]), largest(got[1])});
}

TEST_CASE("layernorm_backward: dinp is overwritten or added to, and its columns summed as stored", "[layernorm]") {
    const auto [N, C] = GENERATE(table<int64_t, int64_t>({{1, 5}, {70, 33}, {100, 768}}));
    INFO(N << " x " << C);
    const size_t n = size_t(N * C), columns = size_t(C);
    const Floats inp = randn(n, 1), weight = randn(columns, 2), dout = randn(n, 3), before = randn(n, 4);
    const Floats mean(size_t(N), 0.25f), rstd(size_t(N), 1.5f), sums = randn(columns, 5);
    const auto backward = [&](Cpu& cpu, const Floats& start, Write write, bool with_sums) {
        Guarded dinp(start), dweight(columns, 0), dbias(columns, 0), of_columns(sums), amax(1);
        layernorm_backward<float>(cpu, {dinp, amax, with_sums ? of_columns.data() : nullptr}, dweight, dbias,
                                  dout.data(), inp.data(), weight.data(), mean.data(), rstd.data(), N, C, write);
        return std::vector{dinp.get(), dweight.get(), dbias.get(), of_columns.get(), amax.get()};
    };
    const auto added = on_any_threads([&](Cpu& cpu) { return backward(cpu, before, Write::add, true); });
    // With Write::set what was there is never read: it may be NaN.
    const auto set =
        on_any_threads([&](Cpu& cpu) { return backward(cpu, Floats(n, std::nanf("")), Write::set, true); });
    Cpu cpu(1);
    const auto from_zeros = backward(cpu, Floats(n, 0), Write::add, false);
    check_equal("dinp over NaN", set[0], from_zeros[0]);
    check_equal("dweight", set[1], added[1]);
    check_equal("dbias", set[2], added[2]);
    check_equal("sums that were not asked for", from_zeros[3], sums);
    for (const auto& got : {added, set}) {
        Guarded want(sums);
        add_column_sums<float>(cpu, want, got[0].data(), N, C);
        check_equal("sums of dinp", got[3], want.get());
        check_equal("amax", got[4], {largest(got[0])});
    }
}

TEST_CASE("layernorm: a NaN spoils its row and no other", "[layernorm]") {
    const int64_t N = 3, C = 21;
    const int64_t at = GENERATE(0, 15, 16, 20);
    Floats inp = randn(size_t(N * C), 1);
    inp[size_t(C + at)] = std::nanf("");
    const Floats weight(size_t(C), 1), bias(size_t(C), 0), dout = randn(size_t(N * C), 2);
    Cpu cpu(2);
    Guarded out(size_t(N * C)), mean{size_t(N)}, rstd{size_t(N)}, dinp(size_t(N * C), 0), dweight(size_t(C), 0),
        dbias(size_t(C), 0);
    layernorm_forward<float>(cpu, out.data(), mean, rstd, inp.data(), weight.data(), bias.data(), N, C, kEps);
    layernorm_backward<float>(cpu, dinp.data(), dweight, dbias, dout.data(), inp.data(), weight.data(), mean, rstd, N,
                              C);
    for (const Floats& x : {out.get(), dinp.get()}) {
        CHECK(all_nan(Floats(x.begin() + C, x.begin() + 2 * C)));
        CHECK(count_not_finite(x) == C);
    }
    CHECK(all_nan(dweight.get()));
}

TEST_CASE("layernorm in bf16 rounds each result once", "[layernorm]") {
    const auto [N, C] = GENERATE(table<int64_t, int64_t>({{1, 8}, {3, 7}, {70, 33}, {2, 768}}));
    INFO(N << " x " << C);
    check_rounds_once([N = N, C = C]<class T>(Cpu& cpu) {
        const auto inp = bf16_randn<T>(N * C, 1, 3), more = bf16_randn<T>(N * C, 2), dout = bf16_randn<T>(N * C, 3);
        const auto weight = bf16_randn<T>(C, 4), bias = bf16_randn<T>(C, 5);
        const size_t n = size_t(N * C), rows = size_t(N), columns = size_t(C);
        Guarded<T> out(n), dinp(rounded<bf16>(randn(n, 6))), residual(n), fused(n), unfused(n);
        Guarded mean(rows), rstd(rows), dweight(randn(columns, 7)), dbias(randn(columns, 8));
        layernorm_forward(cpu, out.data(), mean, rstd, inp.data(), weight.data(), bias.data(), N, C, kEps);
        layernorm_backward(cpu, dinp.data(), dweight, dbias, dout.data(), inp.data(), weight.data(), mean, rstd, N, C);
        std::vector results{stored(out), mean.get(), rstd.get(), stored(dinp), dweight.get(), dbias.get()};
        // The residual stream is what the norm after it sees, rounded as it is.
        residual_layernorm_forward(cpu, residual.data(), fused.data(), mean, rstd, inp.data(), more.data(),
                                   weight.data(), bias.data(), N, C, kEps);
        results.push_back(stored(residual));
        layernorm_forward(cpu, unfused.data(), mean, rstd, residual.data(), weight.data(), bias.data(), N, C, kEps);
        check_equal("out after the residual", fused.get(), unfused.get());
        return results;
    });
}

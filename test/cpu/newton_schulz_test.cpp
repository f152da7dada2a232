// Newton-Schulz iterations against PyTorch, and the bounds of their singular values.
#include "llmc/cpu/newton_schulz.h"
#include "test/cpu/orthogonal_testing.h"  // band_of, singular_values
#include "test/fixture.h"                 // Fixture
#include "test/op_testing.h"
#include "test/testing.h"

struct NewtonSchulzCase {
    const char* name;
    int64_t batch, R, K;
    NewtonSchulzOptions options;
};

static NewtonSchulzOptions polar(int iterations = 5) { return NewtonSchulzOptions::polar_express(iterations); }

TEST_CASE("newton_schulz agrees with PyTorch", "[newton_schulz]") {
    // dev/fixtures/optimizer_fixtures.py has the same table.
    static const std::vector<NewtonSchulzCase> cases = {
        {"square", 1, 12, 12, polar()}, {"tall", 2, 33, 7, polar()},
        {"wide", 3, 20, 50, polar()},   {"row", 1, 1, 9, polar()},
        {"column", 1, 9, 1, polar()},   {"quintic", 2, 15, 31, NewtonSchulzOptions::quintic()},
        {"more", 1, 16, 8, polar(7)},   {"fewer", 1, 8, 16, polar(2)},
    };
    const Fixture f("newton_schulz");
    const auto [name, batch, R, K, options] = GENERATE(from_range(cases));
    INFO(name);
    const Floats x = f.floats(name), want = f.floats(std::string("want.") + name);
    const auto got = on_any_threads([&, batch = batch, R = R, K = K, &options = options](Cpu& cpu) {
        Guarded result(x);
        newton_schulz(cpu, result.data(), batch, R, K, options);
        return std::vector<Floats>{result.get()};
    });
    const size_t size = size_t(R * K);
    for (size_t i = 0; i < size_t(batch); i++) {
        const Floats one(x.begin() + ptrdiff_t(i * size), x.begin() + ptrdiff_t((i + 1) * size));
        const Floats result(got[0].begin() + ptrdiff_t(i * size), got[0].begin() + ptrdiff_t((i + 1) * size));
        const Floats wanted(want.begin() + ptrdiff_t(i * size), want.begin() + ptrdiff_t((i + 1) * size));
        // Elements of an error of norm E: E itself if there is but one row or column, else E / sqrt(max(R, K)) of
        // random sign, four times that for the largest. rms is about 1 / sqrt(max(R, K)).
        const double E = steepest_tolerance(singular_values(one, R, K)[0], options, {kEpsF32, R, K, 1});
        check_close("result", result, wanted, 4 * E);
    }
}

// A wrong digit far right of the decimal point shows in no result.
TEST_CASE("newton_schulz: the coefficients are those of the reference", "[newton_schulz]") {
    Floats coefficients;
    for (const auto& options : {polar(), NewtonSchulzOptions::quintic()})
        for (int i = 0; i < options.iterations; i++) {
            const auto& [a, b, c] = options.of_iteration(i);
            for (const double x : {a, b, c}) coefficients.push_back(float(x));
        }
    check_equal("coefficients", coefficients, Fixture("newton_schulz").floats("coefficients"));
}

TEST_CASE("newton_schulz: a number goes through the polynomials", "[newton_schulz]") {
    const float x = GENERATE(0.001f, 0.03f, 0.3f, 0.7f, 0.99f, -0.3f);
    const auto options = GENERATE(polar(), polar(1), polar(9), NewtonSchulzOptions::quintic());
    double want = double(x), slope = 1;
    for (int i = 0; i < options.iterations; i++) {
        const auto& p = options.of_iteration(i);
        slope *= p.a + want * want * (3 * p.b + 5 * p.c * want * want);
        want = mapped(p, want);
    }
    Cpu cpu(1);
    Guarded got(Floats{x});
    newton_schulz(cpu, got.data(), 1, 1, 1, options);
    // Half a unit for each of five coefficients, powers and sums of an iteration, of terms up to 30 times the result;
    // what the first ones leave goes through the others' slopes, which leave nothing of it unless x stays small.
    const double unit = 0.5 * kEpsF32;
    const double tolerance = options.iterations * 5 * 30 * unit * std::max(1., std::fabs(slope * double(x) / want));
    CHECK(std::fabs(double(got.get()[0]) - want) <= tolerance * std::fabs(want));
}

TEST_CASE("newton_schulz takes singular values into the band of its polynomials", "[newton_schulz]") {
    const auto shape = GENERATE(from_range(kOrthogonalCases));
    const auto options = GENERATE(polar(), NewtonSchulzOptions::quintic(), polar(6));
    // What the coefficients guarantee: from 10^-3 on for the first set; the other one's slope at zero is lower.
    const double lower = options.coefficients.size() > 1 ? 1e-3 : 1e-2;
    const Rounding rounding(kEpsF32, shape.R, shape.K, 1);
    std::vector<double>
        grid;  // from 1 to `lower`, and on: smaller ones may overshoot, but no further than the map does
    for (int i = 0; i <= 4000; i++) grid.push_back(std::pow(lower, i / 2000.));
    SingularBand band{10, 0};
    const auto bands = bands_of(grid, options, rounding);
    for (size_t i = 0; i < grid.size(); i++) {
        if (grid[i] >= lower) band.low = std::min(band.low, bands[i].low);
        band.high = std::max(band.high, bands[i].high);
    }
    CHECK((band.low > 0.6 && band.high < 1.25));  // it says something
    const Floats start = matrix_of(shape);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded result(start);
        newton_schulz(cpu, result.data(), 1, shape.R, shape.K, options);
        return std::vector<Floats>{result.get()};
    });
    // What rounding has put where there was nothing is stretched by all slopes at zero: that of the matrix itself, and
    // as much again for what the iterations add, each stretched by the slopes that are left.
    double stretched = rounding.unit + rounding.sums;
    for (int i = 0; i < options.iterations; i++) stretched *= options.of_iteration(i).a;
    check_singular_values(got[0], start, shape, lower, band, 2 * stretched);
}

TEST_CASE("newton_schulz: a matrix has the same bits whatever else is in its batch", "[newton_schulz]") {
    const auto [R, K] = GENERATE(table<int64_t, int64_t>({{13, 29}, {29, 13}, {17, 17}, {1, 1}}));
    const size_t size = size_t(R * K);
    Floats batch = randn(5 * size, 1, 0.25f / std::sqrt(float(size)));
    batch[0] = std::nanf("");  // spoils the first matrix and no other
    Cpu cpu(2);
    Guarded all(batch);
    newton_schulz(cpu, all.data(), 5, R, K, polar());
    const Floats got = all.get();
    CHECK(std::isnan(got[0]));
    for (size_t i = 1; i < 5; i++) {
        Guarded one(Floats(batch.begin() + ptrdiff_t(i * size), batch.begin() + ptrdiff_t((i + 1) * size)));
        newton_schulz(cpu, one.data(), 1, R, K, polar());
        check_equal("matrix", one.get(),
                    Floats(got.begin() + ptrdiff_t(i * size), got.begin() + ptrdiff_t((i + 1) * size)));
    }
    // No iterations, no change.
    Guarded same(batch);
    newton_schulz(cpu, same.data(), 5, R, K, polar(0));
    CHECK(same_bits(same.get(), batch));
}

TEST_CASE("newton_schulz of bf16 takes singular values into the band of its polynomials", "[newton_schulz]") {
    const OrthogonalCase shape = GENERATE(from_range(kOrthogonalCases));
    const Floats start = rounded<bf16>(matrix_of(shape));
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded<bf16> result(start);
        newton_schulz(cpu, result.data(), 1, shape.R, shape.K, polar());
        return std::vector<Floats>{result.get()};
    });
    check_rounded_band(got[0], start, shape, polar(), kEpsBf16);
}

TEST_CASE("newton_schulz of bf16 keeps the directions of a matrix, each by itself", "[newton_schulz]") {
    const auto [batch, R, K] =
        GENERATE(table<int64_t, int64_t, int64_t>({{3, 16, 48}, {3, 48, 16}, {2, 24, 24}, {2, 5, 17}, {2, 17, 5}}));
    const NewtonSchulzOptions options = polar(GENERATE(0, 4, 5));
    INFO(batch << " x " << R << " x " << K << ", " << options.iterations << " iterations");
    const float size = 0.005f;  // of the singular values: none of the polynomials has to cancel much of it
    Floats start = rounded<bf16>(alike(batch, R, K, size)), want = start;
    Cpu cpu(2);
    newton_schulz(cpu, want.data(), batch, R, K, options);
    Guarded<bf16> got(start);
    newton_schulz(cpu, got.data(), batch, R, K, options);
    const double tolerance = equal_values_tolerance(double(size), options, {kEpsBf16, R, K, 1});
    CHECK(relative_l2(got.get(), want) <= tolerance);
    CHECK(tolerance < 0.5);    // with another's directions it would be the root of 2
    start[1] = std::nanf("");  // spoils the first matrix and no other
    Guarded<bf16> spoilt(start);
    newton_schulz(cpu, spoilt.data(), batch, R, K, options);
    const Floats left = spoilt.get(), right = got.get();
    CHECK(same_bits(Floats(left.begin() + R * K, left.end()), Floats(right.begin() + R * K, right.end())));
}

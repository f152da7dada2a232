/*
Helpers of the tests of newton_schulz: input matrices, singular values in double, and bounds for the effect of rounding
on them.

With rounding, an iteration X -> a X + B X with B = b A + c A^2 becomes a X + (B + dB) X + dX. Each stored element is
off by at most half a unit, and a sum of k products by sqrt(k) half units of random sign.
- Matrix norms: the error of a stored matrix has at most half a unit of its norm if all signs agree, and at most twice
  the errors' standard deviation times the norm of the largest row if they are random; one unit covers both. The errors
  of sums have a norm of sqrt(n k) units for an (n, n) matrix.
- Singular values: to first order, a singular value s with vectors u and v changes by s u' dB u + u' dX v. For errors of
  random sign and a u that is spread over n rows, the standard deviation of these terms is 0.41 sqrt(2 / n) half units
  times the norm (uniform errors, mantissas from 1 to 2). Four of these are 2.3 / sqrt(n) half units. Half a unit is
  never exceeded.
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>
#include "llmc/cpu/muon.h"           // muon_normalize
#include "llmc/cpu/newton_schulz.h"  // newton_schulz
#include "llmc/ops/muon.h"           // MuonStep
#include "llmc/ops/newton_schulz.h"  // NewtonSchulzOptions
#include "test/op_testing.h"         // Floats, randn

struct Rounding {
    double unit, sums, form;

    // spread: the number of rows over which a singular vector is spread
    Rounding(double unit, int64_t R, int64_t K, double spread)
        : unit(unit),
          sums(kEpsF32 * std::sqrt(double(R) * double(K))),
          form(unit / 2 * std::min(1., 2.3 / std::sqrt(spread))) {}
};

inline double mapped(const NewtonSchulzOptions::Coefficients& p, double s) {
    return s * (p.a + s * s * (p.b + s * s * p.c));
}
inline double value_of_B(const NewtonSchulzOptions::Coefficients& p, double s) { return s * s * (p.b + s * s * p.c); }

// The norms |dB| and |dX|.
inline double norm_of_dB(const NewtonSchulzOptions::Coefficients& p, double largest, const Rounding& rounding) {
    const double norm_A = largest * largest, slope = std::max(std::fabs(p.b), std::fabs(p.b + 2 * p.c * norm_A));
    double norm_B = 0;
    for (int i = 0; i <= 1000; i++) norm_B = std::max(norm_B, std::fabs(value_of_B(p, largest * i / 1000)));
    return (rounding.unit + rounding.sums) * (norm_A * slope + norm_B) +
           rounding.sums * std::fabs(p.c) * norm_A * norm_A;
}
inline double norm_of_dX(double largest, const Rounding& rounding) { return (rounding.unit + rounding.sums) * largest; }

// The interval in which each singular value may lie after all iterations. Intervals are mapped point by point.
struct SingularBand {
    double low, high;
};
inline std::vector<SingularBand> bands_of(const std::vector<double>& values, const NewtonSchulzOptions& options,
                                          const Rounding& rounding) {
    constexpr int kPoints = 32;
    std::vector<SingularBand> bands;
    for (const double s : values) bands.push_back({s, s});
    const auto for_points = [&](const SingularBand& band, auto body) {
        for (int i = 0; i <= kPoints; i++) body(band.low + (band.high - band.low) * i / kPoints);
    };
    for (int iteration = 0; iteration < options.iterations; iteration++) {
        const auto& p = options.of_iteration(iteration);
        double norm_A = 0, norm_B = 0, largest = 0;
        for (const auto& band : bands)
            for_points(band, [&](double s) {
                norm_A = std::max(norm_A, s * s), norm_B = std::max(norm_B, std::fabs(value_of_B(p, s)));
            });
        for (auto& band : bands) {
            SingularBand next{1e9, 0};
            for_points(band, [&](double s) {
                const double from_A = norm_A * std::fabs(p.b + 2 * p.c * s * s) + norm_B;
                const double change =
                    s * ((rounding.form + rounding.sums) * from_A + rounding.sums * std::fabs(p.c) * norm_A * norm_A);
                const double to = std::fabs(mapped(p, s));
                next.low = std::min(next.low, to - change), next.high = std::max(next.high, to + change);
            });
            band = next;
            largest = std::max(largest, band.high);
        }
        const double dX = (rounding.form + rounding.sums) * largest;
        for (auto& band : bands) band = {std::max(0., band.low - dX), band.high + dX};
    }
    return bands;
}

// The relative error bound of the result for a matrix whose singular values are all s. No direction is amplified more
// than another, so the errors of the iterations only add up.
inline double equal_values_tolerance(double s, const NewtonSchulzOptions& options, const Rounding& rounding) {
    double sum = 0;
    for (int iteration = 0; iteration < options.iterations; iteration++) {
        const auto& p = options.of_iteration(iteration);
        sum += (s * norm_of_dB(p, s, rounding) + norm_of_dX(mapped(p, s), rounding)) / mapped(p, s);
        s = mapped(p, s);
    }
    return sum;
}

// The bound on the difference of two results, as a matrix norm: the error of an iteration is amplified by the steepest
// slopes of the later polynomials on [0, largest].
inline double steepest_tolerance(double largest, const NewtonSchulzOptions& options, const Rounding& rounding) {
    double error = 0;
    for (int iteration = 0; iteration < options.iterations; iteration++) {
        const auto& p = options.of_iteration(iteration);
        double steepest = 0, next_largest = 0;
        for (int i = 0; i <= 1000; i++) {
            const double s = largest * i / 1000;
            steepest = std::max(
                {steepest, std::fabs(p.a + s * s * (3 * p.b + 5 * p.c * s * s)), s > 0 ? mapped(p, s) / s : 0});
            next_largest = std::max(next_largest, mapped(p, s));
        }
        error = error * steepest + largest * norm_of_dB(p, largest, rounding) + norm_of_dX(next_largest, rounding);
        largest = next_largest;
    }
    return error;
}

// The min(R, K) singular values, largest first, by one-sided Jacobi rotations in double (Hestenes, 1958,
// doi:10.1137/0106005).
inline std::vector<double> singular_values(const Floats& x, int64_t R, int64_t K) {
    const auto n = size_t(std::min(R, K)), m = size_t(std::max(R, K));
    std::vector<std::vector<double>> v(n, std::vector<double>(m));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++) v[i][j] = double(R <= K ? x[i * m + j] : x[j * n + i]);
    const auto dot = [m](const std::vector<double>& a, const std::vector<double>& b) {
        double sum = 0;
        for (size_t j = 0; j < m; j++) sum += a[j] * b[j];
        return sum;
    };
    bool rotated = true;
    for (int sweep = 0; rotated; sweep++) {
        REQUIRE(sweep < 60);
        rotated = false;
        for (size_t p = 0; p < n; p++)
            for (size_t q = p + 1; q < n; q++) {
                const double pp = dot(v[p], v[p]), qq = dot(v[q], v[q]), pq = dot(v[p], v[q]);
                if (std::fabs(pq) <= 1e-13 * std::sqrt(pp * qq) || std::fabs(pq) < 1e-30) continue;
                rotated = true;
                const double zeta = (qq - pp) / (2 * pq);
                const double t = (zeta < 0 ? -1 : 1) / (std::fabs(zeta) + std::sqrt(1 + zeta * zeta));
                const double cosine = 1 / std::sqrt(1 + t * t), sine = cosine * t;
                for (size_t j = 0; j < m; j++) {
                    const double a = v[p][j], b = v[q][j];
                    v[p][j] = cosine * a - sine * b, v[q][j] = sine * a + cosine * b;
                }
            }
    }
    std::vector<double> values;
    for (const auto& row : v) values.push_back(std::sqrt(dot(row, row)));
    std::sort(values.rbegin(), values.rend());
    return values;
}

// The shape of an input matrix, which muon_normalize() scales. rank < 0: full rank.
struct OrthogonalCase {
    int64_t R, K, rank = -1;
    float decay = 1;  // row r is multiplied by decay^r: singular values over many orders of magnitude

    double spread() const { return std::min(double(std::min(R, K)), decay < 1 ? 1 / (1 - decay * decay) : 1e9); }
};
inline const std::vector<OrthogonalCase> kOrthogonalCases = {{1, 8},
                                                             {1, 1},
                                                             {8, 1},
                                                             {1, 200},
                                                             {33, 8},
                                                             {8, 33},
                                                             {2, 3},
                                                             {3, 2},
                                                             {16, 16},
                                                             {40, 40},
                                                             {24, 96},
                                                             {96, 24},
                                                             {64, 64},
                                                             {130, 16},
                                                             {48, 40, 5},
                                                             {40, 48, 5},
                                                             {24, 24, 1},
                                                             {32, 32, 0},
                                                             {9, 56, 0},
                                                             {200, 8},
                                                             {40, 40, -1, 0.5f},
                                                             {16, 48, 15},
                                                             {64, 24, -1, 0.8f},
                                                             {37, 64}};

inline Floats matrix_of(const OrthogonalCase& shape) {
    const auto [R, K, rank, decay] = shape;
    Floats x(size_t(R * K), 0);
    if (rank < 0) x = randn(x.size(), uint64_t(R * 1000 + K));
    const Floats left = randn(size_t(R * std::max<int64_t>(rank, 0)), 1),
                 right = randn(size_t(K * std::max<int64_t>(rank, 0)), 2);
    for (int64_t i = 0; i < rank; i++)
        for (int64_t r = 0; r < R; r++)
            for (int64_t k = 0; k < K; k++) x[size_t(r * K + k)] += left[size_t(i * R + r)] * right[size_t(i * K + k)];
    for (int64_t r = 0; r < R; r++)
        for (int64_t k = 0; k < K; k++) x[size_t(r * K + k)] *= float(std::pow(decay, r));
    Floats squares(static_cast<size_t>(R));
    for (int64_t r = 0; r < R; r++) squares[size_t(r)] = sum_of_squares(&x[size_t(r * K)], K);
    Cpu cpu(1);
    MuonStep step{};
    step.equal_rows = false;
    muon_normalize(cpu, x.data(), squares.data(), R, K, step);
    return x;
}

inline std::string text_of(const OrthogonalCase& shape) {
    return format("%ld x %ld, rank %ld, decay %g", long(shape.R), long(shape.K), long(shape.rank), double(shape.decay));
}

// Checks the singular values of `result`: as many as `start` has from `lower` on must be at least band.low, none may
// exceed band.high, and those beyond the rank may be at most zeros_below, from rounding alone.
inline void check_singular_values(const Floats& result, const Floats& start, const OrthogonalCase& shape, double lower,
                                  const SingularBand& band, double zeros_below) {
    CHECK(count_not_finite(result) == 0);
    const std::vector<double> before = singular_values(start, shape.R, shape.K);
    const std::vector<double> after = singular_values(result, shape.R, shape.K);
    const auto large = size_t(std::count_if(before.begin(), before.end(), [&](double s) { return s >= lower; }));
    INFO(text_of(shape) << ": band " << band.low << " to " << band.high << ", got " << after.front() << " to "
                        << (large ? after[large - 1] : 0) << " of " << large << " values, the last " << after.back());
    CHECK(after.front() <= band.high);
    if (large) CHECK(after[large - 1] >= band.low);
    if (shape.rank >= 0 && size_t(shape.rank) < after.size()) CHECK(after[size_t(shape.rank)] <= zeros_below);
    if (shape.rank == 0) CHECK(result == Floats(result.size(), 0));
}

// Checks that the result for `start`, rounded to a type with this eps, is in the band given by the polynomials.
inline void check_rounded_band(const Floats& got, const Floats& start, const OrthogonalCase& shape,
                               const NewtonSchulzOptions& options, double eps) {
    const Rounding rounding(eps, shape.R, shape.K, shape.spread());
    // Rounding X moves its singular values by up to a unit of the largest one. So in bf16 only values that are several
    // times larger are checked. The band is computed from the values of `start` itself.
    const std::vector<double> values = singular_values(start, shape.R, shape.K);
    const double lower = std::max(1e-3, 4 * rounding.unit * values[0]);
    SingularBand band{10, 0};
    const auto bands = bands_of(values, options, rounding);
    for (size_t i = 0; i < values.size(); i++) {
        if (values[i] >= lower) band.low = std::min(band.low, bands[i].low);
        band.high = std::max(band.high, bands[i].high);
    }
    // The check is meaningful only if the band is narrow. It may be wide for a few rows, whose errors may all agree in
    // sign.
    if (values[0] > 0 && shape.spread() >= 8) CHECK((band.low > 0.8 && band.high < 1.25));
    double stretched = (rounding.unit + rounding.sums) * values[0];
    for (int i = 0; i < options.iterations; i++) stretched *= options.of_iteration(i).a;
    check_singular_values(got, start, shape, lower, band, 2 * stretched);
}

// Matrices whose singular values are all equal: the CPU's result of many iterations, scaled by `size`.
inline Floats alike(int64_t batch, int64_t R, int64_t K, float size) {
    Floats x;
    for (int64_t i = 0; i < batch; i++) {
        Floats one = randn(size_t(R * K), uint64_t(i + 1), 0.25f / std::sqrt(float(R * K)));
        Cpu cpu(1);
        newton_schulz(cpu, one.data(), 1, R, K, NewtonSchulzOptions::polar_express(20));
        for (const float value : one) x.push_back(size * value);
    }
    return x;
}

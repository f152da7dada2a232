// Moments in bf16: the random bits of their rounding, the exact mean, and that small changes are not lost.
#include "llmc/cpu/moments.h"
#include "llmc/cpu/adamw.h"
#include "test/op_testing.h"  // on_any_threads
#include "test/testing.h"

namespace {

uint32_t float_bits(float x) { return std::bit_cast<uint32_t>(x); }

// {m, v} after one update from m = v = 0 with a constant gradient, which is (1 - beta1) g and (1 - beta2) g^2 rounded.
constexpr AdamWHyper kForgetting{.learning_rate = 0, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0};
constexpr float kSameGradient = 1.2345f;
std::vector<Floats> moments_after_one(Cpu& cpu, size_t n, const MomentRounding& rounding, int64_t updates = 1) {
    Guarded<float> param(n, 0);
    Guarded<bf16> m(Floats(n, 0)), v(Floats(n, 0));
    const Floats grad(n, kSameGradient);
    const AdamWTensor<float, bf16> tensor{param.data(), nullptr,    m.data(),    v.data(),
                                          grad.data(),  int64_t(n), kForgetting, rounding};
    const StepScalars s{.updates = updates, .applied = 1};
    adamw_update(cpu, &tensor, 1, &s);
    return {m.get(), v.get()};
}

double mean_of(const Floats& x) {
    double sum = 0;
    for (const float value : x) sum += value;
    return sum / double(x.size());
}

}  // namespace

TEST_CASE("a moment is rounded to one of its two neighbors in bf16, and over all random bits its mean is exact",
          "[moments]") {
    for (const float x : {1.2345f, -1.2345f, 1.f, 0x1.fep-7f, 3e-40f, -0.f, 0x1.7fp100f}) {
        const double below = to_float(rounded_moment(x, 0)), above = to_float(rounded_moment(x, 0xFFFF));
        double sum = 0;
        for (uint32_t random = 0; random < 0x10000; random++) {
            const double rounded = to_float(rounded_moment(x, random));
            if (rounded != below && rounded != above) FAIL(x << " became " << rounded);
            sum += rounded;  // exact: 16 + 8 bits
        }
        CHECK(sum == 65536 * double(x));
        CHECK((std::fabs(below) <= std::fabs(x) && std::fabs(above) >= std::fabs(x)));
        CHECK((below == above) == ((float_bits(x) & 0xFFFF) == 0));
    }
    CHECK(to_float(rounded_moment(INFINITY, 0xFFFF)) == INFINITY);
    CHECK(to_float(rounded_moment(-INFINITY, 0xFFFF)) == -INFINITY);
    for (const uint32_t nan : {0x7FC00000u, 0x7F800001u, 0xFFFFFFFFu})
        CHECK(std::isnan(to_float(rounded_moment(std::bit_cast<float>(nan), 0xFFFF))));
}

TEST_CASE("moments in sixteen lanes are rounded as one by one, each by its own half of the element's bits",
          "[moments]") {
    const uint64_t key = moments_key(7, "h.0.mlp.c_fc.weight");
    for (const uint64_t first : {uint64_t(0), uint64_t(5), uint64_t(1) << 33}) {
        Floats x = randn(kLanes, first + 1);
        x[1] = NAN, x[2] = INFINITY, x[3] = 1e-41f, x[4] = -0.f;
        uint32_t random[kLanes];
        element_bits(random, key, first);
        for (const Moment moment : {Moment::first, Moment::second}) {
            float got[kLanes];
            store(got, rounded_moments(load(x.data()), random, moment));
            for (int k = 0; k < kLanes; k++) {
                const uint32_t own = element_bits(key, first + uint64_t(k));
                CHECK(random[k] == own);
                const float want =
                    to_float(rounded_moment(x[size_t(k)], moment == Moment::first ? own & 0xFFFF : own >> 16));
                CHECK((float_bits(got[k]) == float_bits(want) || (std::isnan(got[k]) && std::isnan(want))));
            }
        }
    }
}

TEST_CASE("moments: random bits follow from seed, parameter, step and element alone", "[moments]") {
    const size_t n = 20001;
    const MomentRounding rounding{moments_key(1, "wte.weight"), 0};
    const auto all = on_any_threads([&](Cpu& cpu) { return moments_after_one(cpu, n, rounding); });
    Cpu cpu(1);
    // A piece of it, wherever it is cut.
    for (const size_t begin : {size_t(1), size_t(8), size_t(16384)}) {
        const auto piece = moments_after_one(cpu, 77, {rounding.key, begin});
        for (const size_t k : {0, 1}) CHECK(std::equal(piece[k].begin(), piece[k].end(), all[k].begin() + long(begin)));
    }
    CHECK(moments_after_one(cpu, n, {moments_key(2, "wte.weight"), 0}) != all);
    CHECK(moments_after_one(cpu, n, {moments_key(1, "wpe.weight"), 0}) != all);
    CHECK(moments_after_one(cpu, n, rounding, 2) != all);
}

TEST_CASE("moments: over many elements the mean is what is rounded, and one says nothing of another", "[moments]") {
    const size_t n = 1 << 18;
    Cpu cpu;
    const auto got = moments_after_one(cpu, n, {moments_key(3, "wte.weight"), 0});
    const double want[] = {(1 - kForgetting.beta1) * kSameGradient,
                           (1 - kForgetting.beta2) * kSameGradient * kSameGradient};
    double up_of[2];
    for (const size_t k : {0, 1}) {
        INFO((k == 0 ? "m" : "v"));
        const auto [low, high] = std::minmax_element(got[k].begin(), got[k].end());
        const double unit = double(*high) - *low, p = (want[k] - *low) / unit;
        CHECK(unit == std::exp2(std::floor(std::log2(want[k])) - 7));
        // Five deviations of a mean of n values, each one of two that are a unit apart; and roundings of float.
        CHECK(std::fabs(mean_of(got[k]) - want[k]) <= 5 * unit * std::sqrt(p * (1 - p) / double(n)) + 4e-7 * want[k]);
        up_of[k] = p;
    }
    // Covariances of what goes up: m and v of an element, and m of neighbors.
    const auto covariance = [&](const Floats& a, const Floats& b, size_t shift) {
        double sum = 0;
        const float a_low = *std::min_element(a.begin(), a.end()), b_low = *std::min_element(b.begin(), b.end());
        const double a_p = up_of[&a == &got[1]], b_p = up_of[&b == &got[1]];
        for (size_t i = shift; i < n; i++) sum += ((a[i] > a_low) - a_p) * ((b[i - shift] > b_low) - b_p);
        return std::fabs(sum / double(n));
    };
    const double bound = 5 * 0.25 / std::sqrt(double(n));  // deviations of at most a half each
    CHECK(covariance(got[0], got[1], 0) <= bound);
    for (const size_t shift : {1, 2, 16}) CHECK(covariance(got[0], got[0], shift) <= bound);
}

TEST_CASE("moments: a second moment in bf16 forgets, though a step changes it by less than half a unit", "[moments]") {
    const size_t n = 4096;
    const int64_t steps = 1000;
    Cpu cpu;
    Guarded<float> param(n, 0);
    Guarded<bf16> m(Floats(n, 0)), v(Floats(n, 1));
    const Floats grad(n, 0);
    AdamWTensor<float, bf16> tensor{param.data(), nullptr,    m.data(),    v.data(),
                                    grad.data(),  int64_t(n), kForgetting, {moments_key(4, "wte.weight"), 0}};
    tensor.hyper.beta2 = 0.999;
    for (int64_t step = 1; step <= steps; step++) {
        const StepScalars s{.updates = step, .applied = 1};
        adamw_update(cpu, &tensor, 1, &s);
    }
    // A rounding adds a variance of at most (2^-8 / 2)^2, below 1; five deviations of the mean of n sums of them.
    const double bound = 5 * 0x1p-9 * std::sqrt(double(steps) / double(n));
    CHECK(std::fabs(mean_of(v.get()) - std::pow(0.999, double(steps))) <= bound);
    CHECK(bound < 0.01);
    CHECK(to_float(to_bf16(0.999f)) == 1);  // to nearest it would be the first value for ever
}

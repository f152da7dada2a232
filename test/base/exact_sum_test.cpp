// Sums without rounding: the exact total, rounded once, in any order and from any parts.
#include "llmc/base/exact_sum.h"
#include <cstring>
#include "test/testing.h"

namespace {

bool same_words(const ExactSum& a, const ExactSum& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

template <class T>
ExactSum sum_of(const std::vector<T>& numbers) {
    ExactSum sum;
    for (const T x : numbers) sum.add(x);
    return sum;
}

// The exact total rounded once, by other means: as numbers that do not overlap (Shewchuk, 1997, "Adaptive Precision
// Floating-Point Arithmetic"), added from the largest down, and a tie decided by what is below it.
double total_of(const std::vector<double>& numbers) {
    std::vector<double> parts;  // from the smallest up
    for (double x : numbers) {
        size_t kept = 0;
        for (double y : parts) {
            if (std::fabs(x) < std::fabs(y)) std::swap(x, y);
            const double high = x + y, low = y - (high - x);
            if (low != 0) parts[kept++] = low;
            x = high;
        }
        parts.resize(kept);
        parts.push_back(x);
    }
    double high = 0, low = 0;
    while (!parts.empty() && low == 0) {
        const double x = high, y = parts.back();
        parts.pop_back();
        high = x + y;
        low = y - (high - x);
    }
    if (!parts.empty() && low != 0 && (low < 0) == (parts.back() < 0)) {
        const double twice = 2 * low, further = high + twice;
        if (twice == further - high) high = further;
    }
    return high;
}

// With a sign, 53 random bits and an exponent in [lowest, highest].
double any_number(Rng& rng, int lowest, int highest) {
    const double size = std::ldexp(1 + rng.uniform(), lowest + int(rng.below(uint64_t(highest - lowest + 1))));
    return rng.below(2) ? -size : size;
}

constexpr double sum_at_compile_time() {
    ExactSum sum;
    sum.add(0.1);
    sum.add(1e20);
    sum.add(-3.f);
    sum.add(-1e20);
    return sum.value();
}
static_assert(sum_at_compile_time() == -2.9);

}  // namespace

TEST_CASE("any one number comes back, wherever it lies", "[exact_sum]") {
    Rng rng(1, Stream::tests);
    CHECK(ExactSum().value() == 0);
    for (int exponent = ExactSum::kLowest + 52; exponent < ExactSum::kHighest; exponent++)
        for (int i = 0; i < 20; i++) {
            const double x = any_number(rng, exponent, exponent);
            if (sum_of<double>({x}).value() != x) FAIL("got " << sum_of<double>({x}).value() << " of " << x);
        }
    const double largest = std::nextafter(0x1p288, 0);
    CHECK(sum_of<double>({largest}).value() == largest);
    CHECK(sum_of<double>({-largest, -largest}).value() == -2 * largest);
}

TEST_CASE("what lies below 2^-192 is dropped, of negative numbers too", "[exact_sum]") {
    const double smallest = 0x1p-192;
    for (const double sign : {1., -1.}) {
        CHECK(sum_of<double>({sign * smallest}).value() == sign * smallest);
        CHECK(sum_of<double>({sign * 1.75 * smallest}).value() == sign * smallest);
        CHECK(sum_of<double>({sign * (0x1p-140 + 0x1p-192)}).value() == sign * (0x1p-140 + 0x1p-192));
        CHECK(sum_of<double>({sign * (0x1p-141 + 0x1p-193)}).value() == sign * 0x1p-141);
        for (const double dropped : {0., 0.99 * smallest, 0x1p-193, 0x1p-244, 0x1p-245, 0x1p-300, 1e-310})
            CHECK(same_words(sum_of<double>({sign * dropped}), ExactSum()));
    }
}

TEST_CASE("totals are rounded once, to nearest, ties to even", "[exact_sum]") {
    const double half = 0x1p-53, unit = 0x1p-52;
    for (const double sign : {1., -1.})
        for (const int exponent : {0, -11, -31, -32, -33, 95, -130, 200}) {  // anywhere in a word
            const auto rounded = [&](std::vector<double> numbers) {
                for (double& x : numbers) x = std::ldexp(sign * x, exponent);
                return std::ldexp(sign * sum_of(numbers).value(), -exponent);
            };
            INFO("sign " << sign << ", exponent " << exponent);
            CHECK(rounded({1, half}) == 1);
            CHECK(rounded({1 + unit, half}) == 1 + 2 * unit);
            CHECK(rounded({1, half, 0x1p-62}) == 1 + unit);  // the last bit of the 64 that are looked at
            CHECK(rounded({1, half, -0x1p-62}) == 1);
            CHECK(rounded({2 - unit, half}) == 2);
            CHECK(rounded({2, -half}) == 2);
            CHECK(rounded({2, -unit}) == 2 - unit);
            if (exponent < -100) continue;
            for (const double little : {0x1p-63, 0x1p-64, 0x1p-65, 0x1p-70, 0x1p-90, 0x1p-91, 0x1p-150})
                for (const double first : {1., 1.5, 2 - unit}) {
                    CHECK(rounded({first, half, little}) == first + unit);
                    CHECK(rounded({first, half, -little}) == first);
                }
        }
}

TEST_CASE("any order and any parts give the same words, and the exact total rounded once", "[exact_sum]") {
    Rng rng(2, Stream::tests);
    for (int round = 0; round < 300; round++) {
        const int lowest = ExactSum::kLowest + 52 + int(rng.below(300)), width = int(rng.below(120));
        const int highest = std::min(lowest + width, ExactSum::kHighest - 1);
        std::vector<double> numbers(1 + rng.below(60));
        for (double& x : numbers) x = any_number(rng, lowest, highest);
        // Nearly all of it cancels in every other round.
        if (round % 2)
            for (size_t i = numbers.size(); i-- > 0;) numbers.push_back(-numbers[i] * (i % 7 ? 1 : 1 + 0x1p-52));
        const ExactSum sum = sum_of(numbers);
        INFO("round " << round);
        CHECK(sum.value() == total_of(numbers));

        for (size_t i = numbers.size(); i-- > 1;) std::swap(numbers[i], numbers[rng.below(i + 1)]);
        ExactSum parts[3];
        for (const double x : numbers) parts[rng.below(3)].add(x);
        ExactSum joined = parts[2];
        joined.add(parts[0]);
        joined.add(parts[1]);
        CHECK(same_words(joined, sum));
    }
}

TEST_CASE("a float is added as the double that it is", "[exact_sum]") {
    Rng rng(3, Stream::tests);
    for (int i = 0; i < 100000; i++) {
        const float x = std::bit_cast<float>(uint32_t(rng.next()));  // of all sizes; infinity and NaN too
        if (!same_words(sum_of<float>({x}), sum_of<double>({double(x)}))) FAIL(x << " as a float is another number");
    }
    const float infinity = INFINITY, nan = NAN;
    for (const float x :
         {0.f, -0.f, 0x1p-149f, -0x1p-149f, 0x1.fffffcp-127f, 0x1p-126f, 0x1.fffffep127f, infinity, nan})
        CHECK(same_words(sum_of<float>({x}), sum_of<double>({double(x)})));
    CHECK(sum_of<float>({-0x1.fffffep127f}).value() == -0x1.fffffep127);
}

TEST_CASE("2^31 additions of the largest pieces overflow no word", "[exact_sum]") {
    for (const double sign : {1., -1.})
        for (const int exponent : {-140, 19, 20, 21, 287}) {  // 20: 52 bits below it begins a word
            const double x = sign * std::ldexp(2 - 0x1p-52, exponent);
            ExactSum sum = sum_of<double>({x});
            for (int i = 0; i < 31; i++) sum.add(ExactSum(sum));
            CHECK(sum.value() == 0x1p31 * x);
        }
}

TEST_CASE("what is not finite is counted and makes the total NaN", "[exact_sum]") {
    const double infinity = INFINITY, nan = NAN;
    for (const double bad : {infinity, -infinity, nan, -nan, 0x1p288, -0x1p288, 1e300}) {
        ExactSum sum = sum_of<double>({1, bad, bad, 2});
        CHECK(sum.not_finite == 2);
        CHECK(std::isnan(sum.value()));
        ExactSum other = sum_of<double>({3});
        other.add(sum);
        CHECK(std::isnan(other.value()));
    }
    const float bad_floats[] = {INFINITY, -INFINITY, NAN, -NAN};
    for (const float bad : bad_floats) CHECK(sum_of<float>({bad}).not_finite == 1);
}

// FP8 numbers: every code, every border between two of them, and PyTorch's.
#include "llmc/base/fp8.h"
#include <bit>
#include "test/fixture.h"  // Fixture
#include "test/testing.h"

static constexpr float kInfinity = std::numeric_limits<float>::infinity();
static constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN();

// The value of a code, from its fields.
template <class Fp8>
static double value_of(uint32_t code) {
    const int M = Fp8::kMantissaBits;
    const int exponent = int(code >> M & ((1u << (7 - M)) - 1)), mantissa = int(code & ((1u << M) - 1));
    const int units = exponent == 0 ? mantissa : mantissa + (1 << M);
    return std::ldexp(code & 0x80 ? -units : units, std::max(exponent, 1) - Fp8::kBias - M);
}

TEMPLATE_TEST_CASE("fp8: every code's value is its fields'", "[fp8]", e4m3, e5m2) {
    int wrong = 0;
    for (uint32_t code = 0; code < 256; code++) {
        const float got = to_float(TestType{uint8_t(code)});
        const uint32_t magnitude = code & 0x7F;
        INFO("code " << code << " is " << got);
        wrong += std::signbit(got) != (code >= 0x80);
        if (magnitude < TestType::kFirstSpecial)
            wrong += double(got) != value_of<TestType>(code);
        else if (std::is_same_v<TestType, e5m2> && magnitude == 0x7C)
            wrong += std::fabs(got) != kInfinity;
        else
            wrong += !std::isnan(got);
    }
    CHECK(wrong == 0);
    CHECK(double(TestType::kMax) == value_of<TestType>(TestType::kFirstSpecial - 1));
}

TEMPLATE_TEST_CASE("fp8: every number is kept, and every border between two goes to the even one", "[fp8]", e4m3,
                   e5m2) {
    int wrong = 0;
    for (uint32_t code = 0; code < TestType::kFirstSpecial; code++) {
        const float x = to_float(TestType{uint8_t(code)});
        wrong += to_fp8<TestType>(x).bits != code;
        wrong += to_fp8<TestType>(-x).bits != (code | 0x80);
        if (code + 1 == TestType::kFirstSpecial) break;
        const float middle = (x + to_float(TestType{uint8_t(code + 1)})) / 2;
        for (const float sign : {1.f, -1.f}) {
            const uint32_t minus = sign < 0 ? 0x80 : 0;
            wrong += to_fp8<TestType>(sign * middle).bits != (minus | (code % 2 == 0 ? code : code + 1));
            wrong += to_fp8<TestType>(sign * std::nextafter(middle, 0.f)).bits != (minus | code);
            wrong += to_fp8<TestType>(sign * std::nextafter(middle, kInfinity)).bits != (minus | (code + 1));
        }
    }
    CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("fp8: too large is the largest number, NaN is NaN", "[fp8]", e4m3, e5m2) {
    const uint32_t largest = TestType::kFirstSpecial - 1;
    for (const float x : {std::nextafter(TestType::kMax, kInfinity), TestType::kMax * 1.0625f, TestType::kMax * 1.25f,
                          2 * TestType::kMax, 1e30f, std::numeric_limits<float>::max(), kInfinity}) {
        CHECK(to_fp8<TestType>(x).bits == largest);
        CHECK(to_fp8<TestType>(-x).bits == (largest | 0x80));
    }
    for (const uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu})
        CHECK(std::isnan(to_float(to_fp8<TestType>(std::bit_cast<float>(bits)))));
    CHECK(to_fp8<TestType>(1e-30f).bits == 0);
    CHECK(to_fp8<TestType>(-0x1p-149f).bits == 0x80);
}

TEMPLATE_TEST_CASE("fp8 agrees with PyTorch", "[fp8]", e4m3, e5m2) {
    const Fixture f("fp8");
    const std::string name = std::is_same_v<TestType, e4m3> ? "e4m3." : "e5m2.";
    const Floats values = f.floats("want." + name + "values"), inp = f.floats(name + "inp");
    const std::vector<int32_t> codes = f.ints("want." + name + "codes");
    REQUIRE(values.size() == 256);
    REQUIRE(codes.size() == inp.size());
    int wrong = 0;
    for (uint32_t code = 0; code < 256; code++) {
        const float got = to_float(TestType{uint8_t(code)}), want = values[code];
        wrong += !(got == want || (std::isnan(got) && std::isnan(want)));
    }
    CHECK(wrong == 0);
    for (size_t i = 0; i < inp.size(); i++) wrong += to_fp8<TestType>(inp[i]).bits != codes[i];
    CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("fp8: a tensor is scaled so that its largest magnitude just fits", "[fp8]", e4m3, e5m2) {
    const float largest = TestType::kMax, floor = float(double(largest) / 1e-12);
    CHECK(fp8_scale<TestType>(largest) == 1);
    CHECK(fp8_scale<TestType>(2 * largest) == 0.5f);
    CHECK(fp8_scale<TestType>(3) == float(double(largest) / 3));
    CHECK(fp8_scale<TestType>(0) == floor);
    CHECK(fp8_scale<TestType>(1e-13f) == floor);
    CHECK(fp8_scale<TestType>(1e-12f) == floor);  // the float lies below
    CHECK(fp8_scale<TestType>(1.5e-12f) == float(double(largest) / double(1.5e-12f)));
    CHECK(fp8_scale<TestType>(kInfinity) == 0);
    CHECK(std::isnan(fp8_scale<TestType>(kQuietNan)));
}

TEST_CASE("fp8 suits layers whose sides are multiples of 16 and at least 128", "[fp8]") {
    CHECK(suits_fp8(128, 128));
    CHECK(suits_fp8(768, 50304));
    CHECK(!suits_fp8(112, 768));
    CHECK(!suits_fp8(768, 112));
    CHECK(!suits_fp8(136, 768));
    CHECK(!suits_fp8(768, 136));
}

TEST_CASE("mx: the scale is the least power of two with which nothing saturates", "[fp8]") {
    const auto scale_of = [](float largest) { return mx_scale(std::bit_cast<uint32_t>(largest)); };
    for (int exponent = -118; exponent <= 119; exponent++) {
        INFO("2^" << exponent);
        const float most = std::ldexp(448.f, exponent);
        for (const float largest : {most, std::nextafter(most / 2, kInfinity)}) {
            CHECK(to_float(scale_of(largest)) == std::ldexp(1.f, exponent));
            CHECK(mx_inverse(scale_of(largest)) == std::ldexp(1.f, -exponent));
        }
    }
    const float most_of_all = std::numeric_limits<float>::max();
    CHECK(to_float(scale_of(most_of_all)) == std::ldexp(1.f, 120));
    CHECK(most_of_all * mx_inverse(scale_of(most_of_all)) == 256 * (1 - 0x1p-24f));
    for (const float tiny : {0.f, std::numeric_limits<float>::denorm_min(), 0x1p-126f, std::ldexp(448.f, -127)}) {
        CHECK(to_float(scale_of(tiny)) == 0x1p-127f);
        CHECK(mx_inverse(scale_of(tiny)) == 0x1p127f);
    }
    for (const float strange : {kInfinity, kQuietNan}) {
        CHECK(std::isnan(to_float(scale_of(strange))));
        CHECK(std::isnan(mx_inverse(scale_of(strange))));
    }
}

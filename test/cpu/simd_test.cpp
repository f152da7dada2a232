// The sixteen lanes: exact operations, and the documented accuracy of the exponential.
#include "llmc/cpu/simd.h"
#include <algorithm>
#include <bit>
#include <numeric>
#include "test/testing.h"

// exp of x in all lanes, one of which is given. Not inlined: g++ 12 crashes on it inside of Catch2's macros.
__attribute__((noinline)) static float exp_in_lanes(float x, int lane) {
    float lanes[kLanes];
    store(lanes, exp(broadcast(x)));
    return lanes[lane];
}

TEST_CASE("exp is within 1.5 ulp over all normal results and right at its borders", "[simd]") {
    double worst = 0, at = 0;
    int64_t wrong = 0;
    const auto check = [&](float x) {
        const float got = exp_in_lanes(x, 0);
        const double want = std::exp(double(x));
        if (want < 0x1p-126 || want > std::numeric_limits<float>::max()) {
            // the very last floats of the range may fall on either side
            const double away = want < 1 ? want / 0x1p-126 : double(std::numeric_limits<float>::max()) / want;
            if (away < 1 - 1e-6 && got != (want < 1 ? 0 : std::numeric_limits<float>::infinity())) wrong++;
            return;
        }
        const double ulps = std::fabs(double(got) - want) / std::ldexp(1, std::ilogb(want) - 23);
        if (!(ulps <= worst)) worst = ulps, at = double(x);
    };
    // Every 9973rd float of both signs up to infinity.
    for (uint32_t bits = 0; bits < 0x7F800000; bits += 9973)
        check(std::bit_cast<float>(bits)), check(-std::bit_cast<float>(bits));
    INFO("worst at " << at);
    CHECK(worst <= 1.5);
    CHECK(wrong == 0);

    const float inf = std::numeric_limits<float>::infinity();
    const auto at_lane = [](float x) { return exp_in_lanes(x, 5); };
    CHECK(at_lane(0) == 1);
    CHECK(at_lane(-0.f) == 1);
    CHECK(at_lane(-inf) == 0);
    CHECK(at_lane(-87.4f) == 0);  // results below the normal numbers are zero
    CHECK(at_lane(inf) == inf);
    CHECK(at_lane(88.73f) == inf);
    CHECK(std::isfinite(at_lane(88.72283f)));  // the last one
    CHECK(at_lane(std::nextafter(88.72283f, 89.f)) == inf);
    CHECK(std::isnan(at_lane(std::nanf(""))));
}

// Not inlined: see exp_in_lanes.
__attribute__((noinline)) static void many_at_once(float* out, const float* x) {
    constexpr Vectors<4> kWidth{};
    const auto v = load(x, kWidth);
    store(out, select_lanes(min(max(exp(v), fma(v, v, -2.f)) - 1, 3), 0x0F5A'1234'FFFF'8001, -5), kWidth);
}
__attribute__((noinline)) static void one_at_a_time(float* out, const float* x) {
    for (int i = 0; i < 4; i++) {
        const F32x16 v = load(x + i * kLanes);
        const F32x16 y = min(max(exp(v), fma(v, v, -2.f)) - 1, 3);
        store(out + i * kLanes, select_lanes(y, uint16_t(0x0F5A'1234'FFFF'8001 >> i * kLanes), -5));
    }
}
__attribute__((noinline)) static void bounded(float* out, const float* x, float bound) {
    store(out, min(load(x), bound));
}
__attribute__((noinline)) static float added(const float* x) {
    float lanes[kLanes];
    store(lanes, add_in_order(zeros(), load(x, Vectors<4>{})));
    return lanes[3];
}

TEST_CASE("four vectors at once give the bits of one after the other", "[simd]") {
    Floats x = randn(4 * kLanes, 5);
    x[17] = std::nanf(""), x[40] = 200, x[41] = -200;
    float at_once[4 * kLanes], alone[4 * kLanes];
    many_at_once(at_once, x.data());
    one_at_a_time(alone, x.data());
    CHECK(std::memcmp(at_once, alone, sizeof alone) == 0);

    Floats y(4 * kLanes);
    y[3] = 0x1p24f, y[19] = 1, y[35] = 1, y[51] = 2;  // 2^24 + 1 is no float: in this order the ones are lost
    CHECK(added(y.data()) == 0x1p24f + 2);
}

TEST_CASE("a bound is kept by all but NaN", "[simd]") {
    Floats x(kLanes, 2);
    x[0] = 3, x[1] = -4, x[2] = std::nanf(""), x[3] = std::numeric_limits<float>::infinity(), x[4] = -x[3];
    float got[kLanes];
    bounded(got, x.data(), 2.5f);
    CHECK(got[0] == 2.5f);
    CHECK(got[1] == -4);
    CHECK(std::isnan(got[2]));
    CHECK(got[3] == 2.5f);
    CHECK(got[4] == x[4]);
    CHECK(got[5] == 2);
}

TEST_CASE("the lanes are summed in one fixed tree", "[simd]") {
    // 2^24 + 1 is no float: the order of the additions shows in the result.
    Floats x(kLanes, 1);
    x[0] = 0x1p24f;
    // Lanes 0 and 8 first: 2^24 + 1 -> 2^24. Then 0 and 4, where 4 holds 2: 2^24 + 2; 0 and 2 (+4); 0 and 1 (+8).
    CHECK(sum_lanes(load(x.data())) == 0x1p24f + 14);
    std::iota(x.begin(), x.end(), -3.f);
    CHECK(sum_lanes(load(x.data())) == 72);
    CHECK(max_lanes(load(x.data())) == 12);
    for (int lane = 0; lane < kLanes; lane++) {
        Floats with_nan(kLanes, 1);
        with_nan[size_t(lane)] = std::nanf("");
        CHECK(std::isnan(max_lanes(load(with_nan.data()))));
        CHECK(std::isnan(sum_lanes(load(with_nan.data()))));
        CHECK(std::isnan(max_lanes(max(load(with_nan.data()), broadcast(5)))) == true);
        CHECK(std::isnan(max_lanes(max(broadcast(5), load(with_nan.data())))) == true);
    }
}

// Not inlined into a test case: g++ 12 breaks there.
__attribute__((noinline)) static void reduced(float* sums, float* largest, const Floats& values) {
    F32x16 rows[kLanes];
    for (int r = 0; r < kLanes; r++) rows[r] = load(&values[size_t(r * kLanes)]);
    store(sums, sum_rows(rows));
    store(largest, max_rows(rows));
}
__attribute__((noinline)) static void selected(float* out, const float* x, uint16_t lanes) {
    store(out, select_lanes(load(x), lanes, -7));
}
__attribute__((noinline)) static void paired(bf16* out, const float* first, const float* second) {
    store_pairs(out, load(first), load(second));
}

TEST_CASE("sixteen rows are reduced as each of them is", "[simd]") {
    for (int seed = 0; seed < 20; seed++) {
        const Floats values = randn(kLanes * kLanes, uint64_t(seed));
        float sums[kLanes], largest[kLanes];
        reduced(sums, largest, values);
        for (int r = 0; r < kLanes; r++) {
            CHECK(sums[r] == sum_lanes(load(&values[size_t(r * kLanes)])));
            CHECK(largest[r] == *std::max_element(&values[size_t(r * kLanes)], &values[size_t(r * kLanes)] + kLanes));
        }
    }
}

TEST_CASE("lanes are selected by their bits, and rows paired in order", "[simd]") {
    const Floats x = randn(kLanes, 1), y = randn(kLanes, 2);
    for (const uint16_t lanes : {0x0000, 0x0001, 0x8000, 0x5A3C, 0xFFFF}) {
        float out[kLanes];
        selected(out, x.data(), lanes);
        for (int i = 0; i < kLanes; i++) CHECK(out[i] == (lanes >> i & 1 ? x[size_t(i)] : -7.f));
    }
    bf16 pairs[2 * kLanes];
    paired(pairs, x.data(), y.data());
    for (int i = 0; i < kLanes; i++) {
        CHECK(pairs[2 * i].bits == to_bf16(x[size_t(i)]).bits);
        CHECK(pairs[2 * i + 1].bits == to_bf16(y[size_t(i)]).bits);
    }
}

TEST_CASE("multiply-adds are rounded once", "[simd]") {
    const float a = 1 + 0x1p-23f;  // a * a - (1 + 2^-22) = 2^-46, which two roundings lose
    float got[kLanes];
    store(got, fma(broadcast(a), broadcast(a), broadcast(-(1 + 0x1p-22f))));
    for (const float lane : got) CHECK(lane == 0x1p-46f);
}

TEST_CASE("for_lanes and for_lanes_unrolled cover a row once, and partial loads and stores keep to it", "[simd]") {
    for (int64_t n = 0; n <= 150; n++) {
        const Floats from = randn(size_t(n), uint64_t(n));
        Guarded to(static_cast<size_t>(n)), to_many(static_cast<size_t>(n));
        for_lanes(n, [&](int64_t i, auto width) { store(to + i, load(from.data() + i, width, 7) + 1, width); });
        for_lanes_unrolled(
            n, [&](int64_t i, auto width) { store(to_many + i, load(from.data() + i, width, 7) + 1, width); });
        Floats want = from;
        for (float& x : want) x += 1;
        CHECK(to.get() == want);
        CHECK(to_many.get() == want);
        F32x16 rest = zeros();
        for_lanes(n, [&](int64_t i, auto width) { rest = load(from.data() + i, width, 7); });
        if (n % kLanes) {
            float lanes[kLanes];
            store(lanes, rest);
            for (int64_t lane = n % kLanes; lane < kLanes; lane++) CHECK(lanes[lane] == 7);
        }
    }
}

// Not inlined: see exp_in_lanes.
__attribute__((noinline)) static void round_lanes(bf16* out, const float* inp, int n) {
    if (n == kLanes)
        store(out, load(inp));
    else
        store(out, load(inp, n), n);
}
__attribute__((noinline)) static void widen_lanes(float* out, const bf16* inp, int n, float rest) {
    store(out, n == kLanes ? load(inp, kFull, rest) : load(inp, n, rest));
}

TEST_CASE("lanes of bf16 round and widen as single values do", "[simd]") {
    // Every 9973rd float, subnormal ones, infinities and NaNs among them, and ties.
    Floats values;
    for (const uint32_t bits : {0x3F808000u, 0x3F818000u, 0x7F7FFFFFu, 0x7F800001u, 0xFF800000u, 0x00018000u, 1u})
        values.push_back(std::bit_cast<float>(bits));
    for (uint64_t bits = 0; bits < uint64_t(1) << 32; bits += 9973)
        values.push_back(std::bit_cast<float>(uint32_t(bits)));
    values.resize(values.size() / kLanes * kLanes);
    size_t wrong = 0;
    for (size_t at = 0; at < values.size(); at += kLanes) {
        bf16 rounded[kLanes];
        float wide[kLanes];
        round_lanes(rounded, &values[at], kLanes);
        widen_lanes(wide, rounded, kLanes, 0);
        for (size_t i = 0; i < kLanes; i++) {
            wrong += rounded[i].bits != to_bf16(values[at + i]).bits;
            wrong += std::bit_cast<uint32_t>(wide[i]) != uint32_t(rounded[i].bits) << 16;
        }
    }
    CHECK(wrong == 0);
    for (int n = 1; n < kLanes; n++) {
        bf16 rounded[kLanes] = {};
        rounded[n].bits = 0x1234;  // not to be touched
        round_lanes(rounded, &values[size_t(n) * kLanes], n);
        CHECK(rounded[n].bits == 0x1234);
        float wide[kLanes];
        widen_lanes(wide, rounded, n, -2);
        for (int i = 0; i < kLanes; i++) {
            const float want = i < n ? to_float(to_bf16(values[size_t(n * kLanes + i)])) : -2;
            CHECK((wide[i] == want || (wide[i] != wide[i] && want != want)));
        }
    }
}

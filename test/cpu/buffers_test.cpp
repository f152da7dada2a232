// Casts between float and bf16: to nearest, ties to even, and back exactly. accumulate adds one buffer to another, and
// touches nothing else.
#include "llmc/cpu/buffers.h"
#include <bit>
#include "test/op_testing.h"
#include "test/testing.h"

TEST_CASE("accumulate adds, on any number of threads", "[buffers]") {
    for (const int64_t n : {0, 1, 7, 16384, 40001}) {
        for (const int threads : {1, 3}) {
            Cpu cpu(threads);
            std::vector<float> to(static_cast<size_t>(n) + 1, 0.1f), from(static_cast<size_t>(n) + 1, 7);
            for (int64_t i = 0; i < n; i++) from[size_t(i)] = float(i) * 0.3f;
            accumulate(cpu, to.data(), from.data(), n);
            int64_t wrong = 0;
            for (int64_t i = 0; i < n; i++) wrong += to[size_t(i)] != 0.1f + from[size_t(i)];
            CHECK(wrong == 0);
            CHECK(to.back() == 0.1f);
        }
    }
}

// Of a list, one of which is empty.
TEST_CASE("accumulate_rounded rounds each sum by the bits of its element, micro-batch and update", "[buffers]") {
    const size_t n = 20003;
    const Floats first = randn(n, 1), second = randn(n, 2), short_first = randn(7, 3);
    const MomentRounding rounding{moments_key(1, "wte.weight"), 5}, other{moments_key(1, "wpe.weight"), 0};
    const StepScalars s{.updates = 8};
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded<bf16> to(Floats(n, NAN)), none(Floats(1, 3)), shorter(Floats(7, NAN));
        std::vector<Floats> results;
        for (const int64_t micro : {0, 1}) {
            const RoundedSum sums[] = {{to.data(), (micro == 0 ? first : second).data(), int64_t(n), rounding},
                                       {none.data(), nullptr, 0, {}},
                                       {shorter.data(), short_first.data(), 7, other}};
            accumulate_rounded(cpu, sums, 3, micro, &s);
            results.push_back(to.get());
        }
        results.push_back(none.get()), results.push_back(shorter.get());
        return results;
    });
    Floats want[2];
    for (const int64_t micro : {0, 1}) {
        const uint64_t key = rounded_sum_key(rounding, s.updates, micro);
        for (size_t i = 0; i < n; i++) {
            const float x = micro == 0 ? first[i] : want[0][i] + second[i];
            want[micro].push_back(to_float(rounded_moment(x, element_bits(key, rounding.first + i) & 0xFFFF)));
        }
        check_equal("sum", got[size_t(micro)], want[micro]);
    }
    CHECK(got[2] == Floats{3});
    CHECK(count_not_finite(got[3]) == 0);
    // The bits are those of no other micro-batch or update, nor those of moments and weights.
    const uint64_t key = rounded_sum_key(rounding, 8, 1);
    for (const uint64_t another :
         {rounded_sum_key(rounding, 8, 0), rounded_sum_key(rounding, 9, 1), moments_key_of(rounding.key, 9),
          moments_key_of(other_rounding(rounding, Stream::rounded_weights).key, 9)})
        CHECK(key != another);
}

TEST_CASE("accumulate_rounded: the mean of many sums is exact, though each term is below half a unit", "[buffers]") {
    const size_t n = 4096;
    const int64_t terms = 256;
    Cpu cpu;
    Guarded<bf16> to(Floats(n, 0));
    const Floats one(n, 1), small(n, 0x1p-10f);
    const StepScalars s{.updates = 0};
    for (int64_t micro = 0; micro <= terms; micro++) {
        const RoundedSum sum{to.data(), micro == 0 ? one.data() : small.data(), int64_t(n), {moments_key(2, "x"), 0}};
        accumulate_rounded(cpu, &sum, 1, micro, &s);
    }
    double mean = 0;
    for (const float x : to.get()) mean += x / double(n);
    // Between 1 and 2 a unit is 2^-7, and a rounding's variance at most a quarter of its square; five deviations.
    const double bound = 5 * 0x1p-8 * std::sqrt(double(terms) / double(n));
    CHECK(std::fabs(mean - 1.25) <= bound);
    CHECK(bound < 0.01);
    CHECK(to_float(to_bf16(1 + 0x1p-10f)) == 1);
    // What is not a number stays that, and infinity stays infinity.
    const Floats odd = {NAN, INFINITY, -INFINITY, 0};
    Guarded<bf16> sums(Floats(4, 1));
    const RoundedSum sum{sums.data(), odd.data(), 4, {moments_key(2, "x"), 0}};
    accumulate_rounded(cpu, &sum, 1, 3, &s);
    CHECK(std::isnan(sums.get()[0]));
    CHECK((sums.get()[1] == INFINITY && sums.get()[2] == -INFINITY && sums.get()[3] == 1));
}

static uint16_t bits_of(float x) {
    Cpu cpu(1);
    bf16 y;
    cast(cpu, &y, &x, 1);
    return y.bits;
}

TEST_CASE("cast to bf16 rounds to nearest, ties to even", "[buffers]") {
    CHECK(bits_of(1.f) == 0x3F80);
    CHECK(bits_of(1.f + 0x1p-8f) == 0x3F80);             // half a unit: to the even one below
    CHECK(bits_of(1.f + 0x1p-7f + 0x1p-8f) == 0x3F82);   // half a unit: to the even one above
    CHECK(bits_of(1.f + 0x1p-8f + 0x1p-20f) == 0x3F81);  // more than half
    CHECK(bits_of(-1.f - 0x1p-8f - 0x1p-20f) == 0xBF81);
    CHECK(bits_of(0.f) == 0);
    CHECK(bits_of(-0.f) == 0x8000);
    CHECK(bits_of(3.4e38f) == 0x7F80);  // beyond the largest bf16 by more than half a unit
    CHECK(bits_of(std::numeric_limits<float>::infinity()) == 0x7F80);
    CHECK(bits_of(0x1p-140f) == 0x0000);  // below half of the smallest
    CHECK(bits_of(0x1.8p-133f) == 0x0002);
    CHECK(std::isnan(to_float(bf16{bits_of(std::bit_cast<float>(0x7F800001u))})));  // a NaN only in the bits cut off
}

TEST_CASE("cast keeps every bf16, on any number of threads", "[buffers]") {
    std::vector<bf16> all;
    for (uint32_t bits = 0; bits < 0x10000; bits++) all.push_back(bf16{uint16_t(bits)});
    for (const int threads : {1, 3}) {
        Cpu cpu(threads);
        Floats wide(all.size());
        std::vector<bf16> back(all.size());
        cast(cpu, wide.data(), all.data(), int64_t(all.size()));
        cast(cpu, back.data(), wide.data(), int64_t(all.size()));
        size_t wrong = 0;
        for (size_t i = 0; i < all.size(); i++)
            wrong += std::isnan(wide[i]) ? !std::isnan(to_float(back[i])) : back[i].bits != all[i].bits;
        CHECK(wrong == 0);
    }
}

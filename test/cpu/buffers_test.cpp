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

// Dropout against PyTorch with the same masks, and the masks against their definition.
#include "llmc/cpu/dropout.h"
#include <array>
#include <cmath>
#include <set>
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, check_equal
#include "test/testing.h"

namespace {

// Which of n elements are kept, 1 or 0.
Floats kept(const DropoutMask& mask, size_t n) {
    Cpu cpu;
    const Floats ones(n, 1);
    Guarded out(n);
    dropout<float>(cpu, out.data(), ones.data(), mask, int64_t(n));
    Floats result = out.get();
    size_t others = 0;
    for (float& x : result) {
        others += x != 0 && x != mask.scale;
        x = x > 0;
    }
    CHECK(others == 0);
    return result;
}

}  // namespace

TEST_CASE("dropout agrees with PyTorch, whose mask is made by the same rule", "[dropout]") {
    const Fixture f("dropout");
    for (const std::string name : {"p20.", "p50.", "p97.", "p0."}) {
        INFO(name);
        const Floats inp = f.floats(name + "inp"), dout = f.floats(name + "dout");
        const std::vector<int32_t> first = f.ints(name + "first"), key = f.ints(name + "key");
        const double p = std::stod(name.substr(1)) / 100;
        const uint64_t whole_key = uint64_t(uint32_t(key[1])) << 32 | uint32_t(key[0]);
        const DropoutMask mask = dropout_mask(p, whole_key, uint64_t(first[0]));
        const auto n = int64_t(inp.size());
        const auto got = on_any_threads([&](Cpu& cpu) {
            Guarded out(inp.size()), dinp(inp.size()), in_place(dout);
            dropout<float>(cpu, out.data(), inp.data(), mask, n);
            dropout<float>(cpu, dinp.data(), dout.data(), mask, n);
            dropout<float>(cpu, in_place, in_place, mask, n);
            return std::vector{out.get(), dinp.get(), in_place.get()};
        });
        // Two roundings: of 1 / (1 - p), and of the product.
        const Floats out = f.floats("want." + name + "out"), dinp = f.floats("want." + name + "dinp");
        for (size_t i = 0; i < inp.size(); i++) {
            REQUIRE((got[0][i] == 0) == (out[i] == 0));
            REQUIRE(std::fabs(got[0][i] - out[i]) <= kEpsF32 * std::fabs(out[i]));
            REQUIRE(std::fabs(got[1][i] - dinp[i]) <= kEpsF32 * std::fabs(dinp[i]));
        }
        check_equal("dinp in place of dout", got[2], got[1]);
        if (p == 0) check_equal("out of p = 0", got[0], inp);
    }
}

TEST_CASE("dropout: an element's fate follows from its number alone", "[dropout]") {
    const Floats all = kept(dropout_mask(0.3, 77, 0), 20000);
    for (const size_t first : {1u, 2u, 5u, 16u, 4095u, 9999u}) {
        const Floats part = kept(dropout_mask(0.3, 77, first), 5001);
        REQUIRE(part == Floats(all.begin() + long(first), all.begin() + long(first) + 5001));
    }
    // Beyond 2^32 elements there is no wrap.
    CHECK(kept(dropout_mask(0.3, 77, uint64_t(1) << 33), 1000) != Floats(all.begin(), all.begin() + 1000));
}

TEST_CASE("dropout keeps a share of 1 - p, independently of neighbors, sites and steps", "[dropout]") {
    constexpr size_t n = 1 << 18;
    std::set<uint64_t> keys;
    Floats before;
    for (const double p : {0.1, 0.2, 0.5}) {
        for (const auto& [seed, step, site] :
             std::vector<std::array<int, 3>>{{1, 0, 0}, {1, 0, 1}, {1, 1, 0}, {2, 0, 0}}) {
            const uint64_t key = dropout_key(uint64_t(seed), uint64_t(step), uint64_t(site));
            keys.insert(key);
            const Floats now = kept(dropout_mask(p, key, 0), n);
            double sum = 0, pairs = 0, with_before = 0;
            for (size_t i = 0; i < n; i++) {
                sum += now[i];
                pairs += i > 0 ? now[i] * now[i - 1] : 0;
                with_before += before.empty() ? 0 : now[i] * before[i];
            }
            // Five standard deviations, of numbers that are the same in every run of this test; of products of two
            // elements, of which neighbors share one, at most twice that.
            const double q = 1 - p, allowed = 5 * std::sqrt(q * p / double(n));
            CHECK(std::fabs(sum / n - q) <= allowed);
            CHECK(std::fabs(pairs / n - q * q) <= 2 * allowed);
            if (!before.empty()) CHECK(std::fabs(with_before / n - q * q) <= 2 * allowed);
            before = now;
        }
        before.clear();
    }
    CHECK(keys.size() == 4);
}

TEST_CASE("dropout hands a NaN on, kept or not", "[dropout]") {
    Cpu cpu(1);
    const Floats inp(64, std::nanf(""));
    Guarded out(64);
    dropout<float>(cpu, out.data(), inp.data(), dropout_mask(0.5, 1, 0), 64);
    CHECK(count_not_finite(out.get()) == 64);
}

TEST_CASE("dropout in bf16 rounds each result once", "[dropout]") {
    const int64_t n = GENERATE(1, 15, 32, 10007);
    check_rounds_once([n]<class T>(Cpu& cpu) {
        const auto inp = bf16_randn<T>(n, 1, 4);
        Guarded<T> out(inp.size());
        dropout(cpu, out.data(), inp.data(), dropout_mask(0.2, 5, 3), n);
        return std::vector<Floats>{stored(out)};
    });
}

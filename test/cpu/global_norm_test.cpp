// The sum of squares for gradient clipping: against PyTorch, exact on whole numbers, independent of how a buffer is
// split, and never finite for infinite or NaN input.
#include "llmc/cpu/global_norm.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // whole_numbers
#include "test/testing.h"

static bool same_words(const ExactSum& a, const ExactSum& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// The same words from 1, 2 and 3 threads, on top of what was there. What is after x may not be read.
static ExactSum squares_of(const Floats& x) {
    ExactSum results[3];
    for (const int threads : {1, 2, 3}) {
        Cpu cpu(threads);
        Guarded guarded(x);
        ExactSum& sum = results[threads - 1];
        sum.add(2.5);
        add_squares(cpu, &sum, guarded, int64_t(x.size()));
        sum.add(-2.5);
    }
    CHECK(same_words(results[0], results[1]));
    CHECK(same_words(results[0], results[2]));
    return results[0];
}

// Of all sizes, so that the sums of units lie in several words.
static Floats of_all_sizes(int64_t n, uint64_t seed) {
    Rng rng(seed, Stream::tests);
    Floats x = randn(size_t(n), seed);
    for (float& value : x) value = std::ldexp(value, int(rng.below(70)) - 35);
    return x;
}

// Like gradients of a model: values of one tensor are of a kind, some are zero, and tensors differ.
static Floats of_tensors(int64_t n, uint64_t seed) {
    Rng rng(seed, Stream::tests);
    Floats x = randn(size_t(n), seed);
    int scale = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i % 3000 == 0) scale = int(rng.below(130)) - 80;
        x[size_t(i)] = rng.below(2000) == 0 ? 0 : std::ldexp(x[size_t(i)], scale - int(rng.below(20)));
        if (i % 5000 < 700) x[size_t(i)] = 0;
    }
    return x;
}

TEST_CASE("global_norm agrees with PyTorch", "[global_norm]") {
    const Fixture f("global_norm");
    const int n = GENERATE(1, 7, 1000, 4099);
    const double want = f.floats(format("want.%d.norm", n))[0];
    // Six roundings of half a unit on the way from a square to its unit's sum, of positive numbers; half of that in the
    // norm; and half a unit for the reference's own rounding.
    const double norm = std::sqrt(squares_of(f.floats(format("%d.x", n))).value());
    CHECK(std::fabs(norm - want) <= 2 * kEpsF32 * want);
}

TEST_CASE("global_norm of whole numbers is exact", "[global_norm]") {
    const int64_t n = GENERATE(0, 1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 4095, 4096, 4097, 100003);
    const Floats x = whole_numbers(n, 1, 100);
    double want = 0;
    for (const float value : x) want += double(value) * value;
    CHECK(squares_of(x).value() == want);
}

TEST_CASE("global_norm sums units of 32 elements in the order that its header gives", "[global_norm]") {
    const int64_t n = GENERATE(1, 16, 17, 32, 64, 255, 511, 512, 1000, 40011);
    const bool tensors = GENERATE(false, true);
    const Floats x = tensors ? of_tensors(n, uint64_t(n)) : of_all_sizes(n, uint64_t(n));
    ExactSum want;
    for (int64_t first = 0; first < n; first += 32) {
        float lanes[32];
        for (int64_t i = 0; i < 32; i++) lanes[i] = first + i < n ? x[size_t(first + i)] : 0;
        for (int i = 0; i < 16; i++) lanes[i] = std::fma(lanes[i + 16], lanes[i + 16], lanes[i] * lanes[i]);
        for (const int apart : {8, 4, 2, 1})
            for (int i = 0; i < apart; i++) lanes[i] += lanes[i + apart];
        want.add(double(lanes[0]));
    }
    CHECK(same_words(squares_of(x), want));
}

TEST_CASE("global_norm has the same words however a buffer is cut and in whichever order", "[global_norm]") {
    Cpu cpu(1);
    for (const int64_t n : {1, 31, 32, 33, 128, 160, 300}) {
        const Floats x = of_all_sizes(n, 5);
        const ExactSum whole = squares_of(x);
        const int64_t borders = (n - 1) / 32;  // where a cut may be
        for (uint64_t cuts = 0; cuts < uint64_t(1) << borders; cuts++) {
            ExactSum sum;
            for (int64_t begin = 0; begin < n;) {
                int64_t end = begin + 32;
                while (end < n && !(cuts >> (end / 32 - 1) & 1)) end += 32;
                end = std::min(end, n);
                add_squares(cpu, &sum, x.data() + begin, end - begin);
                begin = end;
            }
            if (!same_words(sum, whole)) FAIL(n << " elements, cut at the bits of " << cuts);
        }
    }
    const int64_t n = 5003, pieces = (n + 63) / 64;
    const Floats x = of_all_sizes(n, 6);
    const ExactSum whole = squares_of(x);
    for (uint64_t seed = 0; seed < 20; seed++) {
        const Permutation order(uint64_t(pieces), seed);
        ExactSum ranks[3], sum;
        for (int64_t i = 0; i < pieces; i++) {
            const int64_t begin = int64_t(order(uint64_t(i))) * 64;
            add_squares(cpu, &ranks[i % 3], x.data() + begin, std::min<int64_t>(64, n - begin));
        }
        for (const int rank : {2, 0, 1}) sum.add(ranks[rank]);
        CHECK(same_words(sum, whole));
    }
}

TEST_CASE("global_norm is not finite if any element is not, or its square", "[global_norm]") {
    const size_t n = 20007;
    const size_t at = GENERATE(size_t(0), size_t(5), size_t(4096), size_t(12345), size_t(20000), n - 1);
    Floats x = randn(n, 1);
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY, 1.9e19f, -1.9e19f}) {
        x[at] = bad;
        CHECK(squares_of(x).not_finite == 1);
        CHECK(std::isnan(squares_of(x).value()));
    }
    x[at] = 1.8e19f;
    CHECK(std::fabs(std::sqrt(squares_of(x).value()) - 1.8e19) <= kEpsF32 * 1.8e19);
    x[at] = 1;
    CHECK(std::isfinite(squares_of(x).value()));
}

TEST_CASE("global_norm of tiny gradients is what their squares are in float", "[global_norm]") {
    const size_t n = GENERATE(size_t(64), size_t(4096));
    CHECK(squares_of(Floats(n, 0x1p-70f)).value() == double(n) * 0x1p-140);
    CHECK(squares_of(Floats(n, 0x1p-74f)).value() == double(n) * 0x1p-148);
    CHECK(squares_of(Floats(n, 0x1p-76f)).value() == 0);
}

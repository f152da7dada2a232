// Random numbers: pinned to other implementations, and statistically what they claim. The seeds are fixed, so the
// bounds of five standard deviations either always hold or never.
#include <set>
#include "test/testing.h"

TEST_CASE("the first values are those of splitmix64", "[rng]") {
    // The published test sequence of splitmix64 for the seed 1234567.
    Rng rng(0, Stream::tests);
    rng.state = 1234567;
    CHECK(rng.next() == 6457827717110365317ull);
    CHECK(rng.next() == 3203168211198807973ull);
    CHECK(rng.next() == 9817491932198370423ull);

    // Our seeding and `below`, from a second implementation in Python's integers.
    Rng weights(1337, Stream::weights);
    CHECK(weights.state == 0xb6a8a9b313caa00bull);
    CHECK(weights.next() == 3566059846857506946ull);
    CHECK(weights.next() == 6620362140973108158ull);
    Rng same(1337, Stream::weights);
    for (uint64_t want : {193, 358, 719, 395, 780}) CHECK(same.below(1000) == want);
    CHECK(Rng(1337, Stream::weights).uniform() == double(3566059846857506946ull >> 11) / 9007199254740992.0);
}

TEST_CASE("seeds and streams differ, and the state is all there is", "[rng]") {
    std::set<uint64_t> firsts;
    for (uint64_t seed = 0; seed < 1000; seed++)
        for (Stream stream : {Stream::weights, Stream::data, Stream::sampling, Stream::corpus, Stream::tests})
            firsts.insert(Rng(seed, stream).next());
    CHECK(firsts.size() == 5000);

    Rng a(1, Stream::data);
    for (int i = 0; i < 10; i++) a.normal();
    Rng b(2, Stream::weights);
    b.state = a.state;
    CHECK(a.normal() == b.normal());
    CHECK(a.below(7) == b.below(7));
}

TEST_CASE("uniform and normal numbers have their moments", "[rng]") {
    constexpr int n = 200000;
    Rng rng(5, Stream::tests);
    double sum = 0, squares = 0, low = 1, high = 0;
    for (int i = 0; i < n; i++) {
        const double x = rng.uniform();
        sum += x;
        squares += (x - 0.5) * (x - 0.5);
        low = std::min(low, x);
        high = std::max(high, x);
    }
    // variances: x has 1/12, (x - 1/2)^2 has 1/80 - 1/144 = 1/180
    CHECK(std::fabs(sum / n - 0.5) < 5 * std::sqrt(1 / 12.0 / n));
    CHECK(std::fabs(squares / n - 1 / 12.0) < 5 * std::sqrt(1 / 180.0 / n));
    CHECK(low >= 0);
    CHECK(high < 1);
    // The lowest of n is above 20/n with probability e^-20.
    CHECK(low < 20.0 / n);
    CHECK(high > 1 - 20.0 / n);

    double moments[5] = {};
    for (int i = 0; i < n; i++) {
        const double x = rng.normal();
        for (int k = 1; k <= 4; k++) moments[k] += std::pow(x, k) / n;
    }
    // E[x^k] = 0 1 0 3; Var[x^k] = E[x^2k] - E[x^k]^2 = 1, 3 - 1, 15, 105 - 9
    CHECK(std::fabs(moments[1]) < 5 * std::sqrt(1.0 / n));
    CHECK(std::fabs(moments[2] - 1) < 5 * std::sqrt(2.0 / n));
    CHECK(std::fabs(moments[3]) < 5 * std::sqrt(15.0 / n));
    CHECK(std::fabs(moments[4] - 3) < 5 * std::sqrt(96.0 / n));
}

TEST_CASE("below is uniform over its range", "[rng]") {
    constexpr int draws = 100000;
    Rng rng(6, Stream::tests);
    for (const uint64_t n : {1, 2, 3, 10, 65}) {
        std::vector<int> counts(n);
        for (int i = 0; i < draws; i++) counts.at(rng.below(n))++;
        const double p = 1.0 / double(n);
        for (int c : counts) CHECK(std::fabs(c - draws * p) <= 5 * std::sqrt(draws * p * (1 - p)));
    }
    // 3/4 of the 64-bit range: without rejecting, four inputs fall on three outputs, and half of the draws are
    // multiples of three.
    const uint64_t wide = uint64_t(3) << 62;
    int multiples = 0;
    for (int i = 0; i < draws; i++) {
        const uint64_t x = rng.below(wide);
        multiples += x < wide && x % 3 == 0;
    }
    CHECK(std::fabs(multiples - draws / 3.0) <= 5 * std::sqrt(draws * 2 / 9.0));
}

TEST_CASE("a permutation takes each value once", "[rng]") {
    for (const uint64_t n : {1, 2, 3, 4, 5, 16, 17, 64, 65, 1000})
        for (const uint64_t seed : {uint64_t(0), uint64_t(1), uint64_t(1337), ~uint64_t(0)}) {
            const Permutation p(n, seed);
            std::vector<bool> taken(n);
            for (uint64_t i = 0; i < n; i++) {
                const uint64_t j = p(i);
                REQUIRE(j < n);
                REQUIRE_FALSE(taken[j]);
                taken[j] = true;
            }
        }
}

TEST_CASE("a permutation depends on its seed and is pinned", "[rng]") {
    // From a second implementation in Python's integers.
    const Permutation ten(10, 42), thousand(1000, 42), huge(1000000000000, 42);
    const std::vector<uint64_t> want = {7, 5, 6, 3, 0, 2, 1, 4, 8, 9};
    for (uint64_t i = 0; i < 10; i++) CHECK(ten(i) == want[i]);
    CHECK(thousand(0) == 299);
    CHECK(thousand(4) == 327);
    CHECK(huge(0) == 326587451922);
    CHECK(huge(2) == 488376004470);

    // Two random orders of n agree in one place on average (Poisson): 12 or more has a probability of 1e-9.
    for (uint64_t seed = 0; seed < 20; seed++) {
        const Permutation p(1000, seed), next(1000, seed + 1);
        int agree = 0, fixed = 0;
        for (uint64_t i = 0; i < 1000; i++) {
            agree += p(i) == next(i);
            fixed += p(i) == i;
        }
        CHECK(agree < 12);
        CHECK(fixed < 12);
    }
    // Over the seeds, the first element goes everywhere alike.
    constexpr int seeds = 5000;
    std::vector<int> counts(5);
    for (uint64_t seed = 0; seed < seeds; seed++) counts[Permutation(5, seed)(0)]++;
    for (int c : counts) CHECK(std::fabs(c - seeds / 5.0) <= 5 * std::sqrt(seeds * 0.2 * 0.8));
}

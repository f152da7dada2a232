// The hash of weights that ranks compare: it changes with any bit, and does not depend on splitting, order or threads.
#include "llmc/cpu/weight_hash.h"
#include <cstring>
#include <set>
#include "llmc/base/bf16.h"  // bf16
#include "test/testing.h"

namespace {

// Random bits, NaN and infinity among them.
template <class T>
std::vector<T> any_weights(int64_t n, uint64_t seed) {
    Rng rng(seed, Stream::tests);
    std::vector<T> x(static_cast<size_t>(n));
    for (T& value : x) {
        const uint64_t bits = rng.next();
        std::memcpy(&value, &bits, sizeof value);
    }
    return x;
}

// The same from 1, 2 and 3 threads, on top of what was there.
template <class T>
uint64_t hash_of(const std::vector<T>& x, int64_t first_index = 0) {
    uint64_t sums[3];
    for (const int threads : {1, 2, 3}) {
        Cpu cpu(threads);
        sums[threads - 1] = 1000;
        add_hash(cpu, &sums[threads - 1], x.data(), int64_t(x.size()), first_index);
    }
    CHECK(sums[0] == sums[1]);
    CHECK(sums[0] == sums[2]);
    return sums[0] - 1000;
}

template <class T>
void flip(T& x, int bit) {
    uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof x);
    bits ^= uint64_t(1) << bit;
    std::memcpy(&x, &bits, sizeof x);
}

}  // namespace

TEST_CASE("weight_hash agrees with Python's integers", "[weight_hash]") {
    const Floats floats = {1.5f, -2, 0.25f};
    CHECK(hash_of(floats) == 0x9e7a0a05bb9933c7);
    CHECK(hash_of(floats, 6) == 0x9ed688a975b1169d);
    std::vector<bf16> narrow;
    for (const float x : {1.5f, -2.f, 0.25f, 3.f, -0.f}) narrow.push_back(to_bf16(x));
    CHECK(hash_of(narrow) == 0xa6e7854883a519fc);
    CHECK(hash_of(narrow, 4) == 0xf1badbd701a8a1d5);
    CHECK(hash_of(Floats()) == 0);
}

TEMPLATE_TEST_CASE("weight_hash sees any flipped bit, and elements that changed places", "[weight_hash]", float, bf16) {
    const int64_t n = GENERATE(1, 2, 3, 4, 7, 1001);
    std::vector<TestType> x = any_weights<TestType>(n, uint64_t(n));
    std::set<uint64_t> seen = {hash_of(x)};
    size_t changes = 0;
    for (const int64_t i : std::set<int64_t>{0, 1 % n, n / 2, n - 2 < 0 ? 0 : n - 2, n - 1})
        for (int bit = 0; bit < int(8 * sizeof(TestType)); bit++) {
            flip(x[size_t(i)], bit);
            seen.insert(hash_of(x));
            changes++;
            flip(x[size_t(i)], bit);
        }
    for (int64_t apart = 1; apart < n; apart = 2 * apart + 1) {  // in a word, in the next one, and further
        std::swap(x[0], x[size_t(apart)]);
        seen.insert(hash_of(x));
        changes++;
        std::swap(x[0], x[size_t(apart)]);
    }
    CHECK(seen.size() == 1 + changes);
    CHECK(hash_of(x) != hash_of(x, 8));
    CHECK(hash_of(x) != hash_of(std::vector<TestType>(x.begin(), x.end() - 1)));
}

TEMPLATE_TEST_CASE("weight_hash is the same however weights are cut and in whichever order", "[weight_hash]", float,
                   bf16) {
    constexpr int64_t in_word = 8 / sizeof(TestType);
    const int64_t n = GENERATE(1, 5, 8, 31, 1003), first_index = GENERATE(0, 8, 4000);
    const std::vector<TestType> x = any_weights<TestType>(n, 3);
    const uint64_t want = hash_of(x, first_index);
    Cpu cpu(1);
    Rng rng(4, Stream::tests);
    for (int round = 0; round < 30; round++) {
        std::vector<int64_t> borders = {0};
        while (borders.back() < n)
            borders.push_back(std::min(n, borders.back() + in_word * int64_t(1 + rng.below(round < 10 ? 1 : 20))));
        uint64_t sum = 0;
        const Permutation order(borders.size() - 1, uint64_t(round));
        for (uint64_t i = 0; i + 1 < borders.size(); i++) {
            const int64_t begin = borders[order(i)], end = borders[order(i) + 1];
            add_hash(cpu, &sum, x.data() + begin, end - begin, first_index + begin);
        }
        if (sum != want) FAIL(n << " elements in " << borders.size() - 1 << " parts: got " << sum << ", want " << want);
    }
}

TEST_CASE("weight_hash wants parts that begin with a word", "[weight_hash]") {
    Cpu cpu(1);
    uint64_t sum = 0;
    const Floats x(4);
    const std::vector<bf16> narrow(4);
    CHECK(contains(error_of([&] { add_hash(cpu, &sum, x.data(), 4, 1); }), "1: internal: first_index"));
    CHECK(contains(error_of([&] { add_hash(cpu, &sum, narrow.data(), 4, 2); }), "1: internal: first_index"));
    CHECK(sum == 0);
}

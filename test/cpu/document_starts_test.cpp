// Document starts against PyTorch, and against a backward search from every token. Integers, so exact.
#include "llmc/cpu/document_starts.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // Ints
#include "test/testing.h"

// On 1, 2 and 3 threads, between guards.
static Ints starts_of(const Ints& tokens, int32_t first_token, int64_t B, int64_t T) {
    constexpr size_t kGuard = 16;
    constexpr int32_t kMark = -77;
    Ints result;
    for (const int threads : {1, 2, 3}) {
        Cpu cpu(threads);
        Ints memory(tokens.size() + 2 * kGuard, kMark);
        document_starts(cpu, memory.data() + kGuard, tokens.data(), first_token, B, T);
        const auto begin = memory.begin() + kGuard, end = begin + int64_t(tokens.size());
        CHECK(std::count(memory.begin(), begin, kMark) == kGuard);
        CHECK(std::count(end, memory.end(), kMark) == kGuard);
        if (threads == 1) result.assign(begin, end);
        CHECK(std::equal(begin, end, result.begin()));
    }
    return result;
}

TEST_CASE("document_starts agrees with PyTorch", "[document_starts]") {
    const Fixture f("document_starts");
    const auto [B, T] = GENERATE(table<int, int>({{1, 1}, {3, 1}, {2, 33}, {4, 150}, {2, 2100}}));
    const std::string name = format("%dx%d.", B, T);
    INFO(name);
    CHECK(starts_of(f.ints(name + "tokens"), 0, B, T) == f.ints("want." + name + "starts"));
}

TEST_CASE("document_starts: every kind of row", "[document_starts]") {
    constexpr int32_t kFirst = 50256;
    CHECK(starts_of({5, 6, 7}, kFirst, 1, 3) == Ints{0, 0, 0});                              // none begins
    CHECK(starts_of({kFirst, 6, 7}, kFirst, 1, 3) == Ints{0, 0, 0});                         // one, in front
    CHECK(starts_of({5, kFirst, 7}, kFirst, 1, 3) == Ints{0, 1, 1});                         // the rest of another
    CHECK(starts_of({5, 6, kFirst}, kFirst, 1, 3) == Ints{0, 0, 2});                         // the last token
    CHECK(starts_of({kFirst, kFirst, kFirst}, kFirst, 1, 3) == Ints{0, 1, 2});               // empty ones
    CHECK(starts_of({5, kFirst, 7, 8, 9, kFirst}, kFirst, 2, 3) == Ints{0, 1, 1, 0, 0, 2});  // rows know nothing
    CHECK(starts_of({kFirst, -1, 0, -1}, -1, 1, 4) == Ints{0, 1, 1, 3});                     // of each other; any token
}

TEST_CASE("document_starts is what a search finds", "[document_starts]") {
    const int64_t T = GENERATE(1, 31, 64, 257), B = 5, V = GENERATE(1, 2, 40);
    Rng rng(uint64_t(T), Stream::tests);
    Ints tokens, want;
    for (int64_t i = 0; i < B * T; i++) tokens.push_back(int32_t(rng.below(uint64_t(V))));
    for (int64_t i = 0; i < B * T; i++) {
        int64_t s = i % T;
        while (s > 0 && tokens[size_t(i / T * T + s)] != V - 1) s--;
        want.push_back(int32_t(s));
    }
    CHECK(starts_of(tokens, int32_t(V - 1), B, T) == want);
}

// The sum over ranks: in its defined order on any number of threads, against explicit values and in double.
#include "llmc/cpu/sum_ranks.h"
#include <cstring>
#include <type_traits>
#include "test/op_testing.h"

namespace {

template <class T>
std::vector<const T*> pointers_to(const std::vector<std::vector<T>>& buffers) {
    std::vector<const T*> pointers;
    for (const std::vector<T>& buffer : buffers) pointers.push_back(buffer.data());
    return pointers;
}

// Of sizes so different that another order of additions gives other bits.
std::vector<Floats> uneven(int num_ranks, int64_t n) {
    std::vector<Floats> inp;
    for (int r = 0; r < num_ranks; r++) inp.push_back(randn(size_t(n), uint64_t(r + 1), r % 2 ? 1e-3f : 1e3f));
    return inp;
}

}  // namespace

TEST_CASE("sum_ranks adds neighbors first", "[sum_ranks]") {
    const int64_t n = GENERATE(1, 7, 16384, 40000);
    INFO(n << " elements");
    const std::vector<Floats> v = uneven(8, n);
    const auto sum = [&](int num_ranks) {
        return on_any_threads([&](Cpu& cpu) {
            Guarded out(static_cast<size_t>(n));
            sum_ranks<float>(cpu, out, pointers_to(v).data(), num_ranks, n);
            return std::vector<Floats>{out.get()};
        })[0];
    };
    const auto check = [&](int num_ranks, auto at) {
        Floats want(static_cast<size_t>(n));
        for (size_t i = 0; i < want.size(); i++) want[i] = at(i);
        check_equal(format("%d ranks", num_ranks), sum(num_ranks), want);
    };
    check(1, [&](size_t i) { return v[0][i]; });
    check(2, [&](size_t i) { return v[0][i] + v[1][i]; });
    check(3, [&](size_t i) { return (v[0][i] + v[1][i]) + v[2][i]; });
    check(4, [&](size_t i) { return (v[0][i] + v[1][i]) + (v[2][i] + v[3][i]); });
    check(7, [&](size_t i) { return ((v[0][i] + v[1][i]) + (v[2][i] + v[3][i])) + ((v[4][i] + v[5][i]) + v[6][i]); });
    check(8, [&](size_t i) {
        return ((v[0][i] + v[1][i]) + (v[2][i] + v[3][i])) + ((v[4][i] + v[5][i]) + (v[6][i] + v[7][i]));
    });
}

TEST_CASE("sum_ranks adds bf16 in float and integers exactly, in place too", "[sum_ranks]") {
    Cpu cpu(2);
    const int num_ranks = GENERATE(1, 2, 3, 5, 8, 12);
    const int64_t n = 33;
    std::vector<std::vector<bf16>> halves(static_cast<size_t>(num_ranks));
    std::vector<std::vector<uint64_t>> counts(static_cast<size_t>(num_ranks));
    std::vector<bf16> want_halves;
    Floats want_sums, sums(static_cast<size_t>(n));
    std::vector<uint64_t> want_counts;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        uint64_t count = 0;
        for (int r = 0; r < num_ranks; r++) {
            // Multiples of 2^-7 below 4: sums are exact in float, and in bf16 they are not.
            const float x = float((i * 37 + r * 101) % 257) * 0x1p-6f - 2;
            halves[size_t(r)].push_back(to_bf16(x));
            sum += double(to_float(to_bf16(x)));
            counts[size_t(r)].push_back(~uint64_t(0) - uint64_t(i) * uint64_t(r));
            count += counts[size_t(r)].back();
        }
        want_halves.push_back(to_bf16(float(sum)));
        want_sums.push_back(float(sum));
        want_counts.push_back(count);
    }
    sum_ranks(cpu, sums.data(), pointers_to(halves).data(), num_ranks, n);  // not rounded
    sum_ranks(cpu, halves.back().data(), pointers_to(halves).data(), num_ranks, n);
    sum_ranks(cpu, counts[0].data(), pointers_to(counts).data(), num_ranks, n);
    for (size_t i = 0; i < size_t(n); i++) CHECK(halves.back()[i].bits == want_halves[i].bits);
    CHECK(sums == want_sums);
    CHECK(counts[0] == want_counts);
}

TEST_CASE("sum_ranks gives the sum to as many as want it, those that were added too", "[sum_ranks]") {
    const int num_ranks = GENERATE(1, 2, 3, 4, 5, 8), num_outs = GENERATE(1, 2, 3, 4, 8);
    const int64_t n = GENERATE(1, 31, 16400);
    INFO(num_ranks << " ranks to " << num_outs << ", " << n << " elements");
    const auto check = [&](const auto& v) {
        using T = std::decay_t<decltype(v[0][0])>;
        // One output for each call is what the tests above hold against numbers.
        Cpu one(1);
        std::vector<T> want(static_cast<size_t>(n));
        sum_ranks(one, want.data(), pointers_to(v).data(), num_ranks, n);
        for (const int threads : {1, 3}) {
            Cpu cpu(threads);
            auto inp = v;
            // The inputs last to first, then new memory: the order of the outputs means nothing.
            std::vector<std::vector<T>> more(8, std::vector<T>(static_cast<size_t>(n)));
            std::vector<T*> outs;
            for (int o = 0; o < num_outs; o++)
                outs.push_back((o < num_ranks ? inp[size_t(num_ranks - 1 - o)] : more[size_t(o)]).data());
            sum_ranks(cpu, outs.data(), pointers_to(inp).data(), num_outs, num_ranks, n);
            size_t wrong = 0;
            for (const T* out : outs) wrong += std::memcmp(out, want.data(), size_t(n) * sizeof(T)) != 0;
            for (int r = 0; r < num_ranks - num_outs; r++)
                wrong += std::memcmp(inp[size_t(r)].data(), v[size_t(r)].data(), size_t(n) * sizeof(T)) != 0;
            CHECK(wrong == 0);
        }
    };
    const std::vector<Floats> floats = uneven(8, n);
    std::vector<std::vector<bf16>> halves(8);
    std::vector<std::vector<uint64_t>> counts(8);
    for (size_t r = 0; r < 8; r++)
        for (const float x : floats[r]) {
            halves[r].push_back(to_bf16(x));
            counts[r].push_back(uint64_t(int64_t(1e6f * x)));
        }
    check(floats);
    check(halves);
    check(counts);
}

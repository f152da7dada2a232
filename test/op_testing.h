/*
Helpers of the op tests. References are correct to half a unit of float32, so tolerances cover only our own rounding.

  const auto out = on_any_threads([&](Cpu& cpu) {          the same bits from 1, 2 and 3 threads, or the test fails
      Guarded out(N * C);
      gelu_forward(cpu, out, inp.data(), N * C);
      return std::vector{out.get()};
  });
  check_within("out", out[0], want, bounds);               one bound per element, where check_close() is too coarse

  check_rounds_once([&]<class T>(Cpu& cpu) {               bf16 against float, for the same inputs; stored() rounds
      const auto inp = bf16_randn<T>(N * C, 1);            outputs of type T, get() returns those that are float in both
      Guarded<T> out(N * C);
      gelu_forward(cpu, out.data(), inp.data(), N * C);
      return std::vector<Floats>{stored(out)};
  });
*/
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>
#include "llmc/base/rng.h"    // mix64, Rng
#include "llmc/cpu/device.h"  // Cpu
#include "test/testing.h"     // Floats, Guarded

using Ints = std::vector<int32_t>;

// The same bits as bell() of dev/fixtures/fixture_file.py: tensors too large for a fixture are generated on both sides.
inline Floats bell(uint64_t seed, int64_t n, float scale = 1) {
    Floats x(static_cast<size_t>(n));
    for (float& value : x) {
        const uint64_t word = mix64(seed += 0x9E3779B97F4A7C15ull);
        int64_t sum = -131070;
        for (int shift = 0; shift < 64; shift += 16) sum += int64_t(word >> shift & 0xFFFF);
        value = float(sum) * (scale * 0x1p-15f);
    }
    return x;
}

// Whole numbers in [-limit, limit]: their products and sums are exact in float32 while they stay below 2^24.
inline Floats whole_numbers(int64_t n, uint64_t seed, int limit) {
    Rng rng(seed, Stream::tests);
    Floats x(static_cast<size_t>(n));
    for (float& value : x) value = float(int(rng.below(uint64_t(2 * limit + 1))) - limit);
    return x;
}

// The expected result of an op that accumulates `added` into a buffer that held `start`.
inline Floats plus(const Floats& start, const Floats& added) {
    REQUIRE(start.size() == added.size());
    Floats sum(start.size());
    for (size_t i = 0; i < sum.size(); i++) sum[i] = float(double(start[i]) + added[i]);
    return sum;
}

inline double rms(const float* x, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += double(x[i]) * x[i];
    return std::sqrt(squares / double(n));
}

inline bool same_bits(const Floats& a, const Floats& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Checks got == want, element by element. Catch2's own comparison would print both vectors in full.
inline void check_equal(const std::string& name, const Floats& got, const Floats& want) {
    REQUIRE(got.size() == want.size());
    const size_t first = size_t(std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin());
    INFO(name << ": " << got.size() << " elements, got " << (first < got.size() ? got[first] : 0) << ", want "
              << (first < got.size() ? want[first] : 0) << " at " << first);
    CHECK(first == got.size());
}

// Runs op(cpu), which returns a vector of outputs, on 1, 2 and 3 threads. Checks that all have the same bits, and
// returns them.
template <class Op>
std::vector<Floats> on_any_threads(Op op) {
    Cpu one(1);
    const std::vector<Floats> outputs = op(one);
    for (const int threads : {2, 3}) {
        Cpu cpu(threads);
        const std::vector<Floats> again = op(cpu);
        REQUIRE(again.size() == outputs.size());
        for (size_t i = 0; i < outputs.size(); i++) {
            INFO("output " << i << " on " << threads << " threads against one");
            CHECK(same_bits(again[i], outputs[i]));
        }
    }
    return outputs;
}

// Checks |got - want| <= bounds, element by element.
inline void check_within(const std::string& name, const Floats& got, const Floats& want,
                         const std::vector<double>& bounds) {
    REQUIRE(got.size() == want.size());
    REQUIRE(bounds.size() == want.size());
    size_t outside = 0, first = 0;
    for (size_t i = want.size(); i-- > 0;)
        if (!(std::fabs(double(got[i]) - want[i]) <= bounds[i])) outside++, first = i;
    INFO(name << ": " << outside << " of " << want.size() << " outside, first at " << first << ": got " << got[first]
              << ", want " << want[first] << " within " << bounds[first]);
    CHECK(outside == 0);
}

// Checks |got - want| <= tolerance * |want|, element by element.
inline void check_relative(const std::string& name, const Floats& got, const Floats& want, double tolerance) {
    std::vector<double> bounds;
    for (const float w : want) bounds.push_back(tolerance * std::fabs(w));
    check_within(name, got, want, bounds);
}

// n random numbers that bf16 represents exactly, so they are the same in float and in bf16.
template <class T>
std::vector<T> bf16_randn(int64_t n, uint64_t seed, float scale = 1) {
    std::vector<T> values;
    for (const float x : rounded<bf16>(randn(size_t(n), seed, scale))) values.push_back(rounded_value<T>(x));
    return values;
}

// An op's result of type T, rounded to bf16.
template <class T>
Floats stored(Guarded<T>& result) {
    return rounded<bf16>(result.get());
}

// Checks that op in bf16 computes in float and rounds only its results: with the same inputs, its bits must be those of
// op in float, rounded. See the example at the top.
template <class Op>
void check_rounds_once(Op op) {
    const auto in_float = on_any_threads([&](Cpu& cpu) { return op.template operator()<float>(cpu); });
    const auto in_bf16 = on_any_threads([&](Cpu& cpu) { return op.template operator()<bf16>(cpu); });
    REQUIRE(in_bf16.size() == in_float.size());
    for (size_t i = 0; i < in_bf16.size(); i++) check_equal("output " + std::to_string(i), in_bf16[i], in_float[i]);
}

inline bool all_nan(const Floats& x) {
    for (const float value : x)
        if (!std::isnan(value)) return false;
    return !x.empty();
}

inline int64_t count_not_finite(const Floats& x) {
    int64_t n = 0;
    for (const float value : x) n += !std::isfinite(value);
    return n;
}

// Rotary embeddings with and without QK-norm, and their table of cosines and sines, against PyTorch.
#include "llmc/cpu/rotary.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, check_within, check_relative
#include "test/testing.h"

struct RotaryCase {
    const char* name;
    AttentionShape shape;
    RotaryOptions options;
};

// dev/fixtures/op_fixtures.py has the same table.
static const std::vector<RotaryCase> kCases = {
    {"one", {1, 1, 1, 1, 2}, {}},
    {"llama", {2, 5, 4, 2, 16}, {.base = 5e5}},
    {"odd", {3, 7, 3, 1, 14}, {.base = 100, .qk_norm = true, .scale = 0.75f}},
    {"nanochat", {1, 6, 2, 1, 128}, {.base = 1e5, .clockwise = true, .qk_norm = true, .scale = 1.2f}},
    {"modded", {2, 5, 2, 2, 64}, {.base = 1024, .half_truncated = true, .clockwise = true, .qk_norm = true}},
    {"scaled", {1, 3, 1, 1, 34}, {.clockwise = true, .scale = 1.5f}},
    {"llama3", {1, 3, 2, 1, 64}, {.base = 5e5, .scaling = {.factor = 8}}},
    {"yarn",
     {1, 3, 2, 1, 64},
     {.base = 5e5,
      .scale = 1.25f,
      .scaling = {.factor = 4, .high_turns = 32, .original_length = 4096, .kind = RotaryScaling::Kind::yarn}}},
};

// The pairs of numbers that turn together keep their length, and no rounding on the way is of anything longer: sums of
// two roundings for each product (the table's and its own) and two for the results, of half a unit each.
constexpr double kTurnUnits = 3;
// The sum over HS: HS / 16 roundings of half a unit in each lane and 4 in the tree. For rstd they are of one sign, and
// the root halves them; mean, eps, root and quotient follow.
static double sum_units(int64_t HS) { return (double(HS) / 16 + 4) / 2; }
static double rstd_units(int64_t HS) { return sum_units(HS) / 2 + 2; }

// The bound of each element of (B, T, NH + 2 NKV, HS): size(at, j) units, for the head that begins at `at`; 0 for
// values.
template <class Size>
static std::vector<double> bounds_of(const AttentionShape& s, Size size) {
    std::vector<double> bounds;
    for (int64_t n = 0; n < s.B * s.T; n++)
        for (int64_t head = 0; head < s.NH + 2 * s.NKV; head++)
            for (int64_t j = 0; j < s.HS; j++) {
                const int64_t at = n * s.row() + head * s.HS;
                bounds.push_back(head < s.NH + s.NKV ? kEpsF32 * size(size_t(at), size_t(j % (s.HS / 2))) : 0);
            }
    return bounds;
}

TEST_CASE("rotary agrees with PyTorch", "[rotary]") {
    const Fixture f("rotary");
    const RotaryCase& test = GENERATE(from_range(kCases));
    const AttentionShape& s = test.shape;
    const RotaryOptions& options = test.options;
    const std::string name = test.name, want = "want." + name;
    INFO(name);
    const Floats qkv = f.floats(name + ".qkv"), dout = f.floats(name + ".dout");
    const Floats table = rotary_table(s.T, s.HS, options);
    const size_t num_rstd = options.qk_norm ? size_t(s.B * s.T * (s.NH + s.NKV)) : 0;
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(qkv), rstd(num_rstd), dqkv(dout);
        float* saved = options.qk_norm ? rstd.data() : nullptr;
        rotary_forward<float>(cpu, out, saved, table.data(), s, options);
        rotary_backward<float>(cpu, dqkv, out, saved, table.data(), s, options);
        return std::vector{out.get(), rstd.get(), dqkv.get()};
    });
    const Floats want_out = f.floats(want + ".out");
    const double norm_units = options.qk_norm ? rstd_units(s.HS) : 0;
    const size_t half = size_t(s.HS / 2);
    const auto pair = [&](const Floats& x, size_t at, size_t j) {
        return std::hypot(double(x[at + j]), double(x[at + j + half]));
    };
    check_within("out", got[0], want_out, bounds_of(s, [&](size_t at, size_t j) {
                     return (kTurnUnits + norm_units + 1) * pair(want_out, at, j);
                 }));
    if (options.qk_norm) check_relative("rstd", got[1], f.floats(want + ".rstd"), norm_units * kEpsF32);
    // dinp = scale rstd R^T (g - y mean(g y)): g has the roundings of a turn. y is out and off by as much as that,
    // twice, once inside the mean; the mean is a sum over HS of terms whose sizes have a mean of at most rms(g) rms(y)
    // = rms(g).
    check_within("dqkv", got[2], f.floats(want + ".dqkv"), bounds_of(s, [&](size_t at, size_t j) {
                     const double rotated = (kTurnUnits + 1) * pair(dout, at, j);
                     if (!options.qk_norm) return rotated * options.scale;
                     const size_t head =
                         at / size_t(s.row()) * size_t(s.NH + s.NKV) + at % size_t(s.row()) / size_t(s.HS);
                     const double y = pair(want_out, at, j) / options.scale, mean = rms(&dout[at], s.HS);
                     const double along = (3 * (kTurnUnits + norm_units) + sum_units(s.HS)) * y * mean;
                     return (rotated + norm_units * pair(dout, at, j) + along) * options.scale * got[1][head];
                 }));
    // Values are not touched in either pass.
    for (int64_t n = 0; n < s.B * s.T; n++)
        for (int64_t i = (s.NH + s.NKV) * s.HS; i < s.row(); i++) {
            REQUIRE(got[0][size_t(n * s.row() + i)] == qkv[size_t(n * s.row() + i)]);
            REQUIRE(got[2][size_t(n * s.row() + i)] == dout[size_t(n * s.row() + i)]);
        }
}

TEST_CASE("rotary_table agrees with PyTorch at near and far positions", "[rotary]") {
    const Fixture f("rotary");
    const RotaryCase& test = GENERATE(from_range(kCases));
    INFO(test.name);
    const int64_t HS = test.shape.HS;
    const Floats table = rotary_table(2048, HS, test.options);
    Floats got;
    for (const int t : {0, 1, 2, 3, 100, 1023, 2047})
        got.insert(got.end(), &table[size_t(t * HS)], &table[size_t(t * HS + HS)]);
    // Both are doubles rounded once. An angle's own error, two roundings at 2048, counts where its cosine is near zero.
    const Floats want = f.floats(std::string("want.") + test.name + ".table");
    std::vector<double> bounds;
    for (const float w : want) bounds.push_back(kEpsF32 * std::fabs(w) + 2048 * 0x1p-51);
    check_within("table", got, want, bounds);
}

TEST_CASE("rotary: a later position is a later row of the table", "[rotary]") {
    const AttentionShape whole{1, 9, 2, 1, 16}, last{1, 1, 2, 1, 16};
    const RotaryOptions options{.qk_norm = true};
    const Floats qkv = randn(size_t(9 * whole.row()), 1), table = rotary_table(9, 16, options);
    Cpu cpu(1);
    Guarded out(qkv), one(Floats(qkv.end() - last.row(), qkv.end())), rstd(size_t(9 * 3)), one_rstd(3);
    rotary_forward<float>(cpu, out, rstd, table.data(), whole, options);
    rotary_forward<float>(cpu, one, one_rstd, table.data() + 8 * 16, last, options);
    const Floats all = out.get(), all_rstd = rstd.get();
    check_equal("out", one.get(), Floats(all.end() - last.row(), all.end()));
    check_equal("rstd", one_rstd.get(), Floats(all_rstd.end() - 3, all_rstd.end()));
}

TEST_CASE("rotary: a NaN spoils its head and no other; a head of zeros stays zero", "[rotary]") {
    const AttentionShape s{1, 2, 2, 1, 20};
    const RotaryOptions options{.qk_norm = true};
    const Floats table = rotary_table(s.T, s.HS, options);
    Floats qkv = randn(size_t(s.T * s.row()), 1);
    const Floats dout = randn(qkv.size(), 2);
    qkv[size_t(s.row() + s.HS + 17)] = std::nanf("");  // the second query head of the second token
    std::fill_n(qkv.begin(), s.HS, 0.f);
    Cpu cpu(2);
    Guarded out(qkv), rstd(size_t(s.T * 3)), dqkv(dout);
    rotary_forward<float>(cpu, out, rstd, table.data(), s, options);
    rotary_backward<float>(cpu, dqkv, out, rstd, table.data(), s, options);
    for (const Floats& x : {out.get(), dqkv.get()}) {
        CHECK(all_nan(Floats(x.begin() + s.row() + s.HS, x.begin() + s.row() + 2 * s.HS)));
        CHECK(count_not_finite(x) == s.HS);
    }
    CHECK(Floats(out.data(), out + s.HS) == Floats(size_t(s.HS), 0));
}

TEST_CASE("rotary refuses head sizes that do not divide", "[rotary]") {
    CHECK(contains(error_of([] { rotary_table(4, 7, {}); }), "2: head size 7: rotary positions need a multiple of 2"));
    CHECK(contains(error_of([] { rotary_table(4, 6, {.half_truncated = true}); }), "need a multiple of 4"));
    Cpu cpu(1);
    Guarded qkv(6, 1), rstd(2);
    CHECK(contains(error_of([&] { rotary_forward<float>(cpu, qkv, rstd, nullptr, {1, 1, 1, 1, 2}, {}); }), "internal"));
    CHECK(contains(
        error_of([&] { rotary_backward<float>(cpu, qkv, qkv, nullptr, nullptr, {1, 1, 1, 1, 2}, {.qk_norm = true}); }),
        "internal"));
}

TEST_CASE("rotary in bf16 rounds each result once", "[rotary]") {
    const RotaryCase& test = GENERATE(from_range(kCases));
    INFO(test.name);
    check_rounds_once([&s = test.shape, &options = test.options]<class T>(Cpu& cpu) {
        const size_t n = size_t(s.B * s.T * s.row());
        const auto qkv = bf16_randn<T>(int64_t(n), 1);  // for backward as good as any
        const Floats table = rotary_table(s.T, s.HS, options);
        Guarded<T> out(rounded<bf16>(randn(n, 2))), dqkv(rounded<bf16>(randn(n, 3)));
        Guarded rstd(options.qk_norm ? size_t(s.B * s.T * (s.NH + s.NKV)) : 0);
        float* saved = options.qk_norm ? rstd.data() : nullptr;
        rotary_forward(cpu, out.data(), saved, table.data(), s, options);
        rotary_backward(cpu, dqkv.data(), qkv.data(), saved, table.data(), s, options);
        return std::vector{stored(out), rstd.get(), stored(dqkv)};
    });
}

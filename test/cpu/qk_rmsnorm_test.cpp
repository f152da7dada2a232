// RMSNorm of queries and keys with gains, against PyTorch.
#include "llmc/cpu/qk_rmsnorm.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, check_close, check_relative, plus
#include "test/testing.h"

constexpr float kEps = 1e-6f;

struct QkCase {
    const char* name;
    AttentionShape shape;
};
// dev/fixtures/op_fixtures.py has the same table.
static const std::vector<QkCase> kCases = {
    {"one", {1, 1, 1, 1, 8}}, {"grouped", {2, 5, 4, 2, 16}}, {"odd", {3, 23, 3, 1, 14}}, {"wide", {1, 3, 2, 1, 128}}};

// As in test/cpu/rmsnorm_test.cpp, of rows of HS: half a unit for each rounding.
static double rstd_units(int64_t HS) { return (double(HS) / 16 + 4) / 4 + 2; }
static double dinp_units(int64_t HS) { return 3 * rstd_units(HS) + (double(HS) / 16 + 4) / 2 + 4; }

// The part of (B, T, NH + 2 NKV, HS) that is normed, or the values.
static Floats part_of(const Floats& all, const AttentionShape& s, bool values) {
    const int64_t normed = (s.NH + s.NKV) * s.HS;
    Floats part;
    for (int64_t n = 0; n < s.B * s.T; n++) {
        const auto token = all.begin() + n * s.row();
        part.insert(part.end(), token + (values ? normed : 0), token + (values ? s.row() : normed));
    }
    return part;
}

TEST_CASE("qk_rmsnorm agrees with PyTorch", "[qk_rmsnorm]") {
    const Fixture f("qk_rmsnorm");
    const QkCase& test = GENERATE(from_range(kCases));
    const AttentionShape& s = test.shape;
    const std::string name = test.name, want = "want." + name;
    INFO(name);
    const Floats qkv = f.floats(name + ".qkv"), dout = f.floats(name + ".dout");
    const Floats q_weight = f.floats(name + ".q_weight"), k_weight = f.floats(name + ".k_weight");
    const size_t rows = size_t(s.B * s.T * (s.NH + s.NKV)), HS = size_t(s.HS);
    const Floats dq_start = randn(HS, 1), dk_start = randn(HS, 2);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(qkv), saved(rows * HS), rstd(rows), dqkv(dout), dq(dq_start), dk(dk_start);
        qk_rmsnorm_forward<float>(cpu, out, saved, rstd, q_weight.data(), k_weight.data(), s, kEps);
        qk_rmsnorm_backward<float>(cpu, dqkv, dq, dk, saved.data(), rstd.data(), q_weight.data(), k_weight.data(), s);
        return std::vector{out.get(), saved.get(), rstd.get(), dqkv.get(), dq.get(), dk.get()};
    });
    check_relative("out", got[0], f.floats(want + ".out"), (rstd_units(s.HS) + 1) * kEpsF32);
    check_equal("saved", got[1], part_of(qkv, s, false));
    check_relative("rstd", got[2], f.floats(want + ".rstd"), rstd_units(s.HS) * kEpsF32);
    check_close("dqkv", part_of(got[3], s, false), part_of(f.floats(want + ".dqkv"), s, false),
                dinp_units(s.HS) * kEpsF32);
    for (const size_t i : {0, 3}) check_equal("values", part_of(got[i], s, true), part_of(i ? dout : qkv, s, true));
    // as many terms as heads, each as exact as out without its gain, and their sums
    const double terms = double(s.B * s.T * s.NH);
    check_close("dq_weight", got[4], plus(dq_start, f.floats(want + ".dq_weight")),
                (rstd_units(s.HS) + terms / 2 + 1) * kEpsF32);
    check_close("dk_weight", got[5], plus(dk_start, f.floats(want + ".dk_weight")),
                (rstd_units(s.HS) + terms / 2 + 1) * kEpsF32);
}

TEST_CASE("qk_rmsnorm: a gain of zero still learns", "[qk_rmsnorm]") {
    const AttentionShape s{1, 2, 1, 1, 8};
    const Floats qkv(size_t(2 * s.row()), 3), dout(qkv.size(), 2), zero(8, 0), one(8, 1);
    Cpu cpu(1);
    Guarded out(qkv), saved(32), rstd(4), dqkv(dout), dq(Floats(8, 0)), dk(Floats(8, 0));
    qk_rmsnorm_forward<float>(cpu, out, saved, rstd, zero.data(), one.data(), s, 0);
    qk_rmsnorm_backward<float>(cpu, dqkv, dq, dk, saved.data(), rstd.data(), zero.data(), one.data(), s);
    check_close("dq_weight", dq.get(), Floats(8, 4), 4 * kEpsF32);  // two tokens' dout * 1
    check_equal("dq", Floats(dqkv.data(), dqkv.data() + 8), zero);
}

TEST_CASE("qk_rmsnorm: a NaN spoils its head and no other; a head of zeros stays zero", "[qk_rmsnorm]") {
    const AttentionShape s{1, 2, 2, 1, 20};
    Floats qkv = randn(size_t(s.T * s.row()), 1);
    const Floats dout = randn(qkv.size(), 2), gain = randn(20, 3);
    qkv[size_t(s.row() + s.HS + 17)] = std::nanf("");  // the second query head of the second token
    std::fill_n(qkv.begin(), s.HS, 0.f);
    Cpu cpu(2);
    Guarded out(qkv), saved(120), rstd(6), dqkv(dout), dq(Floats(20, 0)), dk(Floats(20, 0));
    qk_rmsnorm_forward<float>(cpu, out, saved, rstd, gain.data(), gain.data(), s, kEps);
    qk_rmsnorm_backward<float>(cpu, dqkv, dq, dk, saved.data(), rstd.data(), gain.data(), gain.data(), s);
    for (const Floats& x : {out.get(), dqkv.get()}) {
        CHECK(all_nan(Floats(x.begin() + s.row() + s.HS, x.begin() + s.row() + 2 * s.HS)));
        CHECK(count_not_finite(x) == s.HS);
    }
    CHECK(Floats(out.data(), out + s.HS) == Floats(size_t(s.HS), 0));
    CHECK(all_nan(dq.get()));
    CHECK(count_not_finite(dk.get()) == 0);
}

TEST_CASE("qk_rmsnorm in bf16 rounds each result once", "[qk_rmsnorm]") {
    const QkCase& test = GENERATE(from_range(kCases));
    INFO(test.name);
    check_rounds_once([&s = test.shape]<class T>(Cpu& cpu) {
        const size_t n = size_t(s.B * s.T * s.row()), rows = size_t(s.B * s.T * (s.NH + s.NKV)), HS = size_t(s.HS);
        const auto q_weight = bf16_randn<T>(s.HS, 3), k_weight = bf16_randn<T>(s.HS, 4);
        Guarded<T> out(rounded<bf16>(randn(n, 1))), saved(rows * HS), dqkv(rounded<bf16>(randn(n, 2)));
        Guarded rstd(rows), dq(randn(HS, 5)), dk(randn(HS, 6));
        qk_rmsnorm_forward(cpu, out.data(), saved.data(), rstd, q_weight.data(), k_weight.data(), s, kEps);
        qk_rmsnorm_backward(cpu, dqkv.data(), dq, dk, saved.data(), rstd, q_weight.data(), k_weight.data(), s);
        return std::vector{stored(out), rstd.get(), stored(dqkv), dq.get(), dk.get()};
    });
}

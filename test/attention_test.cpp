// Causal attention against PyTorch, and at every mix of sizes against a plain double version that PyTorch confirms
// here.
#include "llmc/cpu/attention.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, bell
#include "test/testing.h"

struct Sizes {
    int64_t B, T, NH, HS;
    size_t out() const { return size_t(B * T * NH * HS); }
    size_t lse() const { return size_t(B * NH * T); }
    size_t qkv(int64_t b, int64_t t, int64_t which, int64_t h) const {  // offset of q, k or v (which = 0, 1, 2)
        return size_t((((b * T + t) * 3 + which) * NH + h) * HS);
    }
};

// sum of a[i] b[i], and of |a[i] b[i]|
struct Dot {
    double sum = 0, magnitude = 0;
    template <class T>
    Dot(const float* a, const T* b, int64_t n) {
        for (int64_t i = 0; i < n; i++) sum += double(a[i]) * b[i], magnitude += std::fabs(double(a[i]) * b[i]);
    }
};

struct Plain {
    Floats out, lse, dqkv;
    std::vector<double> out_bounds, lse_bounds, dqkv_bounds;
};

// The formulas, row by row in double; and beside each sum the sum of its terms' magnitudes, times the float32 units
// that a term may be off by. A sum's own rounding is near one unit of its magnitudes for a score, sqrt(T) / 2 for a sum
// over T. A score's error becomes p's relative error, in lse again, and once more when backward takes p from a new
// score and the lse.
static Plain plain_attention(const Sizes& s, const Floats& qkv, const Floats& dout) {
    constexpr double kSmallest = 0x1p-126;  // smaller numbers may be zero instead
    const size_t HS = size_t(s.HS);
    std::vector<double> dqkv(qkv.size());
    Plain plain{Floats(s.out()),
                Floats(s.lse()),
                {},
                std::vector<double>(s.out()),
                std::vector<double>(s.lse()),
                std::vector<double>(qkv.size(), kSmallest)};
    const double scale = 1 / std::sqrt(double(s.HS)), sum_units = 2 + std::sqrt(double(s.T)) / 2;
    for (int64_t b = 0; b < s.B; b++)
        for (int64_t h = 0; h < s.NH; h++)
            for (int64_t t = 0; t < s.T; t++) {
                const size_t row = size_t(((b * s.T + t) * s.NH + h) * s.HS), q = s.qkv(b, t, 0, h);
                std::vector<double> p;
                double score_units = 0;
                for (int64_t j = 0; j <= t; j++) {
                    const Dot score(&qkv[q], &qkv[s.qkv(b, j, 1, h)], s.HS);
                    p.push_back(scale * score.sum);
                    score_units = std::max(score_units, scale * score.magnitude);
                }
                const double largest = *std::max_element(p.begin(), p.end());
                double sum = 0;
                for (const double score : p) sum += std::exp(score - largest);
                for (double& x : p) x = std::exp(x - largest) / sum;
                const size_t lse = size_t((b * s.NH + h) * s.T + t);
                plain.lse[lse] = float(largest + std::log(sum));
                plain.lse_bounds[lse] = (sum_units + score_units + std::fabs(plain.lse[lse])) * kEpsF32;

                std::vector<double> o(HS), o_magnitude(HS);
                for (size_t c = 0; c < HS; c++) {
                    for (int64_t j = 0; j <= t; j++) {
                        const double term = p[size_t(j)] * qkv[s.qkv(b, j, 2, h) + c];
                        o[c] += term, o_magnitude[c] += std::fabs(term);
                    }
                    plain.out[row + c] = float(o[c]);
                    plain.out_bounds[row + c] = (sum_units + 2 * score_units) * kEpsF32 * o_magnitude[c];
                }
                const double dout_out = Dot(&dout[row], o.data(), s.HS).sum;
                const double dout_out_magnitude = Dot(&dout[row], o_magnitude.data(), s.HS).magnitude;
                const double units = (4 + sum_units + 5 * score_units) * kEpsF32;
                for (int64_t j = 0; j <= t; j++) {
                    const size_t k = s.qkv(b, j, 1, h), v = s.qkv(b, j, 2, h);
                    const Dot dp(&dout[row], &qkv[v], s.HS);
                    const double p_bound = p[size_t(j)] * units + kSmallest;
                    const double dscore = p[size_t(j)] * scale * (dp.sum - dout_out);
                    const double dscore_bound = p_bound * scale * (dp.magnitude + dout_out_magnitude);
                    for (size_t c = 0; c < HS; c++) {
                        dqkv[q + c] += dscore * qkv[k + c];
                        dqkv[k + c] += dscore * qkv[q + c];
                        dqkv[v + c] += p[size_t(j)] * dout[row + c];
                        plain.dqkv_bounds[q + c] += dscore_bound * std::fabs(qkv[k + c]);
                        plain.dqkv_bounds[k + c] += dscore_bound * std::fabs(qkv[q + c]);
                        plain.dqkv_bounds[v + c] += p_bound * std::fabs(dout[row + c]);
                    }
                }
            }
    plain.dqkv.assign(dqkv.begin(), dqkv.end());
    return plain;
}

static std::vector<Floats> attention(const Sizes& s, const Floats& qkv, const Floats& dout) {
    return on_any_threads([&](Cpu& cpu) {
        Guarded out(s.out()), lse(s.lse()), dqkv(qkv.size());
        attention_forward(cpu, out, lse, qkv.data(), s.B, s.T, s.NH, s.HS);
        attention_backward(cpu, dqkv, dout.data(), out, lse, qkv.data(), s.B, s.T, s.NH, s.HS);
        return std::vector{out.get(), lse.get(), dqkv.get()};
    });
}

TEST_CASE("attention agrees with PyTorch", "[attention]") {
    const Fixture f("attention");
    const auto [B, T, NH, HS] = GENERATE(table<int, int, int, int>({{1, 1, 1, 4},
                                                                    {2, 2, 3, 16},
                                                                    {1, 31, 2, 16},
                                                                    {1, 33, 1, 64},
                                                                    {1, 64, 1, 32},
                                                                    {1, 65, 1, 80},
                                                                    {1, 150, 2, 4},
                                                                    {2, 40, 2, 16}}));  // the last: scores beyond 1000
    const std::string name = format("%dx%dx%dx%d.", B, T, NH, HS);
    INFO(name);
    const Sizes sizes{B, T, NH, HS};
    const Floats qkv = f.floats(name + "qkv"), dout = f.floats(name + "dout");
    const Floats out = f.floats("want." + name + "out"), lse = f.floats("want." + name + "lse");
    const Floats dqkv = f.floats("want." + name + "dqkv");
    const Plain plain = plain_attention(sizes, qkv, dout);
    check_close("the plain version's out", plain.out, out, kEpsF32);
    check_close("the plain version's lse", plain.lse, lse, kEpsF32);
    check_close("the plain version's dqkv", plain.dqkv, dqkv, kEpsF32);
    const auto got = attention(sizes, qkv, dout);
    check_within("out", got[0], out, plain.out_bounds);
    check_within("lse", got[1], lse, plain.lse_bounds);
    check_within("dqkv", got[2], dqkv, plain.dqkv_bounds);
}

TEST_CASE("attention is right at every mix of sizes", "[attention]") {
    const int64_t T = GENERATE(1, 2, 31, 32, 33, 64, 65, 150), HS = GENERATE(1, 4, 16, 20, 32, 64, 80, 128);
    const Sizes sizes{2, T, 2, HS};
    INFO("T=" << T << " HS=" << HS);
    const Floats qkv = bell(uint64_t(T), 3 * int64_t(sizes.out())), dout = bell(uint64_t(HS), int64_t(sizes.out()));
    const Plain want = plain_attention(sizes, qkv, dout);
    const auto got = attention(sizes, qkv, dout);
    check_within("out", got[0], want.out, want.out_bounds);
    check_within("lse", got[1], want.lse, want.lse_bounds);
    check_within("dqkv", got[2], want.dqkv, want.dqkv_bounds);
}

TEST_CASE("attention: equal scores give the mean of the values", "[attention]") {
    const Sizes sizes{1, 64, 1, 16};
    Floats qkv(3 * sizes.out(), 0), want(sizes.out());
    for (int64_t t = 0; t < sizes.T; t++)
        for (int64_t c = 0; c < sizes.HS; c++) qkv[sizes.qkv(0, t, 2, 0) + size_t(c)] = float(t);
    Floats lse_want;
    for (int64_t t = 0; t < sizes.T; t++) {
        for (int64_t c = 0; c < sizes.HS; c++) want[size_t(t * sizes.HS + c)] = float(t) / 2;
        lse_want.push_back(float(std::log(double(t + 1))));
    }
    const auto got = attention(sizes, qkv, Floats(sizes.out(), 1));
    check_relative("out", got[0], want, (2 + 4) * kEpsF32);  // p, and a sum of 64 terms
    check_close("lse", got[1], lse_want, 2 * kEpsF32);
}

TEST_CASE("attention does not look ahead", "[attention]") {
    const Sizes sizes{1, 70, 2, 16};
    const int64_t changed = GENERATE(1, 15, 32, 63, 69);  // this position and all after it
    Floats qkv = randn(3 * sizes.out(), 1);
    const Floats dout = randn(sizes.out(), 2);
    const auto before = attention(sizes, qkv, dout);
    for (size_t i = sizes.qkv(0, changed, 0, 0); i < qkv.size(); i++) qkv[i] = 100 - qkv[i];
    const auto after = attention(sizes, qkv, dout);
    const auto first = [&](const Floats& x) { return Floats(x.begin(), x.begin() + changed * sizes.NH * sizes.HS); };
    CHECK(same_bits(first(before[0]), first(after[0])));
    CHECK(!same_bits(before[0], after[0]));
}

TEST_CASE("attention hands a NaN on", "[attention]") {
    const Sizes sizes{2, 40, 1, 16};
    const int64_t which = GENERATE(0, 1, 2), t = GENERATE(0, 17, 39);
    INFO("a NaN in " << "qkv"[which] << " at " << t);
    Floats qkv = randn(3 * sizes.out(), 1);
    const Floats dout = randn(sizes.out(), 2);
    qkv[sizes.qkv(1, t, which, 0) + 3] = std::nanf("");
    const auto got = attention(sizes, qkv, dout);
    const auto row = [&](int64_t b, int64_t t) { return got[0].begin() + (b * sizes.T + t) * sizes.HS; };
    CHECK(count_not_finite(Floats(row(1, t), row(1, t) + sizes.HS)) >= (which == 2 ? 1 : sizes.HS));
    CHECK(count_not_finite(Floats(row(1, 39), row(1, 39) + sizes.HS)) >= (which == 0 && t != 39 ? 0 : 1));
    CHECK(count_not_finite(Floats(got[2].begin() + int64_t(sizes.qkv(1, 0, 0, 0)), got[2].end())) > 0);
    CHECK(count_not_finite(Floats(row(0, 0), row(1, 0))) == 0);  // the other sequence
}

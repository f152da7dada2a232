// The graphs for cuDNN (attention_graph.h), run by a plain interpreter and compared with the definition of attention,
// and the shapes that are refused. Whether cuDNN has plans for them: test/cuda/cudnn_plans.cpp.
#include "llmc/cuda/attention/cudnn_attention.h"
#include <functional>
#include <map>
#include <memory>
#include "llmc/cuda/attention/attention_graph.h"
#include "test/testing.h"

using Doubles = std::vector<double>;

// A builder that computes each operation at once, in double. Memory outside of what is written stays NaN.
class Interpreter {
public:
    struct Data {
        Form form;
        std::shared_ptr<Doubles> owned;
        double* memory;
    };
    using Tensor = Data;

    std::map<Uid, double*> memory;  // of the real tensors
    std::map<Uid, double> numbers;

    explicit Interpreter(int64_t num_heads) : num_heads_(num_heads) {}

    Tensor real(Uid uid, GraphType, const Form& form) {
        REQUIRE(memory.count(uid) == 1);
        return {form, nullptr, memory.at(uid)};
    }
    Tensor local(GraphType, const Form& form) {
        int64_t last = 0;
        for (size_t i = 0; i < 4; i++) last += (form.sizes[i] - 1) * form.strides[i];
        auto owned = std::make_shared<Doubles>(size_t(last + 1), std::nan(""));
        return {form, owned, owned->data()};
    }
    Tensor scalar(Uid uid) {
        REQUIRE(numbers.count(uid) == 1);
        Tensor result = local(GraphType::f32, Form::contiguous(1, 1, 1, 1));
        result.memory[0] = numbers.at(uid);
        return result;
    }

    Tensor pointwise(Pointwise op, Tensor x, Tensor b, Tensor y) {
        for_each(y, [&](const Index& i) {
            const double l = at(x, i), r = at(b, i);
            at(y, i) = op == Pointwise::add       ? l + r
                       : op == Pointwise::sub     ? l - r
                       : op == Pointwise::mul     ? l * r
                       : op == Pointwise::div     ? l / r
                       : op == Pointwise::greater ? double(l > r)
                                                  : double(l >= r);
        });
        return y;
    }
    Tensor pointwise(Pointwise op, Tensor x, Tensor y) {
        for_each(y, [&](const Index& i) {
            at(y, i) = op == Pointwise::exp ? std::exp(at(x, i)) : op == Pointwise::log ? std::log(at(x, i)) : at(x, i);
        });
        return y;
    }
    Tensor select(Tensor t, Tensor x, Tensor b, Tensor y) {
        for_each(y, [&](const Index& i) { at(y, i) = at(t, i) != 0 ? at(x, i) : at(b, i); });
        return y;
    }
    Tensor index(Tensor, int64_t axis, Tensor y) {
        for_each(y, [&](const Index& i) { at(y, i) = double(i[size_t(axis)]); });
        return y;
    }
    Tensor matmul(Tensor a, Tensor b, Tensor c) {
        REQUIRE(a.form.sizes[3] == b.form.sizes[2]);
        REQUIRE((a.form.sizes[2] == c.form.sizes[2] && b.form.sizes[3] == c.form.sizes[3]));
        for_each(c, [&](const Index& i) {
            double sum = 0;
            for (int64_t k = 0; k < a.form.sizes[3]; k++)
                sum += at(a, {i[0], i[1], i[2], k}) * at(b, {i[0], i[1], k, i[3]});
            at(c, i) = sum;
        });
        return c;
    }
    Tensor reduce(Reduction op, Tensor x, Tensor y) {
        for_each(y, [&](const Index& i) { at(y, i) = op == Reduction::sum ? 0 : -INFINITY; });
        for_each(x, [&](const Index& i) {
            double& to = at(y, i);
            to = op == Reduction::sum ? to + at(x, i) : std::max(to, at(x, i));
        });
        return y;
    }
    // The same memory under y's form.
    Tensor transpose(Tensor x, Tensor y) { return {y.form, x.owned, x.memory}; }

private:
    using Index = std::array<int64_t, 4>;  // heads are counted as those of queries

    // Of fewer heads each serves as many, one after the other; of one row or column it serves all.
    double& at(const Tensor& t, const Index& i) const {
        int64_t offset = 0;
        for (size_t d = 0; d < 4; d++) {
            const int64_t size = t.form.sizes[d];
            offset += (d == 1 ? i[d] / (num_heads_ / size) : size == 1 ? 0 : i[d]) * t.form.strides[d];
        }
        return t.memory[offset];
    }
    void for_each(const Tensor& t, const std::function<void(const Index&)>& body) const {
        const auto& n = t.form.sizes;
        for (int64_t b = 0; b < n[0]; b++)
            for (int64_t h = 0; h < num_heads_; h += num_heads_ / n[1])
                for (int64_t r = 0; r < n[2]; r++)
                    for (int64_t c = 0; c < n[3]; c++) body({b, h, r, c});
    }

    int64_t num_heads_;
};

static Doubles doubles(int64_t n, uint64_t seed) {
    const Floats x = randn(size_t(n), seed);
    return Doubles(x.begin(), x.end());
}

struct Attention {
    Doubles out, lse, dqkv;
};

// From the definition, with the whole Jacobian of the softmax.
static Attention definition(const AttentionShape& s, const Doubles& qkv, const Doubles& dout) {
    Attention result = {Doubles(size_t(s.B * s.T * s.NH * s.HS)), Doubles(size_t(s.B * s.NH * s.T)),
                        Doubles(qkv.size())};
    const double scale = double(s.score_scale());
    for (int64_t b = 0; b < s.B; b++)
        for (int64_t h = 0; h < s.NH; h++)
            for (int64_t t = 0; t < s.T; t++) {
                const auto place = [&](int64_t token, int64_t head) {
                    return size_t((b * s.T + token) * s.row() + head * s.HS);
                };
                const int64_t group = h / (s.NH / s.NKV), first = s.first_key(t);
                const auto k = [&](int64_t key) { return place(key, s.NH + group); };
                const auto v = [&](int64_t key) { return place(key, s.NH + s.NKV + group); };
                const size_t q = place(t, h), o = size_t(((b * s.T + t) * s.NH + h) * s.HS);
                Doubles p, dp;
                double sum = 0;
                for (int64_t key = first; key <= t; key++) {
                    double score = 0, d = 0;
                    for (size_t i = 0; i < size_t(s.HS); i++)
                        score += qkv[q + i] * qkv[k(key) + i], d += dout[o + i] * qkv[v(key) + i];
                    p.push_back(std::exp(scale * score));
                    dp.push_back(d);
                    sum += p.back();
                }
                result.lse[size_t((b * s.NH + h) * s.T + t)] = std::log(sum);
                for (double& x : p) x /= sum;
                for (size_t j = 0; j < p.size(); j++) {
                    const int64_t key = first + int64_t(j);
                    double ds = 0;
                    for (size_t m = 0; m < p.size(); m++) ds += dp[m] * (double(m == j) - p[j]) * p[m];
                    for (size_t i = 0; i < size_t(s.HS); i++) {
                        result.out[o + i] += p[j] * qkv[v(key) + i];
                        result.dqkv[v(key) + i] += p[j] * dout[o + i];
                        result.dqkv[q + i] += scale * ds * qkv[k(key) + i];
                        result.dqkv[k(key) + i] += scale * ds * qkv[q + i];
                    }
                }
            }
    return result;
}

// Sums of at most a thousand terms of magnitude ten or less, each rounded to 2^-53 of itself.
static void check_doubles(const std::string& name, const Doubles& got, const Doubles& want) {
    REQUIRE(got.size() == want.size());
    double worst = 0;
    for (size_t i = 0; i < got.size(); i++) {
        const double error = std::fabs(got[i] - want[i]);
        if (!(error <= worst)) worst = error;
    }
    INFO(name << " is off by " << worst);
    CHECK(worst <= 1e4 * 0x1p-53);
}

TEST_CASE("cudnn_attention: the graphs compute attention", "[cudnn_attention]") {
    const AttentionShape shape = GENERATE(
        AttentionShape{1, 1, 1, 1, 2}, AttentionShape{2, 7, 3, 3, 4}, AttentionShape{1, 9, 4, 2, 8},
        AttentionShape{2, 9, 4, 2, 8, 3}, AttentionShape{1, 6, 6, 1, 2, 0}, AttentionShape{1, 8, 2, 2, 3, 1, 0.25f},
        AttentionShape{1, 8, 2, 2, 3, 6}, AttentionShape{1, 8, 2, 2, 3, 7}, AttentionShape{2, 11, 6, 3, 5, 4});
    INFO("B " << shape.B << " T " << shape.T << " NH " << shape.NH << " NKV " << shape.NKV << " window "
              << shape.window);
    const int64_t num_rows = shape.B * shape.NH * shape.T, num_out = num_rows * shape.HS;
    Doubles qkv = doubles(shape.B * shape.T * shape.row(), 1), dout = doubles(num_out, 2);
    const Attention want = definition(shape, qkv, dout);
    const double nan = std::nan("");
    Doubles out(size_t(num_out), nan), lse(size_t(num_rows), nan);

    Interpreter g(shape.NH);
    const std::array<int64_t, 3> offsets = qkv_offsets(shape);
    g.memory = {{kQ, qkv.data() + offsets[0]},
                {kK, qkv.data() + offsets[1]},
                {kV, qkv.data() + offsets[2]},
                {kOut, out.data()},
                {kLse, lse.data()}};
    for (const auto& [uid, value] : graph_numbers(shape, false)) g.numbers[uid] = double(value);
    build_attention_forward(g, shape);
    check_doubles("out", out, want.out);
    check_doubles("lse", lse, want.lse);

    for (const bool deterministic : {true, false}) {
        Doubles dqkv(qkv.size(), nan), row_sums(lse.size(), nan), dq_sums(out.size(), nan);
        g.memory[kDout] = dout.data();
        g.memory[kDq] = dqkv.data() + offsets[0];
        g.memory[kDk] = dqkv.data() + offsets[1];
        g.memory[kDv] = dqkv.data() + offsets[2];
        g.memory[kRowSums] = row_sums.data();
        g.memory.erase(kDqSums);  // not given to a deterministic plan
        if (!deterministic) g.memory[kDqSums] = dq_sums.data();
        g.numbers.clear();
        for (const auto& [uid, value] : graph_numbers(shape, true)) g.numbers[uid] = double(value);
        build_attention_backward(g, shape, deterministic);
        check_doubles("dqkv", dqkv, want.dqkv);
    }
}

// As a GPU does it: whole numbers and the offset in float.
static bool keeps(const AttentionShape& shape, int64_t query, int64_t key) {
    for (const MaskStep& step : mask_steps(shape)) {
        const auto number = [&](MaskStep::Index which) { return float(which == MaskStep::Index::query ? query : key); };
        const float left = number(step.left) + step.offset, right = number(step.right);
        if (!(step.or_equal ? left >= right : left > right)) return false;
    }
    return true;
}

TEST_CASE("cudnn_attention: the graph's mask is the mask, for every window", "[cudnn_attention]") {
    for (const int64_t T : {1, 2, 7, 64, 129}) {
        int64_t wrong = 0;
        for (int64_t window = -1; window <= T + 1; window++) {
            const AttentionShape shape = {1, T, 1, 1, 64, window};
            for (int64_t t = 0; t < T; t++)
                for (int64_t s = 0; s < T; s++) wrong += keeps(shape, t, s) != (shape.first_key(t) <= s && s <= t);
        }
        INFO("T " << T);
        CHECK(wrong == 0);
    }
    // The longest sequence that is not refused.
    const int64_t T = (int64_t(1) << 24) - 1, t = T - 1;
    for (const int64_t window : {int64_t(0), int64_t(1), int64_t(65535), T / 2, T - 2}) {
        const AttentionShape shape = {1, T, 1, 1, 64, window};
        CHECK(!keeps(shape, t, t - window - 1));
        CHECK(keeps(shape, t, t - window));
        CHECK(keeps(shape, t, t));
        CHECK(!keeps(shape, t - 1, t));
    }
}

TEST_CASE("cudnn_attention: a window that hides nothing has the plan of no window", "[cudnn_attention]") {
    const auto steps = [](int64_t window) { return mask_steps({1, 100, 1, 1, 64, window}).size(); };
    CHECK(steps(-1) == 1);
    CHECK(steps(0) == 2);
    CHECK(steps(98) == 2);
    CHECK(steps(99) == 1);
    CHECK(steps(1000) == 1);
}

TEST_CASE("cudnn_attention: shapes and versions that are refused, with the reason", "[cudnn_attention]") {
    const auto why = [](AttentionShape shape, int capability = 90, size_t version = 92800, bool deterministic = true) {
        return why_not_cudnn(shape, capability, version, deterministic);
    };
    CHECK(why({4, 1024, 12, 4, 64}) == "");
    CHECK(why({4, 1000, 12, 4, 128, 255}) == "");
    CHECK(why({4, 1024, 12, 5, 64}) == "12 heads cannot share 5");
    CHECK(why({4, 1024, 12, 0, 64}) == "12 heads cannot share 0");
    CHECK(why({4, 1024, 12, 4, 60}) == "head size 60: cuDNN has multiples of 8 up to 256 here");
    CHECK(why({4, 1024, 12, 4, 256}) == "");
    CHECK(contains(why({4, 1024, 12, 4, 264}), "head size"));
    CHECK(contains(why({4, 1024, 12, 4, 136}, 80), "up to 128 here"));
    CHECK(contains(why({4, 1024, 12, 4, 136}, 100), "up to 128 here"));
    CHECK(why({4, 1024, 12, 4, 128}, 80) == "");
    CHECK(contains(why({4, 1, 12, 4, 64}), "one token"));
    CHECK(why({4, 2, 12, 4, 64}) == "");
    CHECK(contains(why({1, 1 << 24, 12, 4, 64}), "2^24"));
    CHECK(contains(why({4, 1024, 12, 4, 64}, 90, 91001), "older than 9.10.2"));
    CHECK(why({4, 1024, 12, 4, 64}, 90, 91002) == "");
    CHECK(contains(why({4, 1000, 12, 4, 64}, 90, 91599), "multiples of 128"));
    CHECK(why({4, 1000, 12, 4, 64}, 90, 91600) == "");
    CHECK(contains(why({4, 1024, 12, 4, 64}, 100, 91799), "Blackwell"));
    CHECK(why({4, 1024, 12, 4, 64}, 100, 91800) == "");
    CHECK(why({4, 1024, 12, 4, 64}, 100, 91799, false) == "");
    const int32_t starts = 0;
    AttentionShape documents{4, 1024, 12, 4, 64};
    documents.starts = &starts;
    CHECK(contains(why(documents), "several documents"));
    CHECK(contains(error_of([&] { mask_steps(documents); }), "starts"));  // and no graph is made that forgets them
}

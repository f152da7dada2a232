// Causal attention against PyTorch, and for all combinations of sizes against a plain version in double, which is
// itself compared with PyTorch here.
#include "llmc/cpu/attention.h"
#include "test/cpu/attention_reference.h"  // Sizes, plain_attention
#include "test/cpu/software_tiles.h"       // UsedRegisters
#include "test/fixture.h"                  // Fixture
#include "test/op_testing.h"               // on_any_threads, bell, same_bits
#include "test/testing.h"

template <class T = float>
static std::vector<Floats> attention(const Sizes& s, const Floats& qkv_values, const Floats& dout_values) {
    std::vector<T> qkv, dout;
    for (const float x : qkv_values) qkv.push_back(rounded_value<T>(x));
    for (const float x : dout_values) dout.push_back(rounded_value<T>(x));
    const Ints starts = s.document_starts();
    AttentionShape shape = s;
    shape.starts = starts.empty() ? nullptr : starts.data();
    return on_any_threads([&](Cpu& cpu) {
        Guarded<T> out(s.out()), dqkv(qkv.size());
        Guarded lse(s.lse());
        attention_forward<T>(cpu, out, lse, qkv.data(), shape);
        attention_backward<T>(cpu, dqkv, dout.data(), out, lse, qkv.data(), shape);
        return std::vector{out.get(), lse.get(), dqkv.get()};
    });
}

static void check_against_pytorch(const std::string& name, const Sizes& sizes) {
    const Fixture f("attention");
    INFO(name);
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

TEST_CASE("attention agrees with PyTorch", "[attention]") {
    const auto [B, T, NH, HS] = GENERATE(table<int, int, int, int>({{1, 1, 1, 4},
                                                                    {2, 2, 3, 16},
                                                                    {1, 31, 2, 16},
                                                                    {1, 33, 1, 64},
                                                                    {1, 64, 1, 32},
                                                                    {1, 65, 1, 80},
                                                                    {1, 150, 2, 4},
                                                                    {2, 40, 2, 16}}));  // the last: scores beyond 1000
    check_against_pytorch(format("%dx%dx%dx%d.", B, T, NH, HS), {{B, T, NH, NH, HS}});
}

TEST_CASE("attention with windows and shared keys agrees with PyTorch", "[attention]") {
    const auto [B, T, NH, NKV, HS, window, scale] =
        GENERATE(table<int, int, int, int, int, int, float>({{2, 5, 4, 2, 4, 0, 0.f},
                                                             {1, 20, 6, 2, 4, 3, 0.75f},
                                                             {2, 40, 3, 1, 4, -1, 0.f},
                                                             {1, 70, 2, 2, 8, 31, 0.f},
                                                             {1, 150, 4, 2, 4, 64, 1.25f}}));
    check_against_pytorch(format("%dx%dx%dx%dx%dw%d.", B, T, NH, NKV, HS, window),
                          {{B, T, NH, NKV, HS, window, scale}});
}

TEST_CASE("attention among documents agrees with PyTorch", "[attention]") {
    const auto [B, T, NH, NKV, HS, window] = GENERATE(
        table<int, int, int, int, int, int>({{2, 9, 4, 2, 4, -1}, {2, 70, 2, 1, 8, -1}, {1, 150, 2, 1, 4, 20}}));
    const std::string name = format("%dx%dx%dx%dx%dw%ddocuments.", B, T, NH, NKV, HS, window);
    check_against_pytorch(name, {{B, T, NH, NKV, HS, window}, Fixture("attention").ints(name + "documents")});
}

static void check_against_plain(const Sizes& sizes) {
    INFO("T=" << sizes.T << " NH=" << sizes.NH << " NKV=" << sizes.NKV << " HS=" << sizes.HS
              << " window=" << sizes.window);
    const Floats qkv = bell(uint64_t(sizes.T), int64_t(sizes.qkv()));
    const Floats dout = bell(uint64_t(sizes.HS), int64_t(sizes.out()));
    const Plain want = plain_attention(sizes, qkv, dout);
    const auto got = attention(sizes, qkv, dout);
    check_within("out", got[0], want.out, want.out_bounds);
    check_within("lse", got[1], want.lse, want.lse_bounds);
    check_within("dqkv", got[2], want.dqkv, want.dqkv_bounds);
}

TEST_CASE("attention is right at every mix of sizes", "[attention]") {
    const int64_t T = GENERATE(1, 2, 31, 32, 33, 64, 65, 150), HS = GENERATE(1, 4, 16, 20, 32, 64, 80, 128);
    check_against_plain({{2, T, 2, 2, HS}});
}

TEST_CASE("attention is right for every window", "[attention]") {
    const int64_t T = GENERATE(1, 31, 64, 65, 200), window = GENERATE(0, 1, 5, 31, 32, 33, 63, 64, 65, 127, 300);
    check_against_plain({{1, T, 2, 2, 20, window}});
}

TEST_CASE("attention is right for every group of heads", "[attention]") {
    const auto [NH, NKV] =
        GENERATE(table<int, int>({{1, 1}, {2, 1}, {4, 2}, {6, 2}, {5, 1}, {64, 32}}));  // last: rows of 4 KB
    const int64_t window = GENERATE(-1, 33);
    check_against_plain({{2, 70, NH, NKV, 16, window}});
}

// Documents of one token, of two, of odd lengths, that end with a tile of 32 or 64 or beside it, and one that is the
// row; windows that hide nothing, everything but the token itself, and what a document already does.
TEST_CASE("attention is right among documents of any length", "[attention]") {
    const int64_t T = GENERATE(1, 33, 65, 200);
    const auto lengths =
        GENERATE(values<std::vector<int64_t>>({{1}, {2}, {1, 2, 3, 5, 7}, {31, 33}, {64}, {65, 1, 63}, {97, 2, 150}}));
    const int64_t window = GENERATE_COPY(-1, 0, 1, T / 4, T - 1, T, T + 100);
    INFO("documents of " << lengths[0] << " and " << lengths.size() - 1 << " other lengths");
    check_against_plain({{2, T, 2, 1, 20, window}, documents_of(2, T, lengths)});
}

TEST_CASE("attention among documents is right for every head size and group", "[attention]") {
    const int64_t HS = GENERATE(16, 32, 64, 80, 128), NKV = GENERATE(1, 2, 4);
    check_against_plain({{2, 100, 4, NKV, HS}, documents_of(2, 100, {40, 3, 70})});
}

// With equal scores and values and gradients that are rows of the identity, the weights can be read off: from out
// whether query t sees key s, from the gradient of v whether key s hears of query t, and from that of q both at once.
TEST_CASE("attention sees the pairs of the mask and no others", "[attention]") {
    const int64_t T = 200, window = GENERATE(-1, 0, 1, 31, 50, 63, 64, 65, 198, 199, 200, 300);
    const bool documents = GENERATE(false, true);
    Sizes s{{1, T, 1, 1, T, window, 1}};
    if (documents) s.documents = documents_of(1, T, {64, 3, 1, 28, 37});
    Floats qkv(s.qkv(), 0), dout(s.out(), 0);
    for (int64_t t = 0; t < T; t++)
        qkv[s.at(0, t, 1, 0) + size_t(t)] = qkv[s.at(0, t, 2, 0) + size_t(t)] = dout[size_t(t * T + t)] = 1;
    const auto got = attention(s, qkv, dout);
    int64_t wrong = 0;
    for (int64_t t = 0; t < T; t++) {
        int64_t keys = 0;
        for (int64_t key = 0; key < T; key++) keys += s.sees(0, t, key);
        if (!documents && window >= 0) CHECK(keys == std::min(t, window) + 1);
        for (int64_t key = 0; key < T; key++) {
            const bool sees = s.sees(0, t, key);
            wrong += (got[0][size_t(t * T + key)] != 0) != sees;
            wrong += (got[2][s.at(0, key, 2, 0) + size_t(t)] != 0) != sees;
            wrong += (got[2][s.at(0, t, 0, 0) + size_t(key)] != 0) != (sees && keys > 1);
        }
    }
    INFO("window " << window << (documents ? ", documents" : ""));
    CHECK(wrong == 0);
}

// Attention has no positions: a document is what it would be as a row of its own. Its tiles are others unless it begins
// where one does, so the bits may differ, by no more than either may differ from the truth.
TEST_CASE("attention: documents in a row are rows of their own", "[attention]") {
    const auto lengths = GENERATE(values<std::vector<int64_t>>({{64, 128, 40}, {1, 30, 33, 70, 98}}));
    const int64_t window = GENERATE(-1, 20);
    const bool same_tiles = lengths[0] == 64;
    const int64_t T = 232;
    const Sizes packed{{1, T, 4, 2, 16, window}, documents_of(1, T, lengths)};
    const Floats qkv = bell(1, int64_t(packed.qkv())), dout = bell(2, int64_t(packed.out()));
    const Plain bounds = plain_attention(packed, qkv, dout);
    const auto got = attention(packed, qkv, dout);
    int64_t first = 0;
    for (const int64_t length : lengths) {
        INFO("the document of " << length << " from " << first << " on");
        const Sizes alone{{1, length, 4, 2, 16, window}};
        const auto part = [&](const auto& x, int64_t row) {
            return std::decay_t<decltype(x)>(x.begin() + first * row, x.begin() + (first + length) * row);
        };
        const auto check = [&](const char* name, const Floats& packed, const Floats& alone,
                               std::vector<double> allowed) {
            for (double& bound : allowed) bound *= same_tiles ? 0 : 2;
            check_within(name, packed, alone, allowed);
        };
        const int64_t row = alone.row(), out_row = alone.NH * alone.HS;
        const auto want = attention(alone, part(qkv, row), part(dout, out_row));
        check("out", part(got[0], out_row), want[0], part(bounds.out_bounds, out_row));
        check("dqkv", part(got[2], row), want[2], part(bounds.dqkv_bounds, row));
        for (int64_t h = 0; h < alone.NH; h++) {
            const auto head = [&](const auto& x, int64_t begin) {
                return std::decay_t<decltype(x)>(x.begin() + begin, x.begin() + begin + length);
            };
            check("lse", head(got[1], h * T + first), head(want[1], h * length),
                  head(bounds.lse_bounds, h * T + first));
        }
        first += length;
    }
    CHECK(first == T);
}

// Finite, because a masked weight of zero is multiplied; but scores and dP overflow.
TEST_CASE("attention takes nothing from another document", "[attention]") {
    const Sizes s{{1, 150, 2, 1, 16}, documents_of(1, 150, {37, 60, 53})};
    const int64_t document = GENERATE(0, 1, 2);
    const Floats qkv = randn(s.qkv(), 1), dout = randn(s.out(), 2);
    Floats changed = qkv, changed_dout = dout;
    for (int64_t t = 0; t < s.T; t++) {
        if (s.documents[size_t(t)] == document) continue;
        std::fill_n(changed.begin() + t * s.row(), s.row(), 1e30f);
        std::fill_n(changed_dout.begin() + t * s.NH * s.HS, s.NH * s.HS, 1e30f);
    }
    const auto before = attention(s, qkv, dout), after = attention(s, changed, changed_dout);
    const auto own = [&](const Floats& x, int64_t row) {
        Floats result;
        for (int64_t i = 0; i < int64_t(x.size()); i++)
            if (s.documents[size_t(i / row)] == document) result.push_back(x[size_t(i)]);
        return result;
    };
    check_equal("out", own(after[0], s.NH * s.HS), own(before[0], s.NH * s.HS));
    check_equal("dqkv", own(after[2], s.row()), own(before[2], s.row()));
    CHECK(!same_bits(before[0], after[0]));
}

TEST_CASE("attention: equal scores give the mean of the values", "[attention]") {
    const int64_t window = GENERATE(-1, 0, 7, 40);
    const Sizes sizes{{1, 64, 1, 1, 16, window}};
    Floats qkv(sizes.qkv(), 0), want(sizes.out()), lse_want;
    for (int64_t t = 0; t < sizes.T; t++) {
        const int64_t first = window < 0 || t < window ? 0 : t - window;
        for (int64_t c = 0; c < sizes.HS; c++) {
            qkv[sizes.at(0, t, 2, 0) + size_t(c)] = float(t);
            want[size_t(t * sizes.HS + c)] = float(first + t) / 2;
        }
        lse_want.push_back(float(std::log(double(t - first + 1))));
    }
    const auto got = attention(sizes, qkv, Floats(sizes.out(), 1));
    check_relative("out", got[0], want, (2 + 4) * kEpsF32);  // p, and a sum of 64 terms
    check_close("lse", got[1], lse_want, 2 * kEpsF32);
}

// With keys copied to each head of a group the arithmetic is the same, but for the sums over the group.
TEST_CASE("attention with shared keys is attention with copies of them", "[attention]") {
    const int64_t window = GENERATE(-1, 20);
    const Sizes shared{{2, 70, 4, 2, 16, window}}, copied{{2, 70, 4, 4, 16, window}};
    const Floats qkv = randn(shared.qkv(), 1), dout = randn(shared.out(), 2);
    Floats copies(copied.qkv()), dq, dq_want;
    const auto each = [&](auto visit) {
        for (int64_t b = 0; b < shared.B; b++)
            for (int64_t t = 0; t < shared.T; t++)
                for (int64_t h = 0; h < shared.NH; h++) visit(b, t, h);
    };
    each([&](int64_t b, int64_t t, int64_t h) {
        for (int which = 0; which < 3; which++)
            std::copy_n(&qkv[shared.at(b, t, which, h)], shared.HS, &copies[copied.at(b, t, which, h)]);
    });
    const auto got = attention(shared, qkv, dout), want = attention(copied, copies, dout);
    check_equal("out", got[0], want[0]);
    check_equal("lse", got[1], want[1]);
    each([&](int64_t b, int64_t t, int64_t h) {
        const auto row = got[2].begin() + int64_t(shared.at(b, t, 0, h));
        const auto row_want = want[2].begin() + int64_t(copied.at(b, t, 0, h));
        dq.insert(dq.end(), row, row + shared.HS), dq_want.insert(dq_want.end(), row_want, row_want + shared.HS);
    });
    check_equal("dq", dq, dq_want);
}

TEST_CASE("attention does not look ahead", "[attention]") {
    const Sizes sizes{{1, 70, 2, 2, 16}};
    const int64_t changed = GENERATE(1, 15, 32, 63, 69);  // this position and all after it
    Floats qkv = randn(sizes.qkv(), 1);
    const Floats dout = randn(sizes.out(), 2);
    const auto before = attention(sizes, qkv, dout);
    for (size_t i = sizes.at(0, changed, 0, 0); i < qkv.size(); i++) qkv[i] = 100 - qkv[i];
    const auto after = attention(sizes, qkv, dout);
    const auto first = [&](const Floats& x) { return Floats(x.begin(), x.begin() + changed * sizes.NH * sizes.HS); };
    CHECK(same_bits(first(before[0]), first(after[0])));
    CHECK(!same_bits(before[0], after[0]));
}

TEST_CASE("attention does not look back beyond its window", "[attention]") {
    const int64_t window = GENERATE(0, 5, 31, 32, 63, 64, 65);
    const Sizes sizes{{1, 150, 2, 2, 16, window}};
    const int64_t t = GENERATE(97, 128);  // it and all after it do not see what changes
    Floats qkv = randn(sizes.qkv(), 1);
    const Floats dout = randn(sizes.out(), 2);
    const auto before = attention(sizes, qkv, dout);
    // Finite, because a masked weight of zero is multiplied; but the scores overflow.
    std::fill_n(qkv.begin(), sizes.at(0, t - window, 0, 0), 1e30f);
    const auto after = attention(sizes, qkv, dout);
    const auto rest = [&](const Floats& x) { return Floats(x.begin() + t * sizes.NH * sizes.HS, x.end()); };
    check_equal("out", rest(after[0]), rest(before[0]));
    CHECK(!same_bits(before[0], after[0]));
}

TEST_CASE("attention hands a NaN on", "[attention]") {
    const Sizes sizes{{2, 40, 1, 1, 16}};
    const int64_t which = GENERATE(0, 1, 2), t = GENERATE(0, 17, 39);
    INFO("a NaN in " << "qkv"[which] << " at " << t);
    Floats qkv = randn(sizes.qkv(), 1);
    const Floats dout = randn(sizes.out(), 2);
    qkv[sizes.at(1, t, which, 0) + 3] = std::nanf("");
    const auto got = attention(sizes, qkv, dout);
    const auto row = [&](int64_t b, int64_t t) { return got[0].begin() + (b * sizes.T + t) * sizes.HS; };
    CHECK(count_not_finite(Floats(row(1, t), row(1, t) + sizes.HS)) >= (which == 2 ? 1 : sizes.HS));
    CHECK(count_not_finite(Floats(row(1, 39), row(1, 39) + sizes.HS)) >= (which == 0 && t != 39 ? 0 : 1));
    CHECK(count_not_finite(Floats(got[2].begin() + int64_t(sizes.at(1, 0, 0, 0)), got[2].end())) > 0);
    CHECK(count_not_finite(Floats(row(0, 0), row(1, 0))) == 0);  // the other sequence
}

// Heads of an even size only: pairs are multiplied. Rows of one token, odd ones, around tiles of 32 queries and 64
// keys; last, rows of 4 KB.
TEST_CASE("attention in bf16 is right for every size, window and document", "[attention]") {
    const auto [B, T, NH, NKV, HS, window] = GENERATE(table<int, int, int, int, int, int>({{1, 1, 1, 1, 2, -1},
                                                                                           {2, 31, 2, 2, 6, -1},
                                                                                           {1, 33, 4, 2, 16, 3},
                                                                                           {1, 64, 2, 1, 64, -1},
                                                                                           {1, 65, 1, 1, 80, 0},
                                                                                           {2, 150, 4, 1, 32, 64},
                                                                                           {1, 131, 2, 2, 256, 31},
                                                                                           {1, 40, 16, 8, 128, -1}}));
    const bool documents = GENERATE(false, true);
    Sizes sizes{{B, T, NH, NKV, HS, window}};
    if (documents) sizes.documents = documents_of(B, T, {1, 2, 29, 33, 97});
    INFO("B=" << B << " T=" << T << " NH=" << NH << " NKV=" << NKV << " HS=" << HS << " window=" << window
              << (documents ? ", documents" : ""));
    const Floats qkv = rounded<bf16>(bell(uint64_t(T), int64_t(sizes.qkv())));
    const Floats dout = rounded<bf16>(bell(uint64_t(HS), int64_t(sizes.out())));
    const Plain want = plain_attention(sizes, qkv, dout, kEpsBf16 / 2);
    const auto got = attention<bf16>(sizes, qkv, dout);
    check_within("out", got[0], want.out, want.out_bounds);
    check_within("lse", got[1], want.lse, want.lse_bounds);
    check_within("dqkv", got[2], want.dqkv, want.dqkv_bounds);
    const auto in_registers = [&](bool pairs) {
        const UsedRegisters used(pairs);
        return attention<bf16>(sizes, qkv, dout);
    };
    const auto pairs = in_registers(true), widened = in_registers(false);
    for (size_t i = 0; i < pairs.size(); i++) CHECK(same_bits(widened[i], pairs[i]));
}

TEST_CASE("attention in bf16 says which heads it takes", "[attention]") {
    Cpu cpu(1);
    bf16* none = nullptr;
    CHECK(error_of([&] { attention_forward(cpu, none, nullptr, none, AttentionShape{1, 1, 1, 1, 15}); }) ==
          "2: attention: heads of 15 channels: an even number in bf16; or --dtype fp32");
}

// The linear layer: exact on whole numbers at every size where the blocking changes its path, and close to PyTorch.
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/relu_squared.h"  // relu_squared_forward, relu_squared_backward
#include "test/fixture.h"           // Fixture
#include "test/op_testing.h"        // on_any_threads, check_equal, plus, whole_numbers
#include "test/testing.h"

// A chain of K additions of random signs, each off by up to half a unit of a partial sum that grows as sqrt(k): sqrt(K)
// half units of the result's rms in one standard deviation. Doubled for the worst of thousands; 2 for product and bias.
static double tolerance(int64_t K) { return (2 + std::sqrt(double(K))) * kEpsF32; }

TEST_CASE("matmul agrees with PyTorch", "[matmul]") {
    const Fixture f("matmul");
    const auto [N, C, OC] = GENERATE(table<int, int, int>({{1, 1, 1},
                                                           {3, 7, 33},
                                                           {5, 1, 3},
                                                           {12, 255, 32},
                                                           {13, 257, 33},
                                                           {4, 600, 17},
                                                           {257, 5, 9},
                                                           {600, 3, 5},
                                                           {3, 5, 600}}));
    const std::string name = format("%dx%dx%d.", N, C, OC), want = "want." + name;
    INFO(name);
    const Floats inp = f.floats(name + "inp"), weight = f.floats(name + "weight"), bias = f.floats(name + "bias");
    const Floats dout = f.floats(name + "dout"), dweight_start = randn(weight.size(), 1),
                 dbias_start = randn(bias.size(), 2);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(dout.size()), dinp(inp.size()), dweight(dweight_start), dbias(dbias_start);
        matmul_forward<float>(cpu, out, inp.data(), weight.data(), bias.data(), N, C, OC);
        matmul_backward<float>(cpu, dinp, dweight, dbias, dout.data(), inp.data(), weight.data(), N, C, OC);
        return std::vector{out.get(), dinp.get(), dweight.get(), dbias.get()};
    });
    check_close("out", got[0], f.floats(want + "out"), tolerance(C));
    check_close("dinp", got[1], f.floats(want + "dinp"), tolerance(OC));
    check_close("dweight", got[2], plus(dweight_start, f.floats(want + "dweight")), tolerance(N));
    check_close("dbias", got[3], plus(dbias_start, f.floats(want + "dbias")), tolerance(N));
}

// A linear layer and its activation, by name: with GELU one op, with squared ReLU two.
struct ActivatedLayer {
    const char* name;
    decltype(&matmul_gelu_forward<float>) forward;
    decltype(&matmul_gelu_backward<float>) backward;
};
static const ActivatedLayer kActivations[] = {
    {"gelu", matmul_gelu_forward<float>, matmul_gelu_backward<float>},
    {"relu_squared",
     [](Cpu& cpu, float* out, float* hidden, const float* inp, const float* weight, const float* bias, int64_t N,
        int64_t C, int64_t OC) {
         matmul_forward(cpu, hidden, inp, weight, bias, N, C, OC);
         relu_squared_forward(cpu, out, hidden, N * OC);
     },
     [](Cpu& cpu, float* dhidden, float* dweight, float* dbias, const float* dout, const float* inp,
        const float* hidden, const float* weight, int64_t N, int64_t C, int64_t OC, Write write) {
         matmul_backward(cpu, dhidden, dweight, dbias, dout, inp, weight, N, C, OC, write);
         relu_squared_backward(cpu, dhidden, dhidden, hidden, N * C);
     }}};

TEST_CASE("matmul with an activation agrees with PyTorch", "[matmul]") {
    const Fixture f("matmul");
    const int64_t N = 13, C = 20, H = 33;
    const ActivatedLayer& activation = kActivations[GENERATE(0, 1)];
    const std::string name = std::string(activation.name) + ".", want = "want." + name;
    INFO(name);
    const Floats inp = f.floats(name + "inp"), fc = f.floats(name + "fc"), fc_bias = f.floats(name + "fc_bias");
    const Floats proj = f.floats(name + "proj"), dout = f.floats(name + "dout");
    const Floats dfc_start = randn(fc.size(), 1), dproj_start = randn(proj.size(), 2),
                 dbias_start = randn(size_t(H), 3);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded hidden(size_t(N * H)), between(size_t(N * H)), dhidden(size_t(N * H)), dinp(inp.size());
        Guarded dfc(dfc_start), dfc_bias(dbias_start), dproj(dproj_start);
        activation.forward(cpu, between, hidden, inp.data(), fc.data(), fc_bias.data(), N, C, H);
        activation.backward(cpu, dhidden, dproj, nullptr, dout.data(), between, hidden, proj.data(), N, H, C,
                            Write::add);
        matmul_backward<float>(cpu, dinp, dfc, dfc_bias, dhidden, inp.data(), fc.data(), N, C, H);
        return std::vector{hidden.get(), between.get(), dhidden.get(), dproj.get(),
                           dinp.get(),   dfc.get(),     dfc_bias.get()};
    });
    // Behind each product those before it: an error of hidden is multiplied by a slope of at most 1.13 in GELU, and by
    // 2 |hidden|, of which the square's own value has one, in squared ReLU. Slopes have it as well.
    const double hidden = tolerance(C), between = 2 * hidden + 8 * kEpsF32, dhidden = tolerance(C) + between;
    check_close("hidden", got[0], f.floats(want + "hidden"), hidden);
    check_close("activation", got[1], f.floats(want + "activation"), between);
    check_close("dhidden", got[2], f.floats(want + "dhidden"), dhidden);
    check_close("dproj", got[3], plus(dproj_start, f.floats(want + "dproj")), tolerance(N) + between);
    check_close("dinp", got[4], f.floats(want + "dinp"), tolerance(H) + dhidden);
    check_close("dfc", got[5], plus(dfc_start, f.floats(want + "dfc")), tolerance(N) + dhidden);
    check_close("dfc_bias", got[6], plus(dbias_start, f.floats(want + "dfc_bias")), tolerance(N) + dhidden);
}

TEST_CASE("matmul with GELU gives the bits of the two ops", "[matmul]") {
    const auto [N, C, OC] = GENERATE(table<int, int, int>({{1, 1, 1}, {13, 255, 33}, {5, 600, 32}}));
    const bool with_bias = GENERATE(true, false);
    INFO("N=" << N << " C=" << C << " OC=" << OC);
    const Floats inp = randn(size_t(N * C), 1), weight = randn(size_t(OC * C), 2), bias = randn(size_t(OC), 3);
    const Floats dout = randn(size_t(N * OC), 4), hidden_before = randn(size_t(N * C), 5);
    const Floats dweight_start = randn(weight.size(), 6), dbias_start = randn(bias.size(), 7);
    const float* added = with_bias ? bias.data() : nullptr;
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(dout.size()), hidden(dout.size()), dhidden(inp.size()), dweight(dweight_start), dbias(dbias_start);
        matmul_gelu_forward<float>(cpu, out, hidden, inp.data(), weight.data(), added, N, C, OC);
        matmul_gelu_backward<float>(cpu, dhidden, dweight, with_bias ? dbias.data() : nullptr, dout.data(), inp.data(),
                                    hidden_before.data(), weight.data(), N, C, OC);
        return std::vector{out.get(), hidden.get(), dhidden.get(), dweight.get(), dbias.get()};
    });
    Cpu cpu(2);
    Guarded out(dout.size()), hidden(dout.size()), dhidden(inp.size()), dweight(dweight_start), dbias(dbias_start);
    matmul_forward<float>(cpu, hidden, inp.data(), weight.data(), added, N, C, OC);
    gelu_forward<float>(cpu, out, hidden, N * OC);
    matmul_backward<float>(cpu, dhidden, dweight, with_bias ? dbias.data() : nullptr, dout.data(), inp.data(),
                           weight.data(), N, C, OC);
    gelu_backward<float>(cpu, dhidden.data(), dhidden, hidden_before.data(), N * C);
    CHECK(same_bits(got[0], out.get()));
    CHECK(same_bits(got[1], hidden.get()));
    CHECK(same_bits(got[2], dhidden.get()));
    CHECK(same_bits(got[3], dweight.get()));
    CHECK(same_bits(got[4], dbias.get()));
}

// c (M,N) += a (M,K) b (K,N), the strides in elements
static void multiply(Floats& c, const Floats& a, int64_t a_row, int64_t a_col, const Floats& b, int64_t b_row,
                     int64_t b_col, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; i++)
        for (int64_t k = 0; k < K; k++)
            for (int64_t j = 0; j < N; j++)
                c[size_t(i * N + j)] += a[size_t(i * a_row + k * a_col)] * b[size_t(k * b_row + j * b_col)];
}

static void check_exact(int64_t N, int64_t C, int64_t OC) {
    INFO("N=" << N << " C=" << C << " OC=" << OC);
    const Floats inp = whole_numbers(N * C, 1, 4), weight = whole_numbers(OC * C, 2, 4),
                 bias = whole_numbers(OC, 3, 100);
    const Floats dout = whole_numbers(N * OC, 4, 4);
    const Floats dweight_start = whole_numbers(OC * C, 5, 100), dbias_start = whole_numbers(OC, 6, 100);
    Floats plain(size_t(N * OC)), out, dinp(size_t(N * C)), dweight = dweight_start, dbias = dbias_start;
    multiply(plain, inp, C, 1, weight, 1, C, N, OC, C);
    multiply(dinp, dout, OC, 1, weight, C, 1, N, C, OC);
    multiply(dweight, dout, 1, OC, inp, C, 1, OC, C, N);
    out = plain;
    for (int64_t i = 0; i < N * OC; i++) out[size_t(i)] += bias[size_t(i % OC)];
    for (int64_t i = 0; i < N * OC; i++) dbias[size_t(i % OC)] += dout[size_t(i)];
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded y(out.size()), y_plain(out.size()), dx(dinp.size()), dw(dweight_start), db(dbias_start);
        matmul_forward<float>(cpu, y, inp.data(), weight.data(), bias.data(), N, C, OC);
        matmul_forward<float>(cpu, y_plain, inp.data(), weight.data(), nullptr, N, C, OC);
        matmul_backward<float>(cpu, dx, dw, db, dout.data(), inp.data(), weight.data(), N, C, OC);
        return std::vector{y.get(), y_plain.get(), dx.get(), dw.get(), db.get()};
    });
    check_equal("out", got[0], out);
    check_equal("out without bias", got[1], plain);
    check_equal("dinp", got[2], dinp);
    check_equal("dweight", got[3], dweight);
    check_equal("dbias", got[4], dbias);
}

// One below, at and above the tiles' 12 rows and 32 columns and the K blocks of 256; each size takes every role, since
// backward multiplies along OC and along N.
TEST_CASE("matmul is exact on whole numbers", "[matmul]") {
    for (const int64_t N : {1, 11, 12, 13, 25})
        for (const int64_t C : {1, 255, 256, 257, 600})
            for (const int64_t OC : {1, 31, 32, 33, 65}) check_exact(N, C, OC);
    check_exact(257, 12, 33);
    check_exact(600, 33, 13);
    check_exact(13, 33, 257);
    check_exact(3, 17, 600);
}

// More rows than one thread's share, more columns than one packed block, more terms than are packed at once.
TEST_CASE("matmul is exact beyond one block", "[matmul]") {
    check_exact(400, 7, 65);
    check_exact(5, 3, 2100);
    check_exact(5, 2100, 3);
    check_exact(200, 300, 70);
    check_exact(13, 4200, 300);
    check_exact(4200, 13, 35);
    check_exact(25, 300, 790);  // panels enough for each thread to pack its own
}

TEST_CASE("matmul_backward leaves out what is not wanted", "[matmul]") {
    const int64_t N = 7, C = 19, OC = 35;
    const Floats inp = randn(size_t(N * C), 1), weight = randn(size_t(OC * C), 2), dout = randn(size_t(N * OC), 3);
    Cpu cpu(2);
    Guarded dinp(size_t(N * C)), dweight(size_t(OC * C), 1), dbias(size_t(OC), 1);
    matmul_backward<float>(cpu, dinp, dweight, dbias, dout.data(), inp.data(), weight.data(), N, C, OC);
    Guarded dweight_only(size_t(OC * C), 1);
    matmul_backward<float>(cpu, nullptr, dweight_only, nullptr, dout.data(), inp.data(), weight.data(), N, C, OC);
    CHECK(same_bits(dweight_only.get(), dweight.get()));
}

// Over NaN, at sizes that take each path of gemm(): few rows, packed A, K in several blocks and in several KC.
TEST_CASE("matmul_backward sets a gradient to the bits of one that is added to zeros", "[matmul]") {
    const auto [N, C, OC] =
        GENERATE(table<int, int, int>({{1, 1, 1}, {13, 33, 9}, {600, 40, 70}, {4200, 13, 35}, {5, 2100, 3}}));
    INFO("N=" << N << " C=" << C << " OC=" << OC);
    const Floats inp = randn(size_t(N * C), 1), weight = randn(size_t(OC * C), 2), dout = randn(size_t(N * OC), 3);
    const Floats hidden = randn(size_t(N * C), 4), dbias_start = randn(size_t(OC), 5);
    const auto backward = [&](Cpu& cpu, float start, Write write) {
        std::vector<Floats> results;
        const auto with = [&](auto&& op) {
            Guarded dinp(inp.size()), dweight(weight.size(), start), dbias(dbias_start);
            op(dinp, dweight, dbias);
            results.insert(results.end(), {dinp.get(), dweight.get(), dbias.get()});
        };
        with([&](float* dinp, float* dweight, float* dbias) {
            matmul_backward<float>(cpu, dinp, dweight, dbias, dout.data(), inp.data(), weight.data(), N, C, OC, write);
        });
        for (const ActivatedLayer& activation : kActivations)
            with([&](float* dinp, float* dweight, float* dbias) {
                activation.backward(cpu, dinp, dweight, dbias, dout.data(), inp.data(), hidden.data(), weight.data(), N,
                                    C, OC, write);
            });
        return results;
    };
    const auto got = on_any_threads([&](Cpu& cpu) { return backward(cpu, std::nanf(""), Write::set); });
    const auto want = on_any_threads([&](Cpu& cpu) { return backward(cpu, 0, Write::add); });
    for (size_t i = 0; i < want.size(); i++) {
        INFO("output " << i);
        CHECK(same_bits(got[i], want[i]));
    }
}

TEST_CASE("matmul_backward of bf16 sets a gradient to the bits of one that is added to zeros", "[matmul]") {
    const auto [N, C, OC] = GENERATE(table<int, int, int>({{13, 33, 9}, {600, 40, 70}, {4200, 13, 35}}));
    INFO("N=" << N << " C=" << C << " OC=" << OC);
    const auto inp = bf16_randn<bf16>(N * C, 1), weight = bf16_randn<bf16>(OC * C, 2);
    const auto dout = bf16_randn<bf16>(N * OC, 3);
    const auto backward = [&](float start, Write write) {
        return on_any_threads([&](Cpu& cpu) {
            Guarded dweight(weight.size(), start);
            matmul_backward<bf16>(cpu, nullptr, dweight, nullptr, dout.data(), inp.data(), weight.data(), N, C, OC,
                                  write);
            return std::vector<Floats>{dweight.get()};
        })[0];
    };
    CHECK(same_bits(backward(std::nanf(""), Write::set), backward(0, Write::add)));
}

TEST_CASE("matmul: a NaN in the input spoils its row of the output and no other", "[matmul]") {
    const int64_t N = 14, C = 300, OC = 40;
    Floats inp = randn(size_t(N * C), 1);
    const Floats weight = randn(size_t(OC * C), 2), bias = randn(size_t(OC), 3);
    inp[size_t(5 * C + 299)] = std::nanf("");
    Cpu cpu(2);
    Guarded out(size_t(N * OC));
    matmul_forward<float>(cpu, out, inp.data(), weight.data(), bias.data(), N, C, OC);
    const Floats got = out.get();
    CHECK(all_nan(Floats(got.begin() + 5 * OC, got.begin() + 6 * OC)));
    CHECK(count_not_finite(got) == OC);
}

// Sizes at which gemm takes its paths for many rows, for few and for very few.
TEST_CASE("a low-rank adapter of several matrices is exact on whole numbers", "[matmul]") {
    const auto [N, C, r, parts] = GENERATE(table<int, int, int, int>({{37, 24, 8, 3}, {1, 40, 4, 2}, {5, 33, 3, 1}}));
    const bool adds = GENERATE(true, false);
    LowRankShape s{.N = N, .C = C, .rank = r, .scale = 2, .parts = parts};
    for (int i = 0; i < parts; i++) s.rows[i] = 16 + 8 * i;
    const int64_t W = s.width(), OC = s.OC();
    INFO(N << " x " << C << ", rank " << r << ", " << parts << " matrices" << (adds ? ", added" : ""));
    const Floats inp = whole_numbers(N * C, 1, 2), a = whole_numbers(W * C, 2, 2), b = whole_numbers(OC * r, 3, 2);
    const Floats dout = whole_numbers(N * OC, 4, 2), out_start = whole_numbers(N * OC, 5, 9);
    const Floats dinp_start = whole_numbers(N * C, 6, 9), da_start = whole_numbers(W * C, 7, 9),
                 db_start = whole_numbers(OC * r, 8, 9);
    Floats out = out_start, dinp(inp.size(), 0), da(a.size(), 0), db(b.size(), 0);
    for (int64_t n = 0; n < N; n++)
        for (int64_t part = 0, first = 0; part < parts; first += s.rows[part++])
            for (int64_t k = 0; k < r; k++) {
                const Floats::const_iterator of_a = a.begin() + (part * r + k) * C;
                float low = 0, dlow = 0;
                for (int64_t c = 0; c < C; c++) low += s.scale * inp[size_t(n * C + c)] * of_a[c];
                for (int64_t o = first; o < first + s.rows[part]; o++) {
                    out[size_t(n * OC + o)] += low * b[size_t(o * r + k)];
                    db[size_t(o * r + k)] += low * dout[size_t(n * OC + o)];
                    dlow += s.scale * dout[size_t(n * OC + o)] * b[size_t(o * r + k)];
                }
                for (int64_t c = 0; c < C; c++) {
                    da[size_t((part * r + k) * C + c)] += dlow * inp[size_t(n * C + c)];
                    dinp[size_t(n * C + c)] += dlow * of_a[c];
                }
            }
    const Write write = adds ? Write::add : Write::set;
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded got_out(out_start), got_dinp(dinp_start), got_da(da_start), got_db(db_start);
        Guarded low(size_t(N * W)), dlow(size_t(N * W));
        low_rank_forward<float>(cpu, got_out, low, inp.data(), a.data(), b.data(), s);
        low_rank_backward<float>(cpu, got_dinp, got_da, got_db, low, dlow, dout.data(), inp.data(), a.data(), b.data(),
                                 s, write, write);
        return std::vector{got_out.get(), got_dinp.get(), got_da.get(), got_db.get()};
    });
    check_equal("out", got[0], out);
    check_equal("dinp", got[1], adds ? plus(dinp_start, dinp) : dinp);
    check_equal("da", got[2], adds ? plus(da_start, da) : da);
    check_equal("db", got[3], adds ? plus(db_start, db) : db);
}

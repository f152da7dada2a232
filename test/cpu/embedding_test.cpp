// Embedding against PyTorch. Forward is one addition and a reference rounded once, so it must match exactly.
// The form fused with the norm has the bits of the two ops.
#include "llmc/cpu/embedding.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, check_equal, check_relative, plus, whole_numbers
#include "test/testing.h"

TEST_CASE("embedding agrees with PyTorch", "[embedding]") {
    const Fixture f("embedding");
    const auto [B, T, C] = GENERATE(table<int, int, int>({{1, 1, 1}, {1, 1, 16}, {2, 5, 7}, {3, 4, 33}, {2, 9, 48}}));
    const std::string name = format("%dx%dx%d.", B, T, C);
    INFO(name);
    const Floats wte = f.floats(name + "wte"), wpe = f.floats(name + "wpe"), dout = f.floats(name + "dout");
    const Ints tokens = f.ints(name + "tokens");
    const Floats dwte_start = randn(wte.size(), 1), dwpe_start = randn(wpe.size(), 2);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(dout.size()), dwte(dwte_start), dwpe(dwpe_start);
        embedding_forward<float>(cpu, out, tokens.data(), wte.data(), wpe.data(), B, T, C);
        embedding_backward<float>(cpu, dwte, dwpe, dout.data(), tokens.data(), B, T, C);
        return std::vector{out.get(), dwte.get(), dwpe.get()};
    });
    check_equal("out", got[0], f.floats("want." + name + "out"));
    // A token's row gets at most B*T <= 18 additions of random signs: sqrt(18) half units, doubled for the sums'
    // growth.
    check_close("dwte", got[1], plus(dwte_start, f.floats("want." + name + "dwte")), 4 * kEpsF32);
    check_close("dwpe", got[2], plus(dwpe_start, f.floats("want." + name + "dwpe")), 4 * kEpsF32);
}

TEST_CASE("embedding without learned positions is the token's row, and changes nothing else", "[embedding]") {
    const int64_t B = 2, T = 7, C = 133, V = 11;  // C spans several of the ranges that threads get
    Rng rng(1, Stream::tests);
    Ints tokens;
    for (int64_t i = 0; i < B * T; i++) tokens.push_back(int32_t(rng.below(V)));
    const Floats wte = randn(size_t(V * C), 1), wpe = randn(size_t(T * C), 2), dout = randn(size_t(B * T * C), 3);
    const Floats start = randn(wte.size(), 4);
    Floats want;
    for (const int32_t token : tokens) want.insert(want.end(), wte.begin() + token * C, wte.begin() + (token + 1) * C);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(dout.size()), dwte(start), dwte_beside(start), dwpe(wpe);
        embedding_forward<float>(cpu, out, tokens.data(), wte.data(), nullptr, B, T, C);
        embedding_backward<float>(cpu, dwte, nullptr, dout.data(), tokens.data(), B, T, C);
        embedding_backward<float>(cpu, dwte_beside, dwpe, dout.data(), tokens.data(), B, T, C);
        return std::vector{out.get(), dwte.get(), dwte_beside.get()};
    });
    check_equal("out", got[0], want);
    check_equal("dwte", got[1], got[2]);
}

TEST_CASE("embedding_backward adds whole numbers exactly", "[embedding]") {
    const int64_t B = 3, T = 41, C = 200, V = 9;  // C spans several of the ranges that threads get
    Rng rng(1, Stream::tests);
    Ints tokens;
    for (int64_t i = 0; i < B * T; i++) tokens.push_back(int32_t(rng.below(V)));
    const Floats dout = whole_numbers(B * T * C, 2, 100);
    const Floats dwte_start = whole_numbers(V * C, 3, 100), dwpe_start = whole_numbers(T * C, 4, 100);
    Floats dwte_want = dwte_start, dwpe_want = dwpe_start;
    for (int64_t row = 0; row < B * T; row++)
        for (int64_t c = 0; c < C; c++) {
            dwte_want[size_t(tokens[size_t(row)] * C + c)] += dout[size_t(row * C + c)];
            dwpe_want[size_t(row % T * C + c)] += dout[size_t(row * C + c)];
        }
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded dwte(dwte_start), dwpe(dwpe_start);
        embedding_backward<float>(cpu, dwte, dwpe, dout.data(), tokens.data(), B, T, C);
        return std::vector{dwte.get(), dwpe.get()};
    });
    check_equal("dwte", got[0], dwte_want);
    check_equal("dwpe", got[1], dwpe_want);
}

TEST_CASE("embedding in bf16 rounds each result once", "[embedding]") {
    const auto [B, T, C] = GENERATE(table<int64_t, int64_t, int64_t>({{1, 1, 1}, {3, 5, 33}, {2, 4, 768}}));
    const bool positions = GENERATE(true, false);
    INFO(B << " x " << T << " x " << C);
    check_rounds_once([B = B, T = T, C = C, positions]<class Element>(Cpu& cpu) {
        const int64_t V = 4;
        const auto wte = bf16_randn<Element>(V * C, 1), wpe = bf16_randn<Element>(T * C, 2);
        const auto dout = bf16_randn<Element>(B * T * C, 3);
        Ints tokens;
        for (int64_t n = 0; n < B * T; n++) tokens.push_back(int32_t(n * n % V));
        Guarded<Element> out(dout.size());
        Guarded dwte(randn(wte.size(), 4)), dwpe(randn(wpe.size(), 5));
        embedding_forward(cpu, out.data(), tokens.data(), wte.data(), positions ? wpe.data() : nullptr, B, T, C);
        embedding_backward(cpu, dwte, positions ? dwpe.data() : nullptr, dout.data(), tokens.data(), B, T, C);
        return std::vector{stored(out), dwte.get(), dwpe.get()};
    });
}

constexpr float kEps = 0x1p-23f;

// Half units as in rmsnorm_test.cpp: the sum of squares is at worst C / 16 of them a lane and 4 in the tree, which the
// root halves; mean, eps, root and quotient; one more for a product.
static double rstd_units(int64_t C) { return (double(C) / 16 + 4) / 4 + 2; }
static double out_units(int64_t C) { return rstd_units(C) + 1; }
// y = x rstd appears twice in y * mean(dout y), rstd once outside; the mean is a sum as long as that of the squares.
static double dx_units(int64_t C) { return 3 * rstd_units(C) + (double(C) / 16 + 4) / 2 + 4; }

static Ints tokens_below(int64_t V, int64_t n) {
    Rng rng(1, Stream::tests);
    Ints tokens;
    for (int64_t i = 0; i < n; i++) tokens.push_back(int32_t(rng.below(uint64_t(V))));
    return tokens;
}

TEST_CASE("embedding_rmsnorm agrees with PyTorch", "[embedding]") {
    const Fixture f("embedding_rmsnorm");
    const auto [B, T, C] =
        GENERATE(table<int, int, int>({{1, 1, 8}, {1, 1, 16}, {2, 5, 7}, {3, 4, 33}, {2, 9, 48}, {1, 1, 1536}}));
    const std::string name = format("%dx%dx%d.", B, T, C), want = "want." + name;
    INFO(name);
    const int64_t N = B * T;
    const Floats wte = f.floats(name + "wte"), dout = f.floats(name + "dout"), start = randn(wte.size(), 1);
    const Ints tokens = f.ints(name + "tokens");
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(dout.size()), rstd{size_t(N)}, dx(dout), dwte(start);
        embedding_rmsnorm_forward<float>(cpu, out, rstd, tokens.data(), wte.data(), N, C, kEps);
        embedding_rmsnorm_backward<float>(cpu, dwte, dx, tokens.data(), wte.data(), rstd, B, T, C);
        return std::vector{out.get(), rstd.get(), dx.get(), dwte.get()};
    });
    check_relative("out", got[0], f.floats(want + "out"), out_units(C) * kEpsF32);
    check_relative("rstd", got[1], f.floats(want + "rstd"), rstd_units(C) * kEpsF32);
    check_close("dx in place of dout", got[2], f.floats(want + "dx"), dx_units(C) * kEpsF32);
    // at most N rows of dx, and as many additions
    check_close("dwte", got[3], plus(start, f.floats(want + "dwte")), (dx_units(C) + double(N) / 2) * kEpsF32);
}

TEST_CASE("embedding_rmsnorm gives the bits of the two ops", "[embedding]") {
    const int64_t B = 3, T = 41, C = 200, V = 9, N = B * T;  // C spans several of the ranges that threads get
    const Floats wte = randn(size_t(V * C), 1), dout = randn(size_t(N * C), 2), start = randn(wte.size(), 3);
    const Ints tokens = tokens_below(V, N);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(dout.size()), rstd{size_t(N)}, dx(dout), dwte(start);
        embedding_rmsnorm_forward<float>(cpu, out, rstd, tokens.data(), wte.data(), N, C, kEps);
        embedding_rmsnorm_backward<float>(cpu, dwte, dx, tokens.data(), wte.data(), rstd, B, T, C);
        return std::vector{out.get(), rstd.get(), dx.get(), dwte.get()};
    });
    Cpu cpu(2);
    Guarded x(dout.size()), out(dout.size()), rstd{size_t(N)}, dx(dout.size(), 0), dwte(start);
    embedding_forward<float>(cpu, x, tokens.data(), wte.data(), nullptr, B, T, C);
    rmsnorm_forward<float>(cpu, out.data(), rstd, x, nullptr, N, C, kEps);
    rmsnorm_backward<float>(cpu, dx, nullptr, dout.data(), x, nullptr, rstd, N, C);
    embedding_backward<float>(cpu, dwte, nullptr, dx, tokens.data(), B, T, C);
    check_equal("out", got[0], out.get());
    check_equal("rstd", got[1], rstd.get());
    check_equal("dx", got[2], dx.get());
    check_equal("dwte", got[3], dwte.get());
}

TEST_CASE("embedding_rmsnorm: a NaN in a token's row spoils that token and no other", "[embedding]") {
    const int64_t B = 1, T = 5, C = 21;
    const int64_t at = GENERATE(0, 15, 16, 20);
    const Ints tokens = {2, 1, 0, 1, 2};
    Floats wte = randn(size_t(3 * C), 1);
    wte[size_t(1 * C + at)] = std::nanf("");
    Cpu cpu(2);
    Guarded out(size_t(T * C)), rstd{size_t(T)}, dx(randn(size_t(T * C), 2)), dwte(wte.size(), 0);
    embedding_rmsnorm_forward<float>(cpu, out, rstd, tokens.data(), wte.data(), T, C, kEps);
    embedding_rmsnorm_backward<float>(cpu, dwte, dx, tokens.data(), wte.data(), rstd, B, T, C);
    for (const Floats& x : {out.get(), dx.get()}) {
        for (const int64_t row : {1, 3}) CHECK(all_nan(Floats(x.begin() + row * C, x.begin() + (row + 1) * C)));
        CHECK(count_not_finite(x) == 2 * C);
    }
    const Floats gradient = dwte.get();
    CHECK(all_nan(Floats(gradient.begin() + C, gradient.begin() + 2 * C)));
    CHECK(count_not_finite(gradient) == C);
}

TEST_CASE("embedding_rmsnorm in bf16 rounds each result once", "[embedding]") {
    const auto [N, C] = GENERATE(table<int64_t, int64_t>({{1, 1}, {7, 33}, {5, 768}}));
    INFO(N << " x " << C);
    check_rounds_once([N = N, C = C]<class T>(Cpu& cpu) {
        const int64_t V = 4;
        const auto wte = bf16_randn<T>(V * C, 1, 3);
        Ints tokens;
        for (int64_t n = 0; n < N; n++) tokens.push_back(int32_t(n * n % V));
        Guarded<T> out(size_t(N * C)), dout(rounded<bf16>(randn(size_t(N * C), 2)));
        Guarded rstd{size_t(N)}, dwte(randn(wte.size(), 3)), unfused(randn(wte.size(), 3));
        embedding_rmsnorm_forward(cpu, out.data(), rstd, tokens.data(), wte.data(), N, C, kEps);
        embedding_rmsnorm_backward(cpu, dwte, dout.data(), tokens.data(), wte.data(), rstd, 1, N, C);
        // What dwte gets is what is left in dout, rounded as it is.
        embedding_backward(cpu, unfused, nullptr, dout.data(), tokens.data(), 1, N, C);
        check_equal("dwte", dwte.get(), unfused.get());
        return std::vector{stored(out), rstd.get(), stored(dout)};
    });
}

// Smear and its backward against PyTorch.
#include "llmc/cpu/smear.h"
#include "test/cpu/gate_testing.h"  // smear_bounds
#include "test/fixture.h"           // Fixture
#include "test/op_testing.h"        // on_any_threads, check_within, plus
#include "test/testing.h"

TEST_CASE("smear agrees with PyTorch", "[smear]") {
    const Fixture f("smear");
    const auto [B, T, C, G] = GENERATE(table<int, int, int, int>(
        {{1, 1, 1, 1}, {2, 5, 7, 3}, {1, 2, 24, 24}, {3, 4, 33, 17}, {2, 20, 32, 24}, {1, 2, 768, 24}}));
    const std::string name = format("%dx%dx%dx%d.", B, T, C, G), want = "want." + name;
    INFO(name);
    const Floats inp = f.floats(name + "inp"), weight = f.floats(name + "weight"), dout = f.floats(name + "dout");
    const Floats lambda = f.floats(name + "lambda"), dweight_start = randn(weight.size(), 1), dlambda_start{0.5f};
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(inp.size()), dinp(inp.size()), dweight(dweight_start), dlambda(dlambda_start);
        smear_forward<float>(cpu, out, inp.data(), weight.data(), lambda.data(), B, T, C, G);
        smear_backward<float>(cpu, dinp, dweight, dlambda, dout.data(), inp.data(), weight.data(), lambda.data(), B, T,
                              C, G);
        return std::vector{out.get(), dinp.get(), dweight.get(), dlambda.get()};
    });
    const SmearBounds bounds = smear_bounds(dout, inp, weight, lambda[0], dweight_start, dlambda_start[0], B, T, C, G);
    check_within("out", got[0], f.floats(want + "out"), bounds.out);
    check_within("dinp", got[1], f.floats(want + "dinp"), bounds.dinp);
    check_within("dgate_weight", got[2], plus(dweight_start, f.floats(want + "dweight")), bounds.dgate_weight);
    check_within("dlambda", got[3], plus(dlambda_start, f.floats(want + "dlambda")), bounds.dlambda);
}

// A closed gate and an open one: large sums overflow nothing, and a factor of one is exact.
TEST_CASE("smear: gates far from zero", "[smear]") {
    const int64_t T = 3, C = 20, G = 2;
    const float sign = GENERATE(1.f, -1.f), lambda = 1;
    Floats inp = whole_numbers(T * C, 1, 100);
    const Floats dout = whole_numbers(T * C, 2, 100), weight{1e3f * sign, 0};
    for (int64_t t = 0; t < T; t++) inp[size_t(t * C)] = 7;
    Floats out = inp, dinp = dout;
    double dlambda = 0;
    for (int64_t i = C; sign > 0 && i < T * C; i++) {
        out[size_t(i)] += inp[size_t(i - C)];
        dinp[size_t(i - C)] += dout[size_t(i)];
        dlambda += dout[size_t(i)] * inp[size_t(i - C)];
    }
    Cpu cpu(2);
    Guarded got(inp.size()), got_dinp(inp.size()), dweight(size_t(G), 0), got_dlambda(1, 0);
    smear_forward<float>(cpu, got, inp.data(), weight.data(), &lambda, 1, T, C, G);
    smear_backward<float>(cpu, got_dinp, dweight, got_dlambda, dout.data(), inp.data(), weight.data(), &lambda, 1, T, C,
                          G);
    check_equal("out", got.get(), out);
    check_equal("dinp", got_dinp.get(), dinp);
    check_equal("dgate_weight", dweight.get(), Floats(size_t(G), 0));
    check_equal("dlambda", got_dlambda.get(), {float(dlambda)});
}

TEST_CASE("smear: a NaN reaches its own row and the next, not another sequence", "[smear]") {
    const int64_t B = 3, T = 4, C = 20, G = 5, N = B * T;
    const int64_t row = GENERATE(1, 6, 7), at = GENERATE(0, 19);
    INFO(row << ", " << at);
    Floats inp = randn(size_t(N * C), 1);
    inp[size_t(row * C + at)] = std::nanf("");
    const Floats weight = randn(size_t(G), 2), lambda{0.5f};
    Cpu cpu(2);
    Guarded out(inp.size());
    smear_forward<float>(cpu, out, inp.data(), weight.data(), lambda.data(), B, T, C, G);
    const Floats got = out.get();
    const auto not_finite = [&](int64_t n) {
        return count_not_finite(Floats(got.begin() + n * C, got.begin() + (n + 1) * C));
    };
    CHECK(not_finite(row) == (at < G ? C : 1));  // in the gate's channels it spoils the row
    const int64_t next = row % T == T - 1 ? 0 : 1;
    if (next) CHECK(not_finite(row + 1) == 1);
    CHECK(count_not_finite(got) == (at < G ? C : 1) + next);
}

TEST_CASE("smear in bf16 rounds each result once", "[smear]") {
    const auto [B, T, C, G] = GENERATE(
        table<int64_t, int64_t, int64_t, int64_t>({{1, 1, 1, 1}, {2, 5, 7, 3}, {3, 20, 33, 17}, {1, 2, 768, 24}}));
    INFO(B << " x " << T << " x " << C << ", " << G);
    check_rounds_once([B = B, T = T, C = C, G = G]<class Element>(Cpu& cpu) {
        const int64_t n = B * T * C;
        const auto inp = bf16_randn<Element>(n, 1), dout = bf16_randn<Element>(n, 2);
        const auto weight = bf16_randn<Element>(G, 3), lambda = bf16_randn<Element>(1, 4);
        Guarded<Element> out(inp.size()), dinp(inp.size());
        Guarded dweight(randn(weight.size(), 5)), dlambda(Floats{1});
        smear_forward(cpu, out.data(), inp.data(), weight.data(), lambda.data(), B, T, C, G);
        smear_backward(cpu, dinp.data(), dweight, dlambda, dout.data(), inp.data(), weight.data(), lambda.data(), B, T,
                       C, G);
        return std::vector{stored(out), stored(dinp), dweight.get(), dlambda.get()};
    });
}

// GELU (tanh form) against PyTorch on [-30, 30], at both zeros, and down to the smallest normal number.
#include "llmc/cpu/gelu.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, check_within
#include "test/testing.h"

TEST_CASE("gelu agrees with PyTorch", "[gelu]") {
    const Fixture f("gelu");
    const Floats inp = f.floats("inp"), dout = f.floats("dout");
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(inp.size()), dinp(inp.size());
        gelu_forward<float>(cpu, out, inp.data(), int64_t(inp.size()));
        gelu_backward<float>(cpu, dinp.data(), dout.data(), inp.data(), int64_t(inp.size()));
        return std::vector{out.get(), dinp.get()};
    });
    // out = x s with s = 1 / (1 + e^-w) and w = 2u. Rounding w by two units moves s by s (1 - s) 2w < 0.45 units; exp,
    // the quotient and the product add one each: 4 units of |x|. A form with 1 + tanh(u) cancels, but is held by that,
    // too. The slope is s + s (1 - s) x w', where x w' < 3w, and s (1 - s) w < 0.23. w's two units make s (1 - s) 2w <
    // 0.45 of s and less than s (1 - s) 3w 2w < 2.7 of the rest; exp's and the sum's unit and a half go into s and into
    // both factors of the rest: 0.4 + 2 * 0.7. Its products, s's quotient and the last two roundings add half a unit
    // each, of 0.7 and of 1: together less than 9 units of |dout|.
    std::vector<double> out_bounds, dinp_bounds;
    for (const float x : inp) out_bounds.push_back(4 * kEpsF32 * std::fabs(x));
    for (const float d : dout) dinp_bounds.push_back(9 * kEpsF32 * std::fabs(d));
    check_within("out", got[0], f.floats("want.out"), out_bounds);
    check_within("dinp", got[1], f.floats("want.dinp"), dinp_bounds);
}

TEST_CASE("gelu of huge numbers is the identity or zero", "[gelu]") {
    const Floats inp = {1e4f, -1e4f, 1e15f, -1e15f, 1e30f, -1e30f, INFINITY}, dout(inp.size(), 3);
    Cpu cpu(1);
    Guarded out(inp.size()), dinp(inp.size());
    gelu_forward<float>(cpu, out, inp.data(), int64_t(inp.size()));
    gelu_backward<float>(cpu, dinp.data(), dout.data(), inp.data(),
                         4);  // beyond 10^19 the square in the slope overflows
    CHECK(out.get() == Floats{1e4f, 0, 1e15f, 0, 1e30f, 0, INFINITY});
    CHECK(Floats(dinp.data(), dinp + 4) == Floats{3, 0, 3, 0});
}

TEST_CASE("gelu: the same bits wherever an element stands, in place too", "[gelu]") {
    const int64_t n = 10007;  // several chunks of work, and an odd rest
    const Floats inp = randn(size_t(n), 1, 3), dout = randn(size_t(n), 2);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(inp.size()), dinp(inp.size()), in_place(dout);
        gelu_forward<float>(cpu, out, inp.data(), n);
        gelu_backward<float>(cpu, dinp.data(), dout.data(), inp.data(), n);
        Guarded amax(1);
        gelu_backward<float>(cpu, {in_place, amax}, in_place, inp.data(), n);
        return std::vector{out.get(), dinp.get(), in_place.get(), amax.get()};
    });
    CHECK(same_bits(got[1], got[2]));
    float most = 0;
    for (const float x : got[1]) most = std::max(most, std::fabs(x));
    CHECK(got[3][0] == most);
    Cpu cpu(1);
    for (const int64_t i : {int64_t(0), int64_t(17), n - 1}) {
        Guarded out(1), dinp(1);
        gelu_forward<float>(cpu, out, &inp[size_t(i)], 1);
        gelu_backward<float>(cpu, dinp.data(), &dout[size_t(i)], &inp[size_t(i)], 1);
        CHECK(out.get()[0] == got[0][size_t(i)]);
        CHECK(dinp.get()[0] == got[1][size_t(i)]);
    }
}

TEST_CASE("gelu hands a NaN on", "[gelu]") {
    Floats inp = randn(20, 1);
    const Floats dout(20, 1);
    inp[3] = inp[17] = std::nanf("");
    Cpu cpu(1);
    Guarded out(20), dinp(20);
    gelu_forward<float>(cpu, out, inp.data(), 20);
    gelu_backward<float>(cpu, dinp.data(), dout.data(), inp.data(), 20);
    for (const Floats& x : {out.get(), dinp.get()}) {
        CHECK((std::isnan(x[3]) && std::isnan(x[17])));
        CHECK(count_not_finite(x) == 2);
    }
}

TEST_CASE("gelu in bf16 rounds each result once", "[gelu]") {
    const int64_t n = GENERATE(1, 15, 32, 10007);
    check_rounds_once([n]<class T>(Cpu& cpu) {
        const auto inp = bf16_randn<T>(n, 1, 4), dout = bf16_randn<T>(n, 2);
        Guarded<T> out(inp.size()), dinp(inp.size());
        gelu_forward(cpu, out.data(), inp.data(), n);
        gelu_backward(cpu, dinp.data(), dout.data(), inp.data(), n);
        return std::vector{stored(out), stored(dinp)};
    });
}

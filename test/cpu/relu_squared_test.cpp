// ReLU squared against PyTorch: bit for bit, since each result is rounded once.
#include "llmc/cpu/relu_squared.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, check_equal
#include "test/testing.h"

TEST_CASE("relu_squared agrees with PyTorch", "[relu_squared]") {
    const Fixture f("relu_squared");
    const Floats inp = f.floats("inp"), dout = f.floats("dout");
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(inp.size()), dinp(inp.size()), in_place(dout);
        relu_squared_forward<float>(cpu, out, inp.data(), int64_t(inp.size()));
        relu_squared_backward<float>(cpu, dinp, dout.data(), inp.data(), int64_t(inp.size()));
        relu_squared_backward<float>(cpu, in_place, in_place, inp.data(), int64_t(inp.size()));
        return std::vector{out.get(), dinp.get(), in_place.get()};
    });
    check_equal("out", got[0], f.floats("want.out"));
    check_equal("dinp", got[1], f.floats("want.dinp"));
    check_equal("dinp in place of dout", got[2], f.floats("want.dinp"));
}

TEST_CASE("relu_squared: the same bits wherever an element stands", "[relu_squared]") {
    const int64_t n = 10007;  // several chunks of work, and an odd rest
    const Floats inp = randn(size_t(n), 1, 3), dout = randn(size_t(n), 2);
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(inp.size()), dinp(inp.size());
        relu_squared_forward<float>(cpu, out, inp.data(), n);
        relu_squared_backward<float>(cpu, dinp, dout.data(), inp.data(), n);
        return std::vector{out.get(), dinp.get()};
    });
    Floats out, dinp;
    for (size_t i = 0; i < inp.size(); i++) {
        const float x = std::fmax(inp[i], 0.f);
        out.push_back(x * x);
        dinp.push_back(2 * x * dout[i]);
    }
    check_equal("out", got[0], out);
    check_equal("dinp", got[1], dinp);
}

TEST_CASE("relu_squared hands a NaN and infinity on", "[relu_squared]") {
    Floats inp = randn(20, 1);
    const Floats dout(20, 1);
    inp[3] = inp[17] = std::nanf("");
    inp[5] = INFINITY;
    inp[6] = -INFINITY;
    Cpu cpu(1);
    Guarded out(20), dinp(20);
    relu_squared_forward<float>(cpu, out, inp.data(), 20);
    relu_squared_backward<float>(cpu, dinp, dout.data(), inp.data(), 20);
    for (const Floats& x : {out.get(), dinp.get()}) {
        CHECK((std::isnan(x[3]) && std::isnan(x[17])));
        CHECK(count_not_finite(x) == 3);
        CHECK(x[5] == INFINITY);
        CHECK(x[6] == 0);
    }
}

TEST_CASE("relu_squared in bf16 rounds each result once", "[relu_squared]") {
    const int64_t n = GENERATE(1, 15, 32, 10007);
    check_rounds_once([n]<class T>(Cpu& cpu) {
        const auto inp = bf16_randn<T>(n, 1, 4), dout = bf16_randn<T>(n, 2);
        Guarded<T> out(inp.size()), dinp(inp.size());
        relu_squared_forward(cpu, out.data(), inp.data(), n);
        relu_squared_backward(cpu, dinp.data(), dout.data(), inp.data(), n);
        return std::vector{stored(out), stored(dinp)};
    });
}

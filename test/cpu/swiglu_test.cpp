// SwiGLU against PyTorch, with huge gates, and with NaN.
#include "llmc/cpu/swiglu.h"
#include "test/fixture.h"     // Fixture
#include "test/op_testing.h"  // on_any_threads, check_within
#include "test/testing.h"

TEST_CASE("swiglu agrees with PyTorch", "[swiglu]") {
    const Fixture f("swiglu");
    const auto [N, C] = GENERATE(table<int, int>({{1, 1}, {3, 7}, {2, 16}, {5, 33}, {4, 150}}));
    const std::string name = format("%dx%d.", N, C), want = "want." + name;
    INFO(name);
    const Floats inp = f.floats(name + "inp"), dout = f.floats(name + "dout");
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(dout.size()), dinp(inp.size()), in_place(inp), amax(1);
        swiglu_forward<float>(cpu, out, inp.data(), N, C);
        swiglu_backward<float>(cpu, dinp.data(), dout.data(), inp.data(), N, C);
        swiglu_backward<float>(cpu, {in_place, amax}, dout.data(), in_place, N, C);
        return std::vector{out.get(), dinp.get(), in_place.get(), amax.get()};
    });
    // The exponential is right to 1.5 units, its sum with one, the quotients and the products to half a unit each: 4 of
    // out and dup. The slope is s + gate s (1 - s), both terms relative: s to 1 unit and 1.5 (1 - s), 1.5 of it at
    // most; the other, which is below 0.28, to those 2.5, to the 4.5 of 1 - s = e s, and a product: 2.3. The last sum
    // and two products round a slope below 1.1 by half a unit each: 6 units of |dout up| together.
    const Floats want_out = f.floats(want + "out"), want_dinp = f.floats(want + "dinp");
    std::vector<double> bounds;
    for (int64_t n = 0; n < N; n++)
        for (int64_t c = 0; c < 2 * C; c++) {
            const size_t i = size_t(n * 2 * C + c), row = size_t(n * C);
            const double dgate = 6 * std::fabs(dout[row + size_t(c % C)] * inp[size_t(n * 2 * C + C + c % C)]);
            bounds.push_back(kEpsF32 * (c < C ? dgate : 4 * std::fabs(want_dinp[i])));
        }
    check_relative("out", got[0], want_out, 4 * kEpsF32);
    check_within("dinp", got[1], want_dinp, bounds);
    CHECK(same_bits(got[2], got[1]));
    float most = 0;
    for (const float x : got[1]) most = std::max(most, std::fabs(x));
    CHECK(got[3][0] == most);
}

TEST_CASE("swiglu of huge gates is the identity or zero", "[swiglu]") {
    const int64_t C = 6;
    const Floats inp = {1e4f, -1e4f, 1e15f, -1e15f, 1e30f, -1e30f, 1, 1, 2, 2, 4, 4}, dout(size_t(C), 3);
    Cpu cpu(1);
    Guarded out(dout.size()), dinp(inp.size());
    swiglu_forward<float>(cpu, out, inp.data(), 1, C);
    swiglu_backward<float>(cpu, dinp.data(), dout.data(), inp.data(), 1, C);
    CHECK(out.get() == Floats{1e4f, 0, 2e15f, 0, 4e30f, 0});
    CHECK(dinp.get() == Floats{3, 0, 6, 0, 12, 0, 3 * 1e4f, 0, 3 * 1e15f, 0, 3 * 1e30f, 0});
}

TEST_CASE("swiglu hands a NaN on, to its own column alone", "[swiglu]") {
    const int64_t N = 2, C = 20;
    Floats inp = randn(size_t(N * 2 * C), 1);
    const Floats dout(size_t(N * C), 1);
    inp[3] = inp[size_t(2 * C + C + 17)] = std::nanf("");  // a gate of the first row, an up of the second
    Cpu cpu(1);
    Guarded out(dout.size()), dinp(inp.size());
    swiglu_forward<float>(cpu, out, inp.data(), N, C);
    swiglu_backward<float>(cpu, dinp.data(), dout.data(), inp.data(), N, C);
    const Floats y = out.get(), dx = dinp.get();
    CHECK((std::isnan(y[3]) && std::isnan(y[size_t(C + 17)])));
    CHECK(count_not_finite(y) == 2);
    CHECK((std::isnan(dx[3]) && std::isnan(dx[size_t(C + 3)]) && std::isnan(dx[size_t(2 * C + 17)])));
    CHECK(count_not_finite(dx) == 3);
}

TEST_CASE("swiglu in bf16 rounds each result once", "[swiglu]") {
    const auto [N, C] = GENERATE(table<int64_t, int64_t>({{1, 1}, {5, 33}, {3, 768}}));
    INFO(N << " x " << C);
    check_rounds_once([N = N, C = C]<class T>(Cpu& cpu) {
        const auto inp = bf16_randn<T>(N * 2 * C, 1, 4), dout = bf16_randn<T>(N * C, 2);
        Guarded<T> out(dout.size()), dinp(inp.size());
        swiglu_forward(cpu, out.data(), inp.data(), N, C);
        swiglu_backward(cpu, dinp.data(), dout.data(), inp.data(), N, C);
        return std::vector{stored(out), stored(dinp)};
    });
}

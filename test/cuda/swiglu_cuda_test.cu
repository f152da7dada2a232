// SwiGLU's kernels against the CPU's functions.
#include "llmc/cuda/swiglu.cuh"
#include "llmc/cpu/swiglu.h"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same

TEMPLATE_TEST_CASE("swiglu's kernels agree with the CPU", "[swiglu]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const int P = Pack<T>::size;
    // one pack, a rest of a warp, and two blocks of columns that do not fill up
    const auto [N, C] = GENERATE_COPY(table<int, int>({{1, P}, {3, 40 * P}, {5, 260 * P}}));
    INFO(N << " x " << C);
    const auto n = size_t(N * C);
    const Floats inp = rounded<T>(randn(2 * n, 1, 3)), dout = rounded<T>(randn(n, 2));
    Cpu cpu;
    Floats out(n), dinp(2 * n);
    swiglu_forward(cpu, out.data(), inp.data(), N, C);
    swiglu_backward(cpu, dinp.data(), dout.data(), inp.data(), N, C);

    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp), d_dout(cuda, dout);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_out(cuda, n), d_dinp(cuda, 2 * n), d_in_place(cuda, inp);
        swiglu_forward(cuda, d_out.data, d_inp.data, N, C);
        swiglu_backward(cuda, d_dinp.data, d_dout.data, d_inp.data, N, C);
        OnDevice<float> amax(cuda, 1);
        swiglu_backward(cuda, {d_in_place.data, amax.data}, d_dout.data, d_in_place.data, N, C);
        return std::vector{d_out.get(), d_dinp.get(), d_in_place.get(), amax.get()};
    });
    // The bounds of swiglu_test.cpp, and half a unit for what is stored in bf16; and on the device: e is right to 2
    // units and |gate| more, for a product in the exponent with a rounded log2(e). In 1 + e that counts (1 - s) times,
    // so that s, with two units for the quotient, is right to (2 + |gate|) (1 - s) + 2.5, and out and dup to 6 + |gate|
    // where the gate is negative, where it is positive to 6. The slope: s within 2.8, as |gate| s (1 - s) < 0.23; the
    // other term has twice the error of s, once that of e and a unit, 12 + 3 |gate| of at most 0.23, where
    // gate^2 s (1 - s) < 0.45: 4.1. With the last sum and two products 9 units of |dout up|.
    const double stored = std::is_same_v<T, bf16> ? kEpsBf16 / 2 : 0;
    std::vector<double> bounds, out_bounds;
    const auto negative = [&](int64_t row, int64_t c) { return std::fmax(0, -double(inp[size_t(row * 2 * C + c)])); };
    for (int64_t i = 0; i < N * C; i++)
        out_bounds.push_back(((4 + 6 + negative(i / C, i % C)) * kEpsF32 + stored) * std::fabs(out[size_t(i)]));
    for (int64_t i = 0; i < 2 * N * C; i++) {
        const int64_t row = i / (2 * C), c = i % (2 * C);
        const double d = dout[size_t(row * C + c % C)], up = inp[size_t(row * 2 * C + C + c % C)];
        const double roundings =
            c < C ? (6 + 9) * std::fabs(d * up) : (4 + 6 + negative(row, c - C)) * std::fabs(dinp[size_t(i)]);
        bounds.push_back(kEpsF32 * roundings + stored * std::fabs(dinp[size_t(i)]));
    }
    check_within("out", got[0], out, out_bounds);
    check_within("dinp", got[1], dinp, bounds);
    check_equal("dinp in place of inp", got[2], got[1]);
    float most = 0;
    for (const float x : got[1]) most = std::max(most, std::fabs(x));
    CHECK(got[3][0] == most);
}

TEMPLATE_TEST_CASE("swiglu's kernels: huge gates, and a NaN in its own column", "[swiglu]" ON_DEVICE, float, bf16) {
    using T = TestType;
    Floats inp(16, 2), dout(8, 3);
    inp[0] = 1e4f, inp[1] = -1e4f, inp[2] = 0x1p100f, inp[3] = -0x1p100f, inp[4] = std::nanf("");
    inp[8 + 5] = std::nanf("");
    Cuda cuda;
    const OnDevice<T> d_inp(cuda, rounded<T>(inp)), d_dout(cuda, dout);
    OnDevice<T> d_out(cuda, 8), d_dinp(cuda, 16);
    swiglu_forward(cuda, d_out.data, d_inp.data, 1, 8);
    swiglu_backward(cuda, d_dinp.data, d_dout.data, d_inp.data, 1, 8);
    const Floats out = d_out.get(), dinp = d_dinp.get();
    CHECK(Floats(out.begin(), out.begin() + 4) == Floats{2 * rounded<T>({1e4f})[0], 0, 0x1p101f, 0});
    CHECK(Floats(dinp.begin(), dinp.begin() + 4) == Floats{6, 0, 6, 0});
    CHECK((std::isnan(out[4]) && std::isnan(out[5]) && count_not_finite(out) == 2));
    CHECK((std::isnan(dinp[4]) && std::isnan(dinp[5]) && std::isnan(dinp[8 + 4]) && count_not_finite(dinp) == 3));
}

TEST_CASE("swiglu's kernels refuse columns that are not a multiple of 16 bytes", "[swiglu]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 24);
    CHECK(error_of([&] { swiglu_forward(cuda, x.data, x.data, 1, 12); }) ==
          "2: swiglu_forward of 12 columns: they must be a multiple of 8, 16 bytes");
    CHECK(error_of([&] { swiglu_backward(cuda, x.data, x.data, x.data, 1, 12); }) ==
          "2: swiglu_backward of 12 columns: they must be a multiple of 8, 16 bytes");
}

// GELU's kernels against PyTorch in f32, and against the CPU's functions in bf16.
#include "llmc/cuda/gelu.cuh"
#include "llmc/cpu/gelu.h"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same
#include "test/fixture.h"       // Fixture

constexpr int64_t kBlock = int64_t(kGeluPacks) * kGeluThreads;  // packs

// {out, dinp, dinp computed in place of dout, its largest magnitude}. After the inputs lie numbers and after the
// outputs NaN, so that an element too many shows.
template <class T>
static std::vector<Floats> on_device(Floats inp, Floats dout) {
    Cuda cuda;
    const size_t n = inp.size();
    inp.resize(n + Pack<T>::size, 1), dout.resize(n + Pack<T>::size, 1);
    const OnDevice<T> d_inp(cuda, inp), d_dout(cuda, dout);
    return twice_the_same([&] {
        OnDevice<T> out(cuda, n), dinp(cuda, n), in_place(cuda, dout);
        gelu_forward(cuda, out.data, d_inp.data, int64_t(n));
        gelu_backward(cuda, dinp.data, d_dout.data, d_inp.data, int64_t(n));
        OnDevice<float> amax(cuda, 1);
        gelu_backward(cuda, {in_place.data, amax.data}, in_place.data, d_inp.data, int64_t(n));
        Floats in_place_of_dout = in_place.get();
        in_place_of_dout.resize(n);
        return std::vector{out.get(), dinp.get(), in_place_of_dout, amax.get()};
    });
}

// As in gelu_test.cpp, with two units for the power of 2, two for each quotient and one more for the rounded log2(e) in
// the exponent, w < 17 of it: forward 4 + 2, backward 9 + 3 units.
constexpr double kForward = 6 * kEpsF32, kBackward = 12 * kEpsF32;

TEST_CASE("gelu on the device agrees with PyTorch", "[gelu]" ON_DEVICE) {
    const Fixture f("gelu");
    const auto padded = [&](const char* name) {
        Floats x = f.floats(name);
        x.resize(x.size() / 4 * 4);  // whole packs; the last elements are small negative numbers and zeros
        return x;
    };
    const Floats inp = padded("inp"), dout = padded("dout");
    const auto got = on_device<float>(inp, dout);
    std::vector<double> out_bounds, dinp_bounds;
    for (const float x : inp) out_bounds.push_back(kForward * std::fabs(x));
    for (const float d : dout) dinp_bounds.push_back(kBackward * std::fabs(d));
    check_within("out", got[0], padded("want.out"), out_bounds);
    check_within("dinp", got[1], padded("want.dinp"), dinp_bounds);
    CHECK(same_bits(got[2], got[1]));
}

TEMPLATE_TEST_CASE("gelu on the device agrees with the CPU", "[gelu]" ON_DEVICE, float, bf16) {
    using T = TestType;
    // One pack; the last block with one pack only in its first half, then with one in its second.
    const int64_t packs = GENERATE(int64_t(1), kBlock + 1, kBlock + kGeluThreads + 1);
    INFO(packs << " packs");
    const int64_t n = packs * Pack<T>::size;
    const Floats inp = rounded<T>(randn(size_t(n), 1, 3)), dout = rounded<T>(randn(size_t(n), 2));
    Cpu cpu;
    Floats out(inp.size()), dinp(inp.size());
    gelu_forward(cpu, out.data(), inp.data(), n);
    gelu_backward(cpu, dinp.data(), dout.data(), inp.data(), n);
    const auto got = on_device<T>(inp, dout);
    // both sides' errors, and half a unit of what a bf16 is rounded by
    const double stored = std::is_same_v<T, bf16> ? kEpsBf16 / 2 : 0;
    std::vector<double> out_bounds, dinp_bounds;
    for (size_t i = 0; i < inp.size(); i++) {
        out_bounds.push_back((4 * kEpsF32 + kForward) * std::fabs(inp[i]) + stored * std::fabs(out[i]));
        dinp_bounds.push_back((9 * kEpsF32 + kBackward) * std::fabs(dout[i]) + stored * std::fabs(dinp[i]));
    }
    check_within("out", got[0], out, out_bounds);
    check_within("dinp", got[1], dinp, dinp_bounds);
    CHECK(same_bits(got[2], got[1]));
    float most = 0;
    for (const float x : got[1]) most = std::max(most, std::fabs(x));
    CHECK(got[3][0] == most);
}

TEST_CASE("gelu on the device: huge numbers and NaN", "[gelu]" ON_DEVICE) {
    const Floats inp = {1e4f, -1e4f, 1e15f, -1e15f, 1e30f, -1e30f, INFINITY, NAN}, dout(inp.size(), 3);
    const auto got = on_device<float>(inp, dout);
    CHECK(Floats(got[0].begin(), got[0].end() - 1) == Floats{1e4f, 0, 1e15f, 0, 1e30f, 0, INFINITY});
    CHECK(Floats(got[1].begin(), got[1].begin() + 4) == Floats{3, 0, 3, 0});
    CHECK((std::isnan(got[0][7]) && std::isnan(got[1][7]) && std::isnan(got[3][0])));
}

TEST_CASE("gelu's kernels refuse sizes that are not a multiple of 16 bytes", "[gelu]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 12);
    const std::string refused = "2: gelu of 12 elements: they must be a multiple of 8, 16 bytes";
    CHECK(error_of([&] { gelu_forward(cuda, x.data, x.data, 12); }) == refused);
    CHECK(error_of([&] { gelu_backward(cuda, x.data, x.data, x.data, 12); }) == refused);
}

// A linear layer in FP8: PyTorch's products of the same codes, and exact on whole numbers.
#include "llmc/cpu/matmul_fp8.h"
#include "llmc/cpu/quantize.h"
#include "test/cpu/fp8_testing.h"  // HostQuantized
#include "test/fixture.h"          // Fixture
#include "test/op_testing.h"       // on_any_threads, check_equal, plus
#include "test/testing.h"

// Not inlined into the test case, where g++ 12's vectorizer fails.
template <class T>
__attribute__((noinline)) static std::vector<Floats> layer(Cpu& cpu, const Fp8Layer& x, const T* bias,
                                                           const Floats& dweight_start) {
    Guarded<T> out(size_t(x.dout.rows * x.dout.cols)), dinp(size_t(x.inp.rows * x.inp.cols));
    Guarded dweight(dweight_start);
    matmul_fp8_forward<T>(cpu, out, x.inp.view(), x.weight.view(), bias);
    matmul_fp8_backward<T>(cpu, dinp, dweight, x.dout.view(), x.inp.view(), x.weight.view());
    std::vector<Floats> results;
    results.push_back(out.get());
    results.push_back(dinp.get());
    results.push_back(dweight.get());
    return results;
}

// Products of two codes are exact. What is left: a chain of K additions (test/cpu/matmul_test.cpp), the product of the
// two scales, and that with the sum, half a unit each.
static double tolerance(int64_t K) { return (2 + std::sqrt(double(K))) * kEpsF32; }

TEST_CASE("matmul_fp8 agrees with PyTorch", "[matmul_fp8]") {
    const Fixture f("matmul_fp8");
    const auto [N, C, OC] = GENERATE(table<int, int, int>({{16, 16, 16}, {48, 16, 32}, {16, 144, 16}, {16, 32, 80}}));
    const std::string name = format("%dx%dx%d.", N, C, OC), want = "want." + name;
    INFO(name);
    const Fp8Layer x{
        {f.floats(name + "inp"), N, C}, {f.floats(name + "weight"), OC, C}, {f.floats(name + "dout"), N, OC}};
    // Of the size of what is added, or the sum would hide it.
    const Floats added = f.floats(want + "dweight");
    const Floats dweight_start = randn(added.size(), 1, float(rms(added.data(), int64_t(added.size()))));
    const auto got = on_any_threads([&](Cpu& cpu) { return layer<float>(cpu, x, nullptr, dweight_start); });
    check_close("out", got[0], f.floats(want + "out"), tolerance(C));
    check_close("dinp", got[1], f.floats(want + "dinp"), tolerance(OC));
    check_close("dweight", got[2], plus(dweight_start, added), tolerance(N));
}

TEST_CASE("matmul_fp8 is exact on whole numbers", "[matmul_fp8]") {
    const auto [N, C, OC] = GENERATE(table<int, int, int>({{16, 16, 16}, {32, 272, 48}, {304, 32, 16}}));
    INFO(N << " x " << C << " x " << OC);
    const bool has_bias = GENERATE(false, true);
    const WholeFp8Layer x(N, C, OC, has_bias);
    const auto got = on_any_threads(
        [&](Cpu& cpu) { return layer<float>(cpu, x.layer, has_bias ? x.bias.data() : nullptr, x.dweight_start); });
    check_equal("out", got[0], x.out);
    check_equal("dinp", got[1], x.dinp);
    check_equal("dweight", got[2], x.dweight);

    Cpu cpu(2);
    Guarded dweight(x.dweight_start);
    matmul_fp8_backward<float>(cpu, nullptr, dweight, x.layer.dout.view(), x.layer.inp.view(), x.layer.weight.view());
    check_equal("dweight alone", dweight.get(), x.dweight);
    Guarded dinp(x.dinp.size());
    matmul_fp8_backward<float>(cpu, dinp, nullptr, x.layer.dout.view(), x.layer.inp.view(), x.layer.weight.view());
    check_equal("dinp alone", dinp.get(), x.dinp);

    // Over what was NaN
    Guarded set(x.dweight.size()), added(x.dweight.size(), 0);
    const Fp8Layer& l = x.layer;
    matmul_fp8_backward<float>(cpu, nullptr, set, l.dout.view(), l.inp.view(), l.weight.view(), Write::set);
    matmul_fp8_backward<float>(cpu, nullptr, added, l.dout.view(), l.inp.view(), l.weight.view(), Write::add);
    CHECK(same_bits(set.get(), added.get()));
}

// What the conversion costs: an element of out is a sum of C products, each off by up to 2^-4 + 2^-4 of itself, or, of
// numbers below the smallest normal one, by 2^-10 of 448 times less than the largest.
TEST_CASE("matmul_fp8 of float tensors is near the product of floats", "[matmul_fp8]") {
    const int64_t N = 32, C = 128, OC = 48;
    const Floats inp = randn(size_t(N * C), 1), weight = randn(size_t(OC * C), 2, 0.02f);
    const HostQuantized<e4m3> inp8{inp, N, C}, weight8{weight, OC, C};
    Cpu cpu(2);
    Guarded out(size_t(N * OC));
    matmul_fp8_forward<float>(cpu, out, inp8.view(), weight8.view(), nullptr);
    Floats want;
    std::vector<double> bounds;
    const auto off = [](float x, float inverse_scale) {
        return std::fabs(double(x)) / 16 + double(inverse_scale) / 1024;
    };
    for (int64_t n = 0; n < N; n++)
        for (int64_t o = 0; o < OC; o++) {
            double sum = 0, bound = 0;
            for (int64_t c = 0; c < C; c++) {
                const float x = inp[size_t(n * C + c)], w = weight[size_t(o * C + c)];
                const double dx = off(x, inp8.inverse_scale), dw = off(w, weight8.inverse_scale);
                sum += double(x) * w;
                bound += dx * std::fabs(w) + dw * std::fabs(x) + dx * dw;
            }
            want.push_back(float(sum));
            bounds.push_back(bound);
        }
    check_within("out", out.get(), want, bounds);
}

TEST_CASE("matmul_fp8 refuses sizes that are not multiples of 16", "[matmul_fp8]") {
    Cpu cpu(1);
    const float one = 1;
    const auto error = [&](int64_t N, int64_t C, int64_t OC) {
        const Quantized<e4m3> inp{nullptr, nullptr, &one, N, C}, weight{nullptr, nullptr, &one, OC, C};
        const Quantized<e5m2> dout{nullptr, nullptr, &one, N, OC};
        const std::string forward = error_of([&] { matmul_fp8_forward<float>(cpu, nullptr, inp, weight, nullptr); });
        CHECK(contains(error_of([&] { matmul_fp8_backward<float>(cpu, nullptr, nullptr, dout, inp, weight); }),
                       "2: matmul_fp8_backward of "));
        return forward;
    };
    const std::string rest = ": in fp8 tokens and channels must be multiples of 16";
    CHECK(error(24, 16, 32) == "2: matmul_fp8_forward of (24, 16) by (32, 16)" + rest);
    CHECK(error(16, 24, 32) == "2: matmul_fp8_forward of (16, 24) by (32, 24)" + rest);
    CHECK(error(16, 16, 8) == "2: matmul_fp8_forward of (16, 16) by (8, 16)" + rest);
}

TEST_CASE("matmul_fp8 with results in bf16 rounds them once", "[matmul_fp8]") {
    const int64_t N = 16, C = 144, OC = 48;
    const Fp8Layer x{
        {randn(size_t(N * C), 1), N, C}, {randn(size_t(OC * C), 2), OC, C}, {randn(size_t(N * OC), 3), N, OC}};
    const bool has_bias = GENERATE(false, true);
    check_rounds_once([&]<class T>(Cpu& cpu) {
        const auto bias = bf16_randn<T>(OC, 4, 10);
        auto results = layer<T>(cpu, x, has_bias ? bias.data() : nullptr, randn(size_t(OC * C), 5, 100));
        for (const size_t i : {0, 1}) results[i] = rounded<bf16>(results[i]);
        return results;
    });
}

TEST_CASE("matmul_mx agrees with PyTorch", "[matmul_fp8]") {
    const Fixture f("matmul_fp8");
    const auto [N, C, OC] = GENERATE(table<int, int, int>({{64, 32, 32}, {32, 160, 32}}));
    const std::string name = format("mx.%dx%dx%d.", N, C, OC), want = "want." + name;
    INFO(name);
    const Floats added = f.floats(want + "dweight"), bias = randn(size_t(OC), 5);
    const Floats start = randn(added.size(), 1, float(rms(added.data(), int64_t(added.size()))));
    const auto got = on_any_threads([&](Cpu& cpu) {
        HostMx inp(cpu, f.floats(name + "inp"), N, C), weight(cpu, f.floats(name + "weight"), OC, C),
            dout(cpu, f.floats(name + "dout"), N, OC);
        Guarded out(size_t(N * OC)), with_bias(size_t(N * OC)), dinp(size_t(N * C)), dweight(start),
            alone(added.size());
        matmul_mx_forward<float>(cpu, out, inp.view(), weight.view(), nullptr);
        matmul_mx_forward<float>(cpu, with_bias, inp.view(), weight.view(), bias.data());
        matmul_mx_backward<float>(cpu, dinp, dweight, dout.view(), inp.view(), weight.view());
        matmul_mx_backward<float>(cpu, nullptr, alone, dout.view(), inp.view(), weight.view(), Write::set);
        return std::vector<Floats>{out.get(), dinp.get(), dweight.get(), alone.get(), with_bias.get()};
    });
    check_close("out", got[0], f.floats(want + "out"), tolerance(C));
    check_close("dinp", got[1], f.floats(want + "dinp"), tolerance(OC));
    check_close("dweight", got[2], plus(start, added), tolerance(N));
    check_close("dweight alone", got[3], added, tolerance(N));
    for (int i = 0; i < N * OC; i++) CHECK(got[4][size_t(i)] == got[0][size_t(i)] + bias[size_t(i % OC)]);
}

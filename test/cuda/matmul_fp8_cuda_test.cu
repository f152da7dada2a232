// The linear layer in FP8 on a GPU: exact on whole numbers, and against the CPU on others.
#include "llmc/cuda/matmul_fp8.cuh"
#include "llmc/cpu/matmul_fp8.h"
#include "test/cpu/fp8_testing.h"  // Fp8Layer, WholeFp8Layer, MxLayer
#include "test/cuda/mx_testing.h"  // DeviceMx, has_mx
#include "test/cuda_testing.h"     // OnDevice, rounded, twice_the_same

namespace {

template <class Fp8>
struct DeviceQuantized {
    OnDevice<Fp8> data, transposed;
    OnDevice<float> inverse_scale;
    int64_t rows, cols;

    DeviceQuantized(Cuda& cuda, const HostQuantized<Fp8>& x)
        : data(cuda, x.data),
          transposed(cuda, x.transposed),
          inverse_scale(cuda, Floats{x.inverse_scale}),
          rows(x.rows),
          cols(x.cols) {}
    Quantized<Fp8> view() const { return {data.data, transposed.data, inverse_scale.data, rows, cols}; }
};

template <class T>
std::vector<Floats> layer(const Fp8Layer& x, const Floats& bias, const Floats& dweight_start) {
    Cuda cuda;
    const OnDevice<T> on_device(cuda, bias.empty() ? Floats(1) : bias);
    const DeviceQuantized<e4m3> inp(cuda, x.inp), weight(cuda, x.weight);
    const DeviceQuantized<e5m2> dout(cuda, x.dout);
    return twice_the_same([&] {
        OnDevice<T> out(cuda, x.dout.data.size()), dinp(cuda, x.inp.data.size());
        OnDevice<float> dweight(cuda, dweight_start), alone(cuda, dweight_start);
        OnDevice<float> set(cuda, dweight_start.size()),
            added(cuda, Floats(dweight_start.size(), 0));  // set: NaN at first
        matmul_fp8_forward<T>(cuda, out.data, inp.view(), weight.view(), bias.empty() ? nullptr : on_device.data);
        matmul_fp8_backward(cuda, dinp.data, dweight.data, dout.view(), inp.view(), weight.view());
        matmul_fp8_backward<T>(cuda, nullptr, alone.data, dout.view(), inp.view(), weight.view());
        matmul_fp8_backward<T>(cuda, nullptr, set.data, dout.view(), inp.view(), weight.view(), Write::set);
        matmul_fp8_backward<T>(cuda, nullptr, added.data, dout.view(), inp.view(), weight.view(), Write::add);
        OnDevice<T> dinp_alone(cuda, x.inp.data.size());
        matmul_fp8_backward<T>(cuda, dinp_alone.data, nullptr, dout.view(), inp.view(), weight.view());
        return std::vector{out.get(), dinp.get(), dweight.get(), alone.get(), set.get(), added.get(), dinp_alone.get()};
    });
}

bool has_fp8() {
    const Cuda cuda;
    return cuda.compute_capability >= kOldestFp8;
}

}  // namespace

// As training has them: 128 channels and more (linear.h), tokens in multiples of 16. For smaller products cuBLASLt may
// have no algorithm.
TEMPLATE_TEST_CASE("matmul_fp8 on a GPU is exact on whole numbers", "[matmul_fp8]" ON_DEVICE, float, bf16) {
    if (!has_fp8()) return;
    const auto [N, C, OC] =
        GENERATE(table<int, int, int>({{128, 128, 128}, {16, 272, 144}, {304, 128, 160}, {64, 512, 128}}));
    INFO(N << " x " << C << " x " << OC);
    const bool has_bias = std::is_same_v<TestType, bf16> ? GENERATE(false, true) : false;
    const WholeFp8Layer x(N, C, OC, has_bias);
    const auto got = layer<TestType>(x.layer, has_bias ? x.bias : Floats(), x.dweight_start);
    check_equal("out", got[0], rounded<TestType>(x.out));
    check_equal("dinp", got[1], rounded<TestType>(x.dinp));
    check_equal("dweight", got[2], x.dweight);
    check_equal("dweight alone", got[3], x.dweight);
    check_equal("dweight over NaN", got[4], got[5]);
    check_equal("dinp alone", got[6], got[1]);
}

TEST_CASE("matmul_fp8 on a GPU agrees with the CPU", "[matmul_fp8]" ON_DEVICE) {
    if (!has_fp8()) return;
    const int64_t N = 64, C = 160, OC = 144;
    const Fp8Layer x{{randn(size_t(N * C), 1), N, C},
                     {randn(size_t(OC * C), 2, 0.02f), OC, C},
                     {randn(size_t(N * OC), 3, 1e-5f), N, OC}};
    const Floats dweight_start = randn(size_t(OC * C), 4, 1e-4f);
    Cpu cpu;
    Floats out(size_t(N * OC)), dinp(size_t(N * C)), dweight = dweight_start;
    matmul_fp8_forward<float>(cpu, out.data(), x.inp.view(), x.weight.view(), nullptr);
    matmul_fp8_backward(cpu, dinp.data(), dweight.data(), x.dout.view(), x.inp.view(), x.weight.view());
    const auto got = layer<bf16>(x, {}, dweight_start);
    // The sums of both sides as in test/cpu/matmul_fp8_test.cpp and one rounding to bf16. Where sums stay in the tensor
    // cores, each step of 32 products may lose a unit of 14 bits of the largest sum so far, a few times the rms of all.
    const auto sums = [](int64_t K) { return 2 * (2 + std::sqrt(double(K))) * kEpsF32; };
    check_close("out", got[0], out, sums(C) + kEpsBf16 + 4 * double(C / 32) * 0x1p-14);
    check_close("dinp", got[1], dinp, sums(OC) + kEpsBf16 + 4 * 0x1p-14);
    check_close("dweight", got[2], dweight, sums(N) + 4 * 0x1p-14);
}

TEST_CASE("matmul_fp8 on a GPU says what it needs", "[matmul_fp8]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> out(cuda, 256);
    OnDevice<e4m3> codes(cuda, 24 * 24);
    OnDevice<float> one(cuda, Floats{1});
    const auto error = [&](int64_t N, int64_t C, int64_t OC) {
        const Quantized<e4m3> inp{codes.data, codes.data, one.data, N, C},
            weight{codes.data, codes.data, one.data, OC, C};
        return error_of([&] { matmul_fp8_forward<bf16>(cuda, out.data, inp, weight, nullptr); });
    };
    CHECK(error(16, 24, 16) ==
          "2: matmul_fp8_forward of (16, 24) by (16, 24): in fp8 tokens and channels must be multiples of 16");
    cuda.compute_capability = 80;
    cuda.name = "Old";
    CHECK(
        error(16, 16, 16) ==
        "2: matmul_fp8_forward: Old has no products in fp8, which begin with Ada (sm_89), and this is sm_80: train in "
        "bf16");
}

// Scales of two tiles of rows, and of two of columns that are not full, in every operand.
TEST_CASE("matmul_mx on a GPU agrees with the CPU", "[matmul_fp8]" ON_DEVICE) {
    Cuda cuda;
    if (!has_mx(cuda)) return;
    const int64_t N = 160, C = 224, OC = 288;
    Cpu cpu;
    MxLayer x(cpu, N, C, OC);
    const Floats dweight_start = randn(size_t(OC * C), 4, 1e-3f), bias = rounded<bf16>(randn(size_t(OC), 5));
    Floats out(size_t(N * OC)), dinp(size_t(N * C)), dweight = dweight_start;
    matmul_mx_forward<float>(cpu, out.data(), x.inp.view(), x.weight.view(), bias.data());
    matmul_mx_backward(cpu, dinp.data(), dweight.data(), x.dout.view(), x.inp.view(), x.weight.view());
    DeviceMx inp(cuda, x.inp), weight(cuda, x.weight), dout(cuda, x.dout);
    const OnDevice<bf16> d_bias(cuda, bias);
    const auto got = twice_the_same([&] {
        OnDevice<bf16> d_out(cuda, out.size()), d_dinp(cuda, dinp.size());
        OnDevice<float> added(cuda, dweight_start), alone(cuda, dweight_start), set(cuda, dweight.size()),
            to_zero(cuda, Floats(dweight.size(), 0));
        matmul_mx_forward<bf16>(cuda, d_out.data, inp.view(), weight.view(), d_bias.data);
        matmul_mx_backward(cuda, d_dinp.data, added.data, dout.view(), inp.view(), weight.view());
        matmul_mx_backward<bf16>(cuda, nullptr, alone.data, dout.view(), inp.view(), weight.view());
        matmul_mx_backward<bf16>(cuda, nullptr, set.data, dout.view(), inp.view(), weight.view(), Write::set);
        matmul_mx_backward<bf16>(cuda, nullptr, to_zero.data, dout.view(), inp.view(), weight.view());
        return std::vector{d_out.get(), d_dinp.get(), added.get(), alone.get(), set.get(), to_zero.get()};
    });
    // As above; that Blackwell's tensor cores lose no more than Hopper's is assumed.
    const auto sums = [](int64_t K) { return 2 * (2 + std::sqrt(double(K))) * kEpsF32 + 4 * double(K / 32) * 0x1p-14; };
    check_close("out", got[0], out, sums(C) + kEpsBf16);
    check_close("dinp", got[1], dinp, sums(OC) + kEpsBf16);
    check_close("dweight", got[2], dweight, sums(N));
    check_equal("dweight alone", got[3], got[2]);
    check_equal("dweight over NaN", got[4], got[5]);
}

TEST_CASE("matmul_mx on a GPU says what it needs", "[matmul_fp8]" ON_DEVICE) {
    Cuda cuda;
    const MxTensor x{nullptr, nullptr, nullptr, nullptr, 32, 32}, odd{nullptr, nullptr, nullptr, nullptr, 48, 32};
    CHECK(error_of([&] { matmul_mx_forward<bf16>(cuda, nullptr, x, odd, nullptr); }) ==
          "2: matmul_mx_forward of (48, 32): in MX tokens and channels must be multiples of 32");
    cuda.compute_capability = 90, cuda.name = "Old";
    CHECK(error_of([&] { matmul_mx_backward<bf16>(cuda, nullptr, nullptr, x, x, x); }) ==
          "2: matmul_mx_backward: Old has no products in MX, which begin with Blackwell (sm_100), and this is sm_90: "
          "choose another --fp8-scaling");
}

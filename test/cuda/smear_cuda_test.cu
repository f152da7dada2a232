// Smear's kernels against the CPU's functions.
#include "llmc/cuda/smear.cuh"
#include "llmc/cpu/smear.h"
#include "test/cpu/gate_testing.h"  // smear_bounds, twice, stored
#include "test/cuda_testing.h"      // OnDevice, rounded, twice_the_same

TEMPLATE_TEST_CASE("smear agrees with the CPU", "[smear]" ON_DEVICE, float, bf16) {
    using T = TestType;
    // A row alone, a gate that ends inside a pack, one as wide as a warp and the row, several blocks, several steps a
    // lane.
    const auto [B, seq_len, C, G] = GENERATE(table<int, int, int, int>(
        {{1, 1, 8, 1}, {2, 5, 64, 13}, {3, 2, 32, 32}, {3, 33, 264, 24}, {1, 70, 48, 24}, {1, 3, 1600, 12}}));
    INFO(B << " x " << seq_len << " x " << C << ", gate " << G);
    const auto n = size_t(B * seq_len * C);
    const Floats inp = rounded<T>(randn(n, 1)), dout = rounded<T>(randn(n, 2)), lambda = rounded<T>({0.7f});
    const Floats weight = rounded<T>(randn(size_t(G), 3, 0.5f)), dweight = randn(size_t(G), 4), dlambda{0.25f};

    Cpu cpu;
    Floats out(n), dinp(n), want_dweight = dweight, want_dlambda = dlambda;
    smear_forward(cpu, out.data(), inp.data(), weight.data(), lambda.data(), B, seq_len, C, G);
    smear_backward(cpu, dinp.data(), want_dweight.data(), want_dlambda.data(), dout.data(), inp.data(), weight.data(),
                   lambda.data(), B, seq_len, C, G);

    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp), d_dout(cuda, dout), d_weight(cuda, weight), d_lambda(cuda, lambda);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_out(cuda, n), d_dinp(cuda, n);
        OnDevice<float> d_dweight(cuda, dweight), d_dlambda(cuda, dlambda);
        smear_forward(cuda, d_out.data, d_inp.data, d_weight.data, d_lambda.data, B, seq_len, C, G);
        smear_backward(cuda, d_dinp.data, d_dweight.data, d_dlambda.data, d_dout.data, d_inp.data, d_weight.data,
                       d_lambda.data, B, seq_len, C, G);
        return std::vector{d_out.get(), d_dinp.get(), d_dweight.get(), d_dlambda.get()};
    });
    const SmearBounds bounds = smear_bounds(dout, inp, weight, lambda[0], dweight, dlambda[0], B, seq_len, C, G);
    check_within("out", got[0], out, stored<T>(twice(bounds.out), out));
    check_within("dinp", got[1], dinp, stored<T>(twice(bounds.dinp), dinp));
    check_within("dgate_weight", got[2], want_dweight, twice(bounds.dgate_weight));
    check_within("dlambda", got[3], want_dlambda, twice(bounds.dlambda));
}

TEST_CASE("smear's kernels: gates far from zero overflow nothing", "[smear]" ON_DEVICE) {
    const int64_t T = 2, C = 8, G = 1;
    const float sign = GENERATE(1.f, -1.f);
    const Floats inp(size_t(T * C), 2), ones(size_t(T * C), 1);
    Cuda cuda;
    const OnDevice<float> d_inp(cuda, inp), d_dout(cuda, ones), weight(cuda, Floats{1e3f * sign});
    const OnDevice<float> lambda(cuda, Floats{1});
    OnDevice<float> out(cuda, inp.size()), dinp(cuda, inp.size()), dweight(cuda, Floats{0}), dlambda(cuda, Floats{0});
    smear_forward(cuda, out.data, d_inp.data, weight.data, lambda.data, 1, T, C, G);
    smear_backward(cuda, dinp.data, dweight.data, dlambda.data, d_dout.data, d_inp.data, weight.data, lambda.data, 1, T,
                   C, G);
    const float open = sign > 0 ? 1 : 0;
    Floats want_out = inp, want_dinp = ones;
    for (int64_t c = 0; c < C; c++) want_out[size_t(C + c)] += 2 * open, want_dinp[size_t(c)] += open;
    check_equal("out", out.get(), want_out);
    check_equal("dinp", dinp.get(), want_dinp);
    check_equal("dgate_weight", dweight.get(), {0});
    check_equal("dlambda", dlambda.get(), {16 * open});
}

TEST_CASE("smear_backward's kernel: the gradient of a first row reaches no other row and no gate",
          "[smear]" ON_DEVICE) {
    const int64_t B = 2, T = 3, C = 8, G = 4;
    const auto n = size_t(B * T * C);
    Floats dout = randn(n, 1);
    dout[size_t(T * C)] = std::nanf("");  // in the second sequence
    Cuda cuda;
    const OnDevice<float> inp(cuda, randn(n, 2)), d_dout(cuda, dout), weight(cuda, randn(size_t(G), 3));
    const OnDevice<float> lambda(cuda, Floats{1});
    OnDevice<float> dinp(cuda, n), dweight(cuda, Floats(size_t(G), 0)), dlambda(cuda, Floats{0});
    smear_backward(cuda, dinp.data, dweight.data, dlambda.data, d_dout.data, inp.data, weight.data, lambda.data, B, T,
                   C, G);
    CHECK(count_not_finite(dinp.get()) == 1);
    CHECK(count_not_finite(dweight.get()) + count_not_finite(dlambda.get()) == 0);
}

TEST_CASE("smear's kernels refuse rows and gates that they cannot take", "[smear]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 64);
    CHECK(error_of([&] { smear_forward(cuda, x.data, x.data, x.data, x.data, 1, 1, 12, 8); }) ==
          "2: smear_forward of 12 channels: they must be a multiple of 8, 16 bytes");
    CHECK(error_of([&] { smear_forward(cuda, x.data, x.data, x.data, x.data, 1, 1, 64, 33); }) ==
          "2: smear_forward: a gate of 33 channels: expected at most 32 and at most the row's 64");
    CHECK(contains(error_of([&] { smear_forward(cuda, x.data, x.data, x.data, x.data, 1, 1, 16, 17); }), "row's 16"));
}

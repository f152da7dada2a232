// ReLU squared's kernels against the CPU's functions, bit for bit: each result is rounded once.
#include "llmc/cuda/relu_squared.cuh"
#include "llmc/cpu/relu_squared.h"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same

TEMPLATE_TEST_CASE("relu_squared's kernels agree with the CPU", "[relu_squared]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto n = size_t(GENERATE(8, 2048, 5000));
    const Floats inp = rounded<T>(randn(n, 1, 3)), dout = rounded<T>(randn(n, 2));
    Cpu cpu;
    Floats out(n), dinp(n);
    relu_squared_forward(cpu, out.data(), inp.data(), int64_t(n));
    relu_squared_backward(cpu, dinp.data(), dout.data(), inp.data(), int64_t(n));

    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp), d_dout(cuda, dout);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_out(cuda, n), d_dinp(cuda, n), d_in_place(cuda, dout);
        relu_squared_forward(cuda, d_out.data, d_inp.data, int64_t(n));
        relu_squared_backward(cuda, d_dinp.data, d_dout.data, d_inp.data, int64_t(n));
        relu_squared_backward(cuda, d_in_place.data, d_in_place.data, d_inp.data, int64_t(n));
        return std::vector{d_out.get(), d_dinp.get(), d_in_place.get()};
    });
    check_equal("out", got[0], rounded<T>(out));
    check_equal("dinp", got[1], rounded<T>(dinp));
    check_equal("dinp in place of dout", got[2], got[1]);
}

TEMPLATE_TEST_CASE("relu_squared's kernels hand a NaN on", "[relu_squared]" ON_DEVICE, float, bf16) {
    using T = TestType;
    Floats inp(8, 2);
    inp[3] = std::nanf("");
    Cuda cuda;
    const OnDevice<T> d_inp(cuda, rounded<T>(inp)), d_dout(cuda, Floats(8, 1));
    OnDevice<T> d_out(cuda, 8), d_dinp(cuda, 8);
    relu_squared_forward(cuda, d_out.data, d_inp.data, 8);
    relu_squared_backward(cuda, d_dinp.data, d_dout.data, d_inp.data, 8);
    for (const Floats& x : {d_out.get(), d_dinp.get()}) CHECK((std::isnan(x[3]) && count_not_finite(x) == 1));
}

TEST_CASE("relu_squared's kernels refuse sizes that are not a multiple of 16 bytes", "[relu_squared]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 12);
    const std::string want = "2: relu_squared of 12 elements: they must be a multiple of 8, 16 bytes";
    CHECK(error_of([&] { relu_squared_forward(cuda, x.data, x.data, 12); }) == want);
    CHECK(error_of([&] { relu_squared_backward(cuda, x.data, x.data, x.data, 12); }) == want);
}

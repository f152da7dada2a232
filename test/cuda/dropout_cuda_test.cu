// Dropout's kernel against the CPU's function, bit for bit: each result is rounded once.
#include "llmc/cuda/dropout.cuh"
#include "llmc/cpu/dropout.h"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same

TEMPLATE_TEST_CASE("dropout's kernel agrees with the CPU", "[dropout]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto n = size_t(GENERATE(8, 2048, 5000));
    const uint64_t first = GENERATE(uint64_t(0), uint64_t(40), uint64_t(1) << 35);
    const double p = GENERATE(0., 0.2, 0.9);
    const DropoutMask mask = dropout_mask(p, dropout_key(3, 4, 5), first);
    const Floats inp = rounded<T>(randn(n, 1, 3));
    Cpu cpu;
    Floats out(n);
    dropout(cpu, out.data(), inp.data(), mask, int64_t(n));

    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_out(cuda, n), d_in_place(cuda, inp);
        dropout(cuda, d_out.data, d_inp.data, mask, int64_t(n));
        dropout(cuda, d_in_place.data, d_in_place.data, mask, int64_t(n));
        return std::vector{d_out.get(), d_in_place.get()};
    });
    check_equal("out", got[0], rounded<T>(out));
    check_equal("out in place of inp", got[1], got[0]);
}

TEMPLATE_TEST_CASE("dropout's kernel hands a NaN on", "[dropout]" ON_DEVICE, float, bf16) {
    using T = TestType;
    Cuda cuda;
    const OnDevice<T> inp(cuda, Floats(64, std::nanf("")));
    OnDevice<T> out(cuda, 64);
    dropout(cuda, out.data, inp.data, dropout_mask(0.5, 1, 0), 64);
    CHECK(count_not_finite(out.get()) == 64);
}

TEST_CASE("dropout's kernel refuses what is no multiple of 16 bytes", "[dropout]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 16);
    CHECK(error_of([&] { dropout(cuda, x.data, x.data, dropout_mask(0.5, 1, 0), 12); }) ==
          "2: dropout of 12 elements from 0 on: both must be multiples of 8, 16 bytes");
    CHECK(error_of([&] { dropout(cuda, x.data, x.data, dropout_mask(0.5, 1, 4), 16); }) ==
          "2: dropout of 16 elements from 4 on: both must be multiples of 8, 16 bytes");
}

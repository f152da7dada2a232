// RMSNorm's kernels against the CPU's functions, with and without a gain.
#include "llmc/cuda/rmsnorm.cuh"
#include "llmc/cpu/rmsnorm.h"
#include "test/codes_of_norm.h"  // check_codes_of_norm
#include "test/cuda_testing.h"   // OnDevice, rounded, twice_the_same

constexpr float kEps = 1e-5f;

// A row of fewer elements than a warp's, one that ends inside a warp's step, GPT-2's, two packs a thread, and so many
// rows that a block of backward goes round several times.
template <class T>
std::pair<int64_t, int64_t> rms_shape() {
    const int P = Pack<T>::size;
    const auto [N, C] =
        GENERATE_COPY(table<int, int>({{1, 8}, {7, 264}, {33, 768}, {5, 1600}, {3, 600 * P}, {90, 300 * P}}));
    return {N, C};
}

// What is stored in bf16 is off by half a unit; f32 by the sums of squares, in other orders here and on the CPU: at
// most C / 32 roundings of half a unit a lane there and C / 16 here, halved by the root, and a few on the way.
template <class T>
double tolerance(int64_t C) {
    return (double(C) / 16 / 2 + 4) * kEpsF32 + (std::is_same_v<T, bf16> ? kEpsBf16 / 2 : 0);
}

TEMPLATE_TEST_CASE("rmsnorm_forward agrees with the CPU", "[rmsnorm]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [N, C] = rms_shape<T>();
    const bool gain = GENERATE(true, false);
    INFO(N << " x " << C << (gain ? "" : " without a gain"));
    const auto n = size_t(N * C), rows = size_t(N), columns = size_t(C);
    const Floats inp1 = rounded<T>(randn(n, 1)), inp2 = rounded<T>(randn(n, 2, 3));
    const Floats weight = rounded<T>(randn(columns, 3));
    const float* cpu_weight = gain ? weight.data() : nullptr;

    Cpu cpu;
    Floats residual(n), out(n), rstd(rows), fused_out(n), fused_rstd(rows);
    rmsnorm_forward(cpu, out.data(), rstd.data(), inp1.data(), cpu_weight, N, C, kEps);
    for (size_t i = 0; i < n; i++) residual[i] = to_float(rounded_value<T>(inp1[i] + inp2[i]));
    rmsnorm_forward(cpu, fused_out.data(), fused_rstd.data(), residual.data(), cpu_weight, N, C, kEps);

    Cuda cuda;
    const OnDevice<T> d_inp1(cuda, inp1), d_inp2(cuda, inp2), d_weight(cuda, weight);
    const T* cuda_weight = gain ? d_weight.data : nullptr;
    const auto got = twice_the_same([&] {
        OnDevice<T> d_out(cuda, n), d_residual(cuda, n), d_fused(cuda, n);
        OnDevice<float> d_rstd(cuda, rows), d_fused_rstd(cuda, rows);
        rmsnorm_forward(cuda, d_out.data, d_rstd.data, d_inp1.data, cuda_weight, N, C, kEps);
        residual_rmsnorm_forward(cuda, d_residual.data, d_fused.data, d_fused_rstd.data, d_inp1.data, d_inp2.data,
                                 cuda_weight, N, C, kEps);
        return std::vector{d_out.get(), d_rstd.get(), d_residual.get(), d_fused.get(), d_fused_rstd.get()};
    });
    check_relative("out", got[0], out, tolerance<T>(C));
    check_relative("rstd", got[1], rstd, tolerance<float>(C));
    check_equal("residual", got[2], residual);
    check_relative("out after the residual", got[3], fused_out, tolerance<T>(C));
    check_relative("rstd after the residual", got[4], fused_rstd, tolerance<float>(C));
}

// Blocks of two units of rows, the last of which lacks one, blocks of one unit, and rows too long for any block.
TEMPLATE_TEST_CASE("rmsnorm_forward's codes are those that quantize makes of its output", "[rmsnorm]" ON_DEVICE, float,
                   bf16) {
    using T = TestType;
    const int P = Pack<T>::size;
    const auto [N, C] = GENERATE_COPY(table<int, int>({{48, 144}, {16, 240 * P}, {16, 912 * P}}));
    Cuda cuda;
    CHECK(codes_rows<T>(cuda, C) == (C == 144 ? 32 : C == 240 * P ? 16 : 0));
    const auto n = size_t(N * C);
    // The largest magnitude of the codes of `first` is one of warp 1's last row; those of the sum have a row of NaN.
    Floats first = rounded<T>(randn(n, 1)), second = rounded<T>(randn(n, 2)), gains = rounded<T>(randn(size_t(C), 3));
    first[size_t((N == 48 ? 17 : 1) * C)] = 1000, gains[0] = 3;
    second[n / 2] = std::numeric_limits<float>::infinity();
    const OnDevice<T> inp1(cuda, first), inp2(cuda, second), weight(cuda, gains);
    for (const bool has_residual : {false, true}) {
        INFO(N << " x " << C << (has_residual ? " after the residual" : ""));
        check_codes_of_norm<T>(cuda, N, C, [&](T* residual, const GemmInput<T>& out, float*, float* rstd) {
            if (has_residual)
                residual_rmsnorm_forward(cuda, residual, out, rstd, inp1.data, inp2.data, weight.data, N, C, kEps);
            else
                rmsnorm_forward(cuda, out, rstd, inp1.data, nullptr, N, C, kEps);
        });
    }
}

TEMPLATE_TEST_CASE("rmsnorm_backward agrees with the CPU", "[rmsnorm]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [N, C] = rms_shape<T>();
    const bool gain = GENERATE(true, false);
    const Write write = GENERATE(Write::add, Write::set);
    INFO(N << " x " << C << (gain ? "" : " without a gain")
           << (write == Write::add ? ", added to dinp" : ", dinp overwritten"));
    const auto n = size_t(N * C), rows = size_t(N), columns = size_t(C);
    const Floats inp = rounded<T>(randn(n, 1)), weight = rounded<T>(randn(columns, 2));
    const Floats dout = rounded<T>(randn(n, 3)), dinp = rounded<T>(randn(n, 4)), dweight = randn(columns, 5);
    const float* cpu_weight = gain ? weight.data() : nullptr;

    Cpu cpu;
    Floats out(n), rstd(rows), want_dinp = dinp, want_dweight = dweight;
    rmsnorm_forward(cpu, out.data(), rstd.data(), inp.data(), cpu_weight, N, C, kEps);
    rmsnorm_backward(cpu, want_dinp.data(), gain ? want_dweight.data() : nullptr, dout.data(), inp.data(), cpu_weight,
                     rstd.data(), N, C, write);

    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp), d_weight(cuda, weight), d_dout(cuda, dout);
    const OnDevice<float> d_rstd(cuda, rstd);
    const auto got = twice_the_same([&] {
        // NaN, which Write::set does not read
        OnDevice<T> d_dinp = write == Write::set ? OnDevice<T>(cuda, n) : OnDevice<T>(cuda, dinp);
        OnDevice<float> d_dweight(cuda, dweight);
        rmsnorm_backward(cuda, d_dinp.data, gain ? d_dweight.data : nullptr, d_dout.data, d_inp.data,
                         gain ? d_weight.data : nullptr, d_rstd.data, N, C, write);
        return std::vector{d_dinp.get(), d_dweight.get()};
    });
    check_close("dinp", got[0], want_dinp, tolerance<T>(C));
    // sums of N terms in f32 on both sides, in other orders: half a unit each
    check_close("dweight", got[1], want_dweight, (double(N) / 2 + 4) * kEpsF32);
}

TEMPLATE_TEST_CASE("rmsnorm's kernels: a NaN spoils its row and no other", "[rmsnorm]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const int64_t N = 6, C = 72, row = 4;
    const auto n = size_t(N * C), columns = size_t(C);
    Floats inp = randn(n, 1);
    inp[size_t(row * C + 71)] = std::nanf("");
    Cuda cuda;
    const OnDevice<T> d_inp(cuda, rounded<T>(inp)), d_weight(cuda, Floats(columns, 1));
    OnDevice<T> d_out(cuda, n), d_dinp(cuda, Floats(n, 0));
    OnDevice<float> d_rstd(cuda, size_t(N)), d_dweight(cuda, Floats(columns, 0));
    rmsnorm_forward(cuda, d_out.data, d_rstd.data, d_inp.data, d_weight.data, N, C, kEps);
    rmsnorm_backward(cuda, d_dinp.data, d_dweight.data, d_inp.data, d_inp.data, d_weight.data, d_rstd.data, N, C);
    for (const Floats& x : {d_out.get(), d_dinp.get()}) {
        CHECK(all_nan(Floats(x.begin() + row * C, x.begin() + (row + 1) * C)));
        CHECK(count_not_finite(x) == C);
    }
    CHECK(all_nan(d_dweight.get()));
}

TEST_CASE("rmsnorm's kernels refuse rows that are not a multiple of 16 bytes", "[rmsnorm]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 12);
    OnDevice<float> y(cuda, 12);
    CHECK(error_of([&] { rmsnorm_forward(cuda, x.data, y.data, x.data, x.data, 1, 12, kEps); }) ==
          "2: rmsnorm of 12 channels: they must be a multiple of 8, 16 bytes");
    CHECK(error_of([&] { rmsnorm_backward(cuda, x.data, y.data, x.data, x.data, x.data, y.data, 1, 12); }) ==
          "2: rmsnorm of 12 channels: they must be a multiple of 8 and at most 8192");
    CHECK(contains(error_of([&] { rmsnorm_backward(cuda, x.data, y.data, x.data, x.data, nullptr, y.data, 1, 8); }),
                   "internal"));
}

// LayerNorm's kernels against the CPU's functions.
#include "llmc/cuda/layernorm.cuh"
#include "llmc/cpu/layernorm.h"
#include "test/codes_of_norm.h"  // check_codes_of_norm
#include "test/cuda_testing.h"   // OnDevice, rounded, twice_the_same

constexpr float kEps = 1e-5f;

// A row of fewer elements than a warp's, one that ends inside a warp's step, GPT-2's, two packs a thread, and so many
// rows that a block of backward takes several rounds of them.
template <class T>
std::pair<int64_t, int64_t> norm_shape() {
    const auto [N, C] =
        GENERATE(table<int, int>({{1, 8}, {7, 264}, {33, 768}, {5, 1600}, {3, 600 * int(Pack<T>::size)}, {330, 264}}));
    return {N, C};
}

// Half a unit of T for what is stored, which check_close's |want| + rms covers; and what the mean's own rounding makes
// of a normalized value, as in layernorm_test.cpp: inputs here have |mean| * rstd below 4.
template <class T>
constexpr double kTolerance = std::is_same_v<T, bf16> ? kEpsBf16 : 8 * kEpsF32;

float largest(const Floats& x) {
    float most = 0;
    for (const float value : x) most = std::max(most, std::fabs(value));
    return most;
}

TEMPLATE_TEST_CASE("layernorm_forward agrees with the CPU", "[layernorm]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [N, C] = norm_shape<T>();
    INFO(N << " x " << C);
    const auto n = size_t(N * C), rows = size_t(N), columns = size_t(C);
    Floats inp1 = rounded<T>(randn(n, 1)), inp2 = rounded<T>(randn(n, 2, 3));
    for (float& x : inp1) x = to_float(rounded_value<T>(x + 2));  // a mean that is not zero
    const Floats weight = rounded<T>(randn(columns, 3)), bias = rounded<T>(randn(columns, 4));

    Cpu cpu;
    Floats residual(n), out(n), mean(rows), rstd(rows), fused_out(n), fused_mean(rows), fused_rstd(rows);
    layernorm_forward(cpu, out.data(), mean.data(), rstd.data(), inp1.data(), weight.data(), bias.data(), N, C, kEps);
    for (size_t i = 0; i < n; i++) residual[i] = to_float(rounded_value<T>(inp1[i] + inp2[i]));
    layernorm_forward(cpu, fused_out.data(), fused_mean.data(), fused_rstd.data(), residual.data(), weight.data(),
                      bias.data(), N, C, kEps);

    Cuda cuda;
    const OnDevice<T> d_inp1(cuda, inp1), d_inp2(cuda, inp2), d_weight(cuda, weight), d_bias(cuda, bias);
    OnDevice<float> d_amax(cuda, 2);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_out(cuda, n), d_residual(cuda, n), d_fused(cuda, n);
        OnDevice<float> d_mean(cuda, rows), d_rstd(cuda, rows), d_fused_mean(cuda, rows), d_fused_rstd(cuda, rows);
        layernorm_forward(cuda, {d_out.data, d_amax.data}, d_mean.data, d_rstd.data, d_inp1.data, d_weight.data,
                          d_bias.data, N, C, kEps);
        residual_layernorm_forward(cuda, d_residual.data, {d_fused.data, d_amax.data + 1}, d_fused_mean.data,
                                   d_fused_rstd.data, d_inp1.data, d_inp2.data, d_weight.data, d_bias.data, N, C, kEps);
        return std::vector{d_out.get(),   d_mean.get(),       d_rstd.get(),      d_residual.get(),
                           d_fused.get(), d_fused_mean.get(), d_fused_rstd.get()};
    });
    check_equal("amax", d_amax.get(), {largest(got[0]), largest(got[4])});
    check_close("out", got[0], out, kTolerance<T>);
    check_close("mean", got[1], mean, 4 * kEpsF32);
    check_close("rstd", got[2], rstd, 4 * kEpsF32);
    check_equal("residual", got[3], residual);
    check_close("out after the residual", got[4], fused_out, kTolerance<T>);
    check_close("mean after the residual", got[5], fused_mean, 4 * kEpsF32);
    check_close("rstd after the residual", got[6], fused_rstd, 4 * kEpsF32);
}

// Blocks of two units of rows, the last of which lacks one, blocks of one unit, and rows too long for any block.
TEMPLATE_TEST_CASE("layernorm_forward's codes are those that quantize makes of its output", "[layernorm]" ON_DEVICE,
                   float, bf16) {
    using T = TestType;
    const int P = Pack<T>::size;
    const auto [N, C] = GENERATE_COPY(table<int, int>({{48, 144}, {16, 240 * P}, {16, 912 * P}}));
    Cuda cuda;
    CHECK(codes_rows<T>(cuda, C) == (C == 144 ? 32 : C == 240 * P ? 16 : 0));
    const auto n = size_t(N * C);
    // The largest magnitude of the codes of `first` is one of warp 1's last row; those of the sum have a row of NaN and
    // a column that is infinite.
    Floats first = rounded<T>(randn(n, 1)), second = rounded<T>(randn(n, 2)), gains = rounded<T>(randn(size_t(C), 3));
    first[size_t((N == 48 ? 17 : 1) * C)] = 1000, gains[0] = 3;
    second[n / 2] = std::numeric_limits<float>::infinity();
    const Floats shifts = rounded<T>(randn(size_t(C), 4));
    Floats with_infinity = shifts;
    with_infinity[5] = std::numeric_limits<float>::infinity();
    const OnDevice<T> infinite_bias(cuda, with_infinity);
    const OnDevice<T> inp1(cuda, first), inp2(cuda, second), weight(cuda, gains), bias(cuda, shifts);
    for (const bool has_residual : {false, true}) {
        INFO(N << " x " << C << (has_residual ? " after the residual" : ""));
        check_codes_of_norm<T>(cuda, N, C, [&](T* residual, const GemmInput<T>& out, float* mean, float* rstd) {
            if (has_residual)
                residual_layernorm_forward(cuda, residual, out, mean, rstd, inp1.data, inp2.data, weight.data,
                                           infinite_bias.data, N, C, kEps);
            else
                layernorm_forward(cuda, out, mean, rstd, inp1.data, weight.data, bias.data, N, C, kEps);
        });
    }
}

TEMPLATE_TEST_CASE("layernorm_backward agrees with the CPU", "[layernorm]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [N, C] = norm_shape<T>();
    INFO(N << " x " << C);
    const auto n = size_t(N * C), rows = size_t(N), columns = size_t(C);
    const Floats inp = rounded<T>(randn(n, 1)), weight = rounded<T>(randn(columns, 2)), bias(columns, 0);
    const Floats dout = rounded<T>(randn(n, 3)), dinp = rounded<T>(randn(n, 4));
    const Floats dweight = randn(columns, 5), dbias = randn(columns, 6), sums = randn(columns, 7);
    const Write write = GENERATE(Write::add, Write::set);
    const bool with_sums = GENERATE(true, false), with_amax = !with_sums || write == Write::add;
    INFO((write == Write::add ? "added to dinp" : "dinp overwritten") << (with_sums ? ", with sums" : ""));

    Cpu cpu;
    Floats out(n), mean(rows), rstd(rows), want_dinp = dinp, want_dweight = dweight, want_dbias = dbias;
    Floats want_sums = sums;
    if (write == Write::set) std::fill(want_dinp.begin(), want_dinp.end(), 0.f);
    layernorm_forward(cpu, out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(), N, C, kEps);
    layernorm_backward(cpu, want_dinp.data(), want_dweight.data(), want_dbias.data(), dout.data(), inp.data(),
                       weight.data(), mean.data(), rstd.data(), N, C, write);

    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp), d_weight(cuda, weight), d_dout(cuda, dout);
    const OnDevice<float> d_mean(cuda, mean), d_rstd(cuda, rstd);
    OnDevice<float> d_amax(cuda, 1);
    const auto got = twice_the_same([&] {
        // NaN, which Write::set does not read
        OnDevice<T> d_dinp = write == Write::set ? OnDevice<T>(cuda, n) : OnDevice<T>(cuda, dinp);
        OnDevice<float> d_dweight(cuda, dweight), d_dbias(cuda, dbias), d_sums(cuda, sums);
        layernorm_backward(cuda, {d_dinp.data, with_amax ? d_amax.data : nullptr, with_sums ? d_sums.data : nullptr},
                           d_dweight.data, d_dbias.data, d_dout.data, d_inp.data, d_weight.data, d_mean.data,
                           d_rstd.data, N, C, write);
        return std::vector{d_dinp.get(), d_dweight.get(), d_dbias.get(), d_sums.get()};
    });
    check_close("dinp", got[0], want_dinp, kTolerance<T>);
    if (with_amax) check_equal("amax", d_amax.get(), {largest(got[0])});
    // sums of N terms in f32 on both sides, in other orders
    check_close("dweight", got[1], want_dweight, 8 * kEpsF32);
    check_close("dbias", got[2], want_dbias, 8 * kEpsF32);
    // Of what this device has stored: two that round differently would differ by more.
    if (with_sums) add_column_sums(cpu, want_sums.data(), got[0].data(), N, C);
    check_close("sums of dinp", got[3], want_sums, with_sums ? 8 * kEpsF32 : 0);
}

TEST_CASE("layernorm's kernels refuse rows that are not a multiple of 16 bytes", "[layernorm]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 12);
    OnDevice<float> y(cuda, 12);
    CHECK(error_of([&] { layernorm_forward(cuda, x.data, y.data, y.data, x.data, x.data, x.data, 1, 12, kEps); }) ==
          "2: layernorm of 12 channels: they must be a multiple of 8, 16 bytes");
    CHECK(error_of([&] {
              layernorm_backward(cuda, x.data, y.data, y.data, x.data, x.data, x.data, y.data, y.data, 1, 12);
          }) == "2: layernorm of 12 channels: they must be a multiple of 8 and at most 8192");
}

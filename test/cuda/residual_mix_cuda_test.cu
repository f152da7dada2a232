// The residual mix's kernels against the CPU's functions: the same bits, except for sums over all elements.
#include "llmc/cuda/residual_mix.cuh"
#include "llmc/cpu/residual_mix.h"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same

// One pack, part of a warp, several blocks of which the last one is not full.
template <class T>
int64_t mix_size() {
    return int64_t(GENERATE(1, 13, 2 * kMixPacks * kMixThreads + 700)) * Pack<T>::size;
}

TEMPLATE_TEST_CASE("residual_mix agrees with the CPU", "[residual_mix]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const int64_t n = mix_size<T>();
    const auto [has_a, add, in_place, sign] = GENERATE(table<bool, bool, bool, float>(
        {{true, false, false, 1.f}, {true, true, true, -1.f}, {false, true, true, -1.f}, {false, false, false, 1.f}}));
    INFO(n << " elements, " << (has_a ? "with a, " : "") << (add ? "adding to dinp0, " : "") << sign);
    const auto size = size_t(n);
    const Floats inp = rounded<T>(randn(size, 1)), inp0 = rounded<T>(randn(size, 2)), dout = rounded<T>(randn(size, 3));
    const Floats start = rounded<T>(randn(size, 4)), a = rounded<T>({1.07f}), b = rounded<T>({0.23f});

    Cpu cpu;
    Floats out(size), dinp(size), dinp0 = start, da{0.5f}, db{-0.25f};
    const float* a_or_null = has_a ? a.data() : nullptr;
    residual_mix_forward(cpu, out.data(), inp.data(), inp0.data(), a_or_null, b.data(), sign, n);
    residual_mix_backward(cpu, dinp.data(), dinp0.data(), has_a ? da.data() : nullptr, db.data(), dout.data(),
                          inp.data(), inp0.data(), a_or_null, b.data(), sign, add, n);

    Cuda cuda;
    const OnDevice<T> d_inp0(cuda, inp0), d_a(cuda, a), d_b(cuda, b);
    const T* d_a_or_null = has_a ? d_a.data : nullptr;
    const auto got = twice_the_same([&] {
        OnDevice<T> d_inp(cuda, inp), d_dout(cuda, dout), d_out(cuda, size), d_dinp(cuda, size), d_dinp0(cuda, size);
        if (add) d_dinp0.set(OnDevice<T>(cuda, start).values());
        OnDevice<float> d_da(cuda, Floats{0.5f}), d_db(cuda, Floats{-0.25f});
        OnDevice<T>& dinp_at = in_place ? d_dout : d_dinp;
        residual_mix_backward(cuda, dinp_at.data, d_dinp0.data, has_a ? d_da.data : nullptr, d_db.data, d_dout.data,
                              has_a ? d_inp.data : nullptr, d_inp0.data, d_a_or_null, d_b.data, sign, add, n);
        OnDevice<T>& out_at = in_place ? d_inp : d_out;
        residual_mix_forward(cuda, out_at.data, d_inp.data, d_inp0.data, d_a_or_null, d_b.data, sign, n);
        return std::vector{out_at.get(), dinp_at.get(), d_dinp0.get(), d_da.get(), d_db.get()};
    });
    check_equal("out", got[0], rounded<T>(out));
    check_equal("dinp", got[1], rounded<T>(dinp));
    check_equal("dinp0", got[2], rounded<T>(dinp0));
    // Half a unit of all products for each addition that one goes through: in a lane of the CPU's kMixChunk / 16 and
    // its tree 4, in a thread at most 32 and a block's tree 10; then each rounds the sum, and adds it.
    double products = 0, products0 = 0;
    for (size_t i = 0; i < size; i++) {
        products += std::fabs(double(dout[i]) * inp[i]);
        products0 += std::fabs(double(dout[i]) * inp0[i]);
    }
    const double units = (double(std::min(n, kMixChunk)) / 16 + 4 + 32 + 10 + 4) / 2 * kEpsF32;
    check_within("da", got[3], da, {has_a ? units * (products + 1) : 0});
    check_within("db", got[4], db, {units * (products0 + 1)});
}

TEMPLATE_TEST_CASE("residual_mix_backward: long sums of whole numbers are exact", "[residual_mix]" ON_DEVICE, float,
                   bf16) {
    using T = TestType;
    const int64_t n = 3 * kMixPacks * kMixThreads * Pack<T>::size + Pack<T>::size;
    const auto size = size_t(n);
    const Floats inp = whole_numbers(n, 1, 3), inp0 = whole_numbers(n, 2, 3), dout = whole_numbers(n, 3, 3);
    double da = 100, db = 200;
    for (size_t i = 0; i < size; i++) da += dout[i] * inp[i], db -= dout[i] * inp0[i];
    Cuda cuda;
    const OnDevice<T> d_inp(cuda, inp), d_inp0(cuda, inp0), d_dout(cuda, dout), a(cuda, Floats{2}), b(cuda, Floats{3});
    OnDevice<T> dinp(cuda, size), dinp0(cuda, size);
    OnDevice<float> d_da(cuda, Floats{100}), d_db(cuda, Floats{200});
    residual_mix_backward(cuda, dinp.data, dinp0.data, d_da.data, d_db.data, d_dout.data, d_inp.data, d_inp0.data,
                          a.data, b.data, -1, false, n);
    check_equal("da", d_da.get(), {float(da)});
    check_equal("db", d_db.get(), {float(db)});
}

TEMPLATE_TEST_CASE("residual_mix_rmsnorm_forward is its three ops, bit for bit", "[residual_mix]" ON_DEVICE, float,
                   bf16) {
    using T = TestType;
    const auto [N, C] = GENERATE(table<int, int>({{1, 8}, {7, 264}, {5, 1536}}));
    const bool has_a = GENERATE(true, false);
    INFO(N << " x " << C);
    const auto n = size_t(N * C);
    const Floats inp1 = rounded<T>(randn(n, 1)), inp2 = rounded<T>(randn(n, 2));
    Floats sum(n);
    for (size_t i = 0; i < n; i++) sum[i] = to_float(rounded_value<T>(inp1[i] + inp2[i]));
    Cuda cuda;
    const OnDevice<T> d_inp1(cuda, inp1), d_inp2(cuda, inp2), d_inp0(cuda, randn(n, 3)), d_sum(cuda, sum);
    const OnDevice<T> a(cuda, Floats{1.125f}), b(cuda, Floats{0.3f});
    const T* a_or_null = has_a ? a.data : nullptr;
    OnDevice<T> residual(cuda, n), mixed(cuda, n), out(cuda, n), want_mixed(cuda, n), want_out(cuda, n);
    OnDevice<float> rstd(cuda, size_t(N)), want_rstd(cuda, size_t(N));
    residual_mix_rmsnorm_forward(cuda, residual.data, mixed.data, out.data, rstd.data, d_inp1.data, d_inp2.data,
                                 d_inp0.data, a_or_null, b.data, N, C, 0x1p-23f);
    residual_mix_forward(cuda, want_mixed.data, d_sum.data, d_inp0.data, a_or_null, b.data, 1, int64_t(n));
    rmsnorm_forward(cuda, want_out.data, want_rstd.data, want_mixed.data, nullptr, N, C, 0x1p-23f);
    check_equal("residual", residual.get(), sum);
    check_equal("mixed", mixed.get(), want_mixed.get());
    check_equal("out", out.get(), want_out.get());
    check_equal("rstd", rstd.get(), want_rstd.get());
}

TEST_CASE("residual_mix's kernels refuse sizes that are not a multiple of 16 bytes", "[residual_mix]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 12);
    OnDevice<float> y(cuda, 12);
    CHECK(error_of([&] { residual_mix_forward(cuda, x.data, x.data, x.data, x.data, x.data, 1, 12); }) ==
          "2: residual_mix_forward of 12 values: they must be a multiple of 8, 16 bytes");
    const auto backward = [&](float* da, int64_t n) {
        residual_mix_backward(cuda, x.data, x.data, da, y.data, x.data, x.data, x.data, x.data, x.data, 1, false, n);
    };
    CHECK(error_of([&] { backward(y.data, 12); }) ==
          "2: residual_mix_backward of 12 values: they must be a multiple of 8, 16 bytes");
    CHECK(contains(error_of([&] { backward(nullptr, 8); }), "internal"));
    CHECK(contains(error_of([&] {
                       residual_mix_rmsnorm_forward(cuda, x.data, x.data, x.data, y.data, x.data, x.data, x.data,
                                                    x.data, x.data, 1, 12, 1);
                   }),
                   "multiple of 8"));
}

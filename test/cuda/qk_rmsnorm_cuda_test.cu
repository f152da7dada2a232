// The kernels of queries' and keys' RMSNorm against the CPU's functions.
#include "llmc/cuda/qk_rmsnorm.cuh"
#include "llmc/cpu/qk_rmsnorm.h"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same

constexpr float kEps = 1e-6f;

// Heads of one lane, of three lanes in a group of four, of half a warp, of two packs a lane in fp32; so many tokens
// that a block of backward goes round several times.
template <class T>
AttentionShape qk_shape() {
    const int P = Pack<T>::size;
    const auto [B, T_, NH, NKV, HS] = GENERATE_COPY(table<int, int, int, int, int>({{1, 1, 1, 1, P},
                                                                                    {1, 2, 2, 1, 2 * P},
                                                                                    {2, 5, 3, 1, 3 * P},
                                                                                    {2, 4, 2, 2, 7 * P},
                                                                                    {1, 3, 6, 6, 16 * P},
                                                                                    {1, 2, 2, 1, 24 * P},
                                                                                    {1, 2, 5, 2, 248},
                                                                                    {3, 40, 9, 3, 256}}));
    return {B, T_, NH, NKV, HS};
}

TEMPLATE_TEST_CASE("qk_rmsnorm's kernels agree with the CPU", "[qk_rmsnorm]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const AttentionShape s = qk_shape<T>();
    INFO(s.B << " x " << s.T << ", " << s.NH << " + " << s.NKV << " heads of " << s.HS);
    const size_t n = size_t(s.B * s.T * s.row()), rows = size_t(s.B * s.T * (s.NH + s.NKV)), HS = size_t(s.HS);
    const Floats qkv = rounded<T>(randn(n, 1)), dout = rounded<T>(randn(n, 2));
    const Floats q_weight = rounded<T>(randn(HS, 3)), k_weight = rounded<T>(randn(HS, 4));
    const Floats dq = randn(HS, 5), dk = randn(HS, 6);
    Floats want = qkv, saved(rows * HS), rstd(rows), want_dqkv = dout, want_dq = dq, want_dk = dk;
    Cpu cpu;
    qk_rmsnorm_forward(cpu, want.data(), saved.data(), rstd.data(), q_weight.data(), k_weight.data(), s, kEps);
    qk_rmsnorm_backward(cpu, want_dqkv.data(), want_dq.data(), want_dk.data(), saved.data(), rstd.data(),
                        q_weight.data(), k_weight.data(), s);

    Cuda cuda;
    const OnDevice<T> d_q_weight(cuda, q_weight), d_k_weight(cuda, k_weight), d_want_saved(cuda, saved);
    const OnDevice<float> d_want_rstd(cuda, rstd);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_qkv(cuda, qkv), d_saved(cuda, rows * HS), d_dqkv(cuda, dout);
        OnDevice<float> d_rstd(cuda, rows), d_dq(cuda, dq), d_dk(cuda, dk);
        qk_rmsnorm_forward(cuda, d_qkv.data, d_saved.data, d_rstd.data, d_q_weight.data, d_k_weight.data, s, kEps);
        qk_rmsnorm_backward(cuda, d_dqkv.data, d_dq.data, d_dk.data, d_want_saved.data, d_want_rstd.data,
                            d_q_weight.data, d_k_weight.data, s);
        return std::vector{d_qkv.get(), d_saved.get(), d_rstd.get(), d_dqkv.get(), d_dq.get(), d_dk.get()};
    });
    // What is stored in bf16 is off by half a unit; f32 by the sums of squares, in other orders on both sides: at most
    // HS / 16 roundings of half a unit a lane, halved by the root, and a few on the way.
    const double f32 = (double(s.HS) / 32 + 8) * kEpsF32, stored = std::is_same_v<T, bf16> ? kEpsBf16 / 2 : 0;
    check_close("qkv", got[0], want, f32 + stored);
    check_equal("saved", got[1], saved);
    check_close("rstd", got[2], rstd, f32);
    check_close("dqkv", got[3], want_dqkv, f32 + stored);
    // sums of as many terms as heads in f32 on both sides, in other orders: half a unit each
    const double sums = (double(rows) / 2 + 4) * kEpsF32;
    check_close("dq_weight", got[4], want_dq, sums);
    check_close("dk_weight", got[5], want_dk, sums);
}

TEMPLATE_TEST_CASE("qk_rmsnorm's kernels: a NaN spoils its head and no other", "[qk_rmsnorm]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const AttentionShape s{1, 2, 3, 1, 48};
    const size_t n = size_t(s.T * s.row()), rows = size_t(s.T * (s.NH + s.NKV));
    const int64_t at = s.row() + s.HS;  // the second query head of the second token
    Floats qkv = randn(n, 1);
    qkv[size_t(at + 47)] = std::nanf("");
    Cuda cuda;
    const OnDevice<T> gain(cuda, Floats(48, 1));
    OnDevice<T> d_qkv(cuda, rounded<T>(qkv)), d_saved(cuda, rows * 48), d_dqkv(cuda, rounded<T>(randn(n, 2)));
    OnDevice<float> d_rstd(cuda, rows), d_dq(cuda, Floats(48, 0)), d_dk(cuda, Floats(48, 0));
    qk_rmsnorm_forward(cuda, d_qkv.data, d_saved.data, d_rstd.data, gain.data, gain.data, s, kEps);
    qk_rmsnorm_backward(cuda, d_dqkv.data, d_dq.data, d_dk.data, d_saved.data, d_rstd.data, gain.data, gain.data, s);
    for (const Floats& x : {d_qkv.get(), d_dqkv.get()}) {
        CHECK(all_nan(Floats(x.begin() + at, x.begin() + at + s.HS)));
        CHECK(count_not_finite(x) == s.HS);
    }
    CHECK(all_nan(d_dq.get()));
    CHECK(count_not_finite(d_dk.get()) == 0);
}

TEST_CASE("qk_rmsnorm's kernels refuse heads that are not a multiple of 16 bytes", "[qk_rmsnorm]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 64);
    OnDevice<float> y(cuda, 64);
    CHECK(contains(
        error_of([&] { qk_rmsnorm_forward(cuda, x.data, x.data, y.data, x.data, x.data, {1, 1, 1, 1, 12}, kEps); }),
        "2: heads of 12 channels: on a GPU attention in bf16 takes multiples of 8 up to 256"));
}

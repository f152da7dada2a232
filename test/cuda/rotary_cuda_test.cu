// The kernels of rotary embeddings and QK-norm against the CPU's functions.
#include "llmc/cuda/rotary.cuh"
#include "llmc/cpu/rotary.h"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same

// Heads of one lane, of five lanes in a group of eight, of a whole warp; head counts that leave part of a warp without
// one; more heads than a block of 256 threads takes at a time; heads whose second half is not aligned in bf16.
template <class T>
AttentionShape rotary_shape() {
    const int P = Pack<T>::size;
    const auto [B, T_, NH, NKV, HS] = GENERATE_COPY(table<int, int, int, int, int>({{1, 1, 1, 1, 2 * P},
                                                                                    {2, 3, 4, 2, 4 * P},
                                                                                    {2, 5, 3, 1, 10 * P},
                                                                                    {2, 3, 3, 1, 24},
                                                                                    {1, 2, 9, 2, 248},
                                                                                    {1, 3, 6, 6, 16 * P},
                                                                                    {1, 2, 10, 1, 32 * P},
                                                                                    {1, 2, 9, 8, 256}}));
    return {B, T_, NH, NKV, HS};
}

TEMPLATE_TEST_CASE("rotary's kernels agree with the CPU", "[rotary]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const AttentionShape s = rotary_shape<T>();
    RotaryOptions options{.base = 1e5, .clockwise = true, .qk_norm = GENERATE(false, true), .scale = 1.25f};
    INFO(s.B << " x " << s.T << ", " << s.NH << " + " << s.NKV << " heads of " << s.HS
             << (options.qk_norm ? ", normed" : ""));
    const size_t n = size_t(s.B * s.T * s.row()), rows = size_t(s.B * s.T * (s.NH + s.NKV));
    const Floats table = rotary_table(s.T, s.HS, options);
    Floats qkv = rounded<T>(randn(n, 1)), dout = rounded<T>(randn(n, 2));
    Floats rstd(rows), want = qkv, want_dqkv = dout;
    float* cpu_rstd = options.qk_norm ? rstd.data() : nullptr;
    Cpu cpu;
    rotary_forward(cpu, want.data(), cpu_rstd, table.data(), s, options);
    const Floats out = rounded<T>(want);  // what backward is given on both sides
    rotary_backward(cpu, want_dqkv.data(), out.data(), cpu_rstd, table.data(), s, options);

    Cuda cuda;
    const OnDevice<float> d_table(cuda, table), d_want_rstd(cuda, rstd);
    const OnDevice<T> d_want(cuda, out);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_qkv(cuda, qkv), d_dqkv(cuda, dout);
        OnDevice<float> d_rstd(cuda, Floats(rows, 0));
        rotary_forward(cuda, d_qkv.data, options.qk_norm ? d_rstd.data : nullptr, d_table.data, s, options);
        rotary_backward(cuda, d_dqkv.data, d_want.data, options.qk_norm ? d_want_rstd.data : nullptr, d_table.data, s,
                        options);
        return std::vector{d_qkv.get(), d_rstd.get(), d_dqkv.get()};
    });
    // What is stored in bf16 is off by half a unit. In f32 the sum over HS is taken in other orders: HS / 32 roundings
    // of half a unit in each of 16 or more lanes; the rest are a turn's and a norm's few on either side.
    const double f32 = (double(s.HS) / 32 + 12) * kEpsF32, stored = std::is_same_v<T, bf16> ? kEpsBf16 / 2 : 0;
    check_close("qkv", got[0], want, f32 + stored);
    check_close("rstd", got[1], rstd, f32);
    check_close("dqkv", got[2], want_dqkv, f32 + stored);
}

TEMPLATE_TEST_CASE("rotary's kernels: a NaN spoils its head and no other", "[rotary]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const AttentionShape s{1, 2, 3, 1, 48};
    const RotaryOptions options{.qk_norm = true};
    const size_t n = size_t(s.T * s.row()), rows = size_t(s.T * (s.NH + s.NKV));
    const int64_t at = s.row() + s.HS;  // the second query head of the second token
    Floats qkv = randn(n, 1);
    qkv[size_t(at + 47)] = std::nanf("");
    Cuda cuda;
    const OnDevice<float> d_table(cuda, rotary_table(s.T, s.HS, options));
    OnDevice<T> d_qkv(cuda, rounded<T>(qkv)), d_dqkv(cuda, rounded<T>(randn(n, 2)));
    OnDevice<float> d_rstd(cuda, rows);
    rotary_forward(cuda, d_qkv.data, d_rstd.data, d_table.data, s, options);
    rotary_backward(cuda, d_dqkv.data, d_qkv.data, d_rstd.data, d_table.data, s, options);
    for (const Floats& x : {d_qkv.get(), d_dqkv.get()}) {
        CHECK(all_nan(Floats(x.begin() + at, x.begin() + at + s.HS)));
        CHECK(count_not_finite(x) == s.HS);
    }
}

TEST_CASE("rotary's kernels refuse heads that they are not made for", "[rotary]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 4096);
    OnDevice<float> y(cuda, 4096);
    CHECK(error_of([&] { rotary_forward(cuda, x.data, nullptr, y.data, {1, 1, 1, 1, 20}, {}); }) ==
          "2: positions = rotary: heads of 20 channels: on a GPU they are multiples of 8 up to 256: choose --channels "
          "and --num-heads so");
    CHECK(error_of([&] { rotary_backward(cuda, x.data, x.data, nullptr, y.data, {1, 1, 1, 1, 264}, {}); }) ==
          "2: positions = rotary: heads of 264 channels: on a GPU they are multiples of 8 up to 256: choose --channels "
          "and --num-heads so");
    CHECK(contains(error_of([&] { rotary_forward(cuda, x.data, y.data, y.data, {1, 1, 1, 1, 16}, {}); }), "internal"));
}

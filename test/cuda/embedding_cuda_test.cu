// The embedding's kernels against the CPU's functions, the fused form against the kernels of the two ops, and the sort.
#include "llmc/cuda/embedding.cuh"
#include <algorithm>
#include <numeric>
#include "llmc/cpu/embedding.h"
#include "llmc/cuda/rmsnorm.cuh"  // rmsnorm_forward
#include "test/cuda_testing.h"    // OnDevice, rounded, twice_the_same

// Tokens of every kind: uniform in [0, V), half of them one token, all the same.
static Ints tokens_of(const char* kind, int64_t n, int64_t V) {
    Rng rng(uint64_t(n), Stream::tests);
    Ints tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens) {
        token = int32_t(rng.below(uint64_t(V)));
        if (kind[0] == 'h' && rng.below(2)) token = int32_t(V / 2);
        if (kind[0] == 'o') token = int32_t(V - 1);
    }
    return tokens;
}

TEST_CASE("sort_tokens is a stable sort", "[embedding]" ON_DEVICE) {
    const int64_t N = GENERATE(1, 31, 2048, 2049, 9000);
    const int64_t V = GENERATE(1, 5, 256, 50257, 1 << 24);
    const char* kind = GENERATE("uniform", "half one token", "one token");
    if (kWatched && N >= 2048 && kind[0] != 'h') return;  // half of each
    INFO(N << " tokens below " << V << ", " << kind);
    const Ints tokens = tokens_of(kind, N, V);
    Ints want(static_cast<size_t>(N));
    std::iota(want.begin(), want.end(), 0);
    std::stable_sort(want.begin(), want.end(),
                     [&](int32_t a, int32_t b) { return tokens[size_t(a)] < tokens[size_t(b)]; });

    Cuda cuda;
    const OnDevice<int32_t> d_tokens(cuda, tokens);
    OnDevice<int32_t> memory(cuda, size_t(sort_tokens_size(N)));
    const SortedTokens sorted = sort_tokens(cuda, memory.data, d_tokens.data, N);
    const Ints all = memory.values();
    const auto at = [&](const int32_t* pointer) { return all.begin() + (pointer - memory.data); };
    CHECK(std::equal(want.begin(), want.end(), at(sorted.rows)));
    bool tokens_follow = true;
    for (int64_t i = 0; i < N; i++) tokens_follow &= at(sorted.tokens)[i] == tokens[size_t(want[size_t(i)])];
    CHECK(tokens_follow);
}

TEMPLATE_TEST_CASE("embedding_forward agrees with the CPU", "[embedding]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [B, seq_len, C] = GENERATE(table<int, int, int>({{1, 1, 8}, {3, 7, 264}, {2, 16, 768}}));
    const int64_t V = 40, N = B * seq_len;
    const Ints tokens = tokens_of("uniform", N, V);
    const Floats wte = rounded<T>(randn(size_t(V * C), 1)), wpe = rounded<T>(randn(size_t(seq_len * C), 2));
    Cpu cpu;
    Floats want(size_t(N * C));
    const bool positions = GENERATE(true, false);
    embedding_forward(cpu, want.data(), tokens.data(), wte.data(), positions ? wpe.data() : nullptr, B, seq_len, C);
    Cuda cuda;
    const OnDevice<int32_t> d_tokens(cuda, tokens);
    const OnDevice<T> d_wte(cuda, wte), d_wpe(cuda, wpe);
    OnDevice<T> out(cuda, size_t(N * C));
    embedding_forward(cuda, out.data, d_tokens.data, d_wte.data, positions ? d_wpe.data : nullptr, B, seq_len, C);
    check_equal("out", out.get(), rounded<T>(want));
}

// Whole numbers: every sum is exact in any order.
TEMPLATE_TEST_CASE("embedding_backward is exact on whole numbers", "[embedding]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const auto [B, seq_len, C] = GENERATE(table<int, int, int>({{1, 1, 8}, {3, 7, 264}, {5, 64, 24}, {2, 333, 1032}}));
    const char* kind = GENERATE("uniform", "half one token", "one token");
    const int64_t V = 300, N = B * seq_len;
    INFO(B << " x " << seq_len << " x " << C << ", " << kind);
    const Ints tokens = tokens_of(kind, N, V);
    const Floats dout = whole_numbers(N * C, 1, 100);
    const Floats dwte = whole_numbers(V * C, 2, 100), dwpe = whole_numbers((seq_len + 1) * C, 3, 100);
    Cpu cpu;
    Floats want_dwte = dwte, want_dwpe = dwpe;
    embedding_backward(cpu, want_dwte.data(), want_dwpe.data(), dout.data(), tokens.data(), B, seq_len, C);
    Cuda cuda;
    const OnDevice<int32_t> d_tokens(cuda, tokens);
    const OnDevice<T> d_dout(cuda, dout);
    OnDevice<float> d_dwte(cuda, dwte), d_dwpe(cuda, dwpe);
    OnDevice<float> d_dwte_alone(cuda, dwte);
    embedding_backward(cuda, d_dwte.data, d_dwpe.data, d_dout.data, d_tokens.data, B, seq_len, C);
    embedding_backward(cuda, d_dwte_alone.data, nullptr, d_dout.data, d_tokens.data, B, seq_len, C);
    check_equal("dwte", d_dwte.get(), want_dwte);
    check_equal("dwpe", d_dwpe.get(), want_dwpe);
    check_equal("dwte without positions", d_dwte_alone.get(), want_dwte);
}

TEST_CASE("embedding_backward gives the same bits each time", "[embedding]" ON_DEVICE) {
    const int64_t B = 3, seq_len = 200, C = 72, V = 50;
    const Ints tokens = tokens_of("half one token", B * seq_len, V);
    Cuda cuda;
    const OnDevice<int32_t> d_tokens(cuda, tokens);
    const OnDevice<float> d_dout(cuda, randn(size_t(B * seq_len * C), 1));
    twice_the_same([&] {
        OnDevice<float> dwte(cuda, randn(size_t(V * C), 2)), dwpe(cuda, randn(size_t(seq_len * C), 3));
        embedding_backward(cuda, dwte.data, dwpe.data, d_dout.data, d_tokens.data, B, seq_len, C);
        return std::vector{dwte.get(), dwpe.get()};
    });
}

constexpr float kEps = 0x1p-23f;

// What is stored in bf16 is off by half a unit; f32 by the sums of squares, in other orders here and on the CPU: at
// most C / 32 roundings of half a unit a lane there and C / 16 here, halved by the root, and a few on the way.
template <class T>
double tolerance(int64_t C) {
    return (double(C) / 16 / 2 + 4) * kEpsF32 + (std::is_same_v<T, bf16> ? kEpsBf16 / 2 : 0);
}

TEMPLATE_TEST_CASE("embedding_rmsnorm's kernels agree with the CPU", "[embedding]" ON_DEVICE, float, bf16) {
    using T = TestType;
    // A row of fewer packs than a warp's lanes, one that ends inside a warp's step, a block that is not full, d24's;
    // more shared memory a block than every kernel has.
    const auto [B, seq_len, C] =
        GENERATE(table<int, int, int>({{1, 1, 8}, {3, 7, 264}, {2, 40, 768}, {1, 6, 1536}, {1, 3, 4096}}));
    INFO(B << " x " << seq_len << " x " << C);
    const int64_t V = 20, N = B * seq_len;
    const auto n = size_t(N * C), rows = size_t(N);
    Rng rng(1, Stream::tests);
    Ints tokens;
    for (int64_t i = 0; i < N; i++) tokens.push_back(rng.below(2) ? 7 : int32_t(rng.below(V)));
    const Floats wte = rounded<T>(randn(size_t(V * C), 1)), dout = rounded<T>(randn(n, 2));
    const Floats dwte = randn(size_t(V * C), 3);

    Cpu cpu;
    Floats out(n), rstd(rows), dx = dout, not_rounded = dwte, want_dwte = dwte;
    embedding_rmsnorm_forward(cpu, out.data(), rstd.data(), tokens.data(), wte.data(), N, C, kEps);
    embedding_rmsnorm_backward(cpu, not_rounded.data(), dx.data(), tokens.data(), wte.data(), rstd.data(), B, seq_len,
                               C);

    Cuda cuda;
    const OnDevice<int32_t> d_tokens(cuda, tokens);
    const OnDevice<T> d_wte(cuda, wte);
    const OnDevice<float> cpu_rstd(cuda, rstd);
    const auto got = twice_the_same([&] {
        OnDevice<T> d_out(cuda, n), d_dout(cuda, dout);
        OnDevice<float> d_rstd(cuda, rows), d_dwte(cuda, dwte);
        embedding_rmsnorm_forward(cuda, d_out.data, d_rstd.data, d_tokens.data, d_wte.data, N, C, kEps);
        embedding_rmsnorm_backward(cuda, d_dwte.data, d_dout.data, d_tokens.data, d_wte.data, cpu_rstd.data, B, seq_len,
                                   C);
        return std::vector{d_out.get(), d_rstd.get(), d_dout.get(), d_dwte.get()};
    });
    check_relative("out", got[0], out, tolerance<T>(C));
    check_relative("rstd", got[1], rstd, tolerance<float>(C));
    check_close("dx in place of dout", got[2], dx, tolerance<T>(C));
    // The scatter adds up what was stored, up to N terms in another order than the CPU.
    embedding_backward(cpu, want_dwte.data(), nullptr, got[2].data(), tokens.data(), B, seq_len, C);
    check_close("dwte", got[3], want_dwte, double(N) / 2 * kEpsF32);

    // The kernels of the two ops: the same bits.
    OnDevice<T> x(cuda, n), two_out(cuda, n);
    const OnDevice<T> stored(cuda, got[2]);
    OnDevice<float> two_rstd(cuda, rows), two_dwte(cuda, dwte);
    embedding_forward(cuda, x.data, d_tokens.data, d_wte.data, nullptr, B, seq_len, C);
    rmsnorm_forward(cuda, two_out.data, two_rstd.data, x.data, nullptr, N, C, kEps);
    embedding_backward(cuda, two_dwte.data, nullptr, stored.data, d_tokens.data, B, seq_len, C);
    check_equal("out of two ops", two_out.get(), got[0]);
    check_equal("rstd of two ops", two_rstd.get(), got[1]);
    check_equal("dwte of two ops", two_dwte.get(), got[3]);
}

TEMPLATE_TEST_CASE("embedding_rmsnorm's kernels: a NaN spoils its token and no other", "[embedding]" ON_DEVICE, float,
                   bf16) {
    using T = TestType;
    const int64_t N = 6, C = 72;
    const Ints tokens = {2, 0, 1, 0, 2, 2};
    Floats wte = randn(size_t(3 * C), 1);
    wte[size_t(1 * C + 71)] = std::nanf("");
    Cuda cuda;
    const OnDevice<int32_t> d_tokens(cuda, tokens);
    const OnDevice<T> d_wte(cuda, rounded<T>(wte));
    OnDevice<T> d_out(cuda, size_t(N * C)), d_dout(cuda, Floats(size_t(N * C), 1));
    OnDevice<float> d_rstd(cuda, size_t(N)), d_dwte(cuda, Floats(wte.size(), 0));
    embedding_rmsnorm_forward(cuda, d_out.data, d_rstd.data, d_tokens.data, d_wte.data, N, C, kEps);
    embedding_rmsnorm_backward(cuda, d_dwte.data, d_dout.data, d_tokens.data, d_wte.data, d_rstd.data, 2, 3, C);
    for (const Floats& x : {d_out.get(), d_dout.get()}) {
        CHECK(all_nan(Floats(x.begin() + 2 * C, x.begin() + 3 * C)));
        CHECK(count_not_finite(x) == C);
    }
    const Floats gradient = d_dwte.get();
    CHECK(all_nan(Floats(gradient.begin() + C, gradient.begin() + 2 * C)));
    CHECK(count_not_finite(gradient) == C);
}

TEST_CASE("embedding_rmsnorm's kernels refuse rows that are not a multiple of 16 bytes", "[embedding]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 12);
    OnDevice<float> y(cuda, 12);
    const OnDevice<int32_t> tokens(cuda, Ints{0});
    CHECK(error_of([&] { embedding_rmsnorm_forward(cuda, x.data, y.data, tokens.data, x.data, 1, 12, kEps); }) ==
          "2: embedding_rmsnorm_forward of 12 channels: they must be a multiple of 8, 16 bytes");
    CHECK(error_of([&] { embedding_rmsnorm_backward(cuda, y.data, x.data, tokens.data, x.data, y.data, 1, 1, 12); }) ==
          "2: embedding_rmsnorm_backward of 12 channels: they must be a multiple of 8, 16 bytes");
}

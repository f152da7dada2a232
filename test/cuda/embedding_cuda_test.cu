// The embedding's kernels against the CPU's functions, and the sort after them.
#include "llmc/cuda/embedding.cuh"
#include <algorithm>
#include <numeric>
#include "llmc/cpu/embedding.h"
#include "test/cuda_testing.h"  // OnDevice, rounded, twice_the_same

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

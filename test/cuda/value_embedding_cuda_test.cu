// The value embeddings' kernels against the CPU's functions.
#include "llmc/cuda/value_embedding.cuh"
#include "llmc/cpu/value_embedding.h"
#include "test/cpu/gate_testing.h"  // value_embedding_bounds, twice, stored
#include "test/cuda_testing.h"      // OnDevice, rounded, twice_the_same

constexpr float kGateScale = 3;

// Half of the tokens one of V: its rows span several blocks.
static Ints half_one_token(int64_t n, int64_t V) {
    Rng rng(uint64_t(n), Stream::tests);
    Ints tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens) token = int32_t(rng.below(2) ? V / 2 : int64_t(rng.below(uint64_t(V))));
    return tokens;
}

TEMPLATE_TEST_CASE("value_embedding agrees with the CPU", "[value_embedding]" ON_DEVICE, float, bf16) {
    using T = TestType;
    // One token, a gate that ends inside a pack, one as wide as a warp over several blocks, heads of more than a warp's
    // packs, nanochat's.
    const auto [B, seq_len, NH, NKV, HS, C, G] =
        GENERATE(table<int, int, int, int, int, int, int>({{1, 1, 1, 1, 8, 8, 1},
                                                           {2, 33, 4, 2, 16, 48, 13},
                                                           {1, 200, 3, 3, 64, 64, 32},
                                                           {2, 5, 2, 1, 264, 24, 24},
                                                           {1, 70, 2, 2, 128, 256, 12}}));
    INFO(B << " x " << seq_len << ", " << NH << " and " << NKV << " heads of " << HS << ", gate " << G);
    const AttentionShape shape{B, seq_len, NH, NKV, HS};
    const int64_t N = B * seq_len, V = 20;
    const auto entries_size = size_t(V * NKV * HS), qkv_size = size_t(N * shape.row()), inp_size = size_t(N * C);
    const Ints tokens = half_one_token(N, V);
    const Floats qkv = rounded<T>(randn(qkv_size, 1)), dqkv = rounded<T>(randn(qkv_size, 2));
    const Floats inp = rounded<T>(randn(inp_size, 3)), entries = rounded<T>(randn(entries_size, 4));
    const Floats weight = rounded<T>(randn(size_t(NKV * G), 5, 0.5f)), dinp = rounded<T>(randn(inp_size, 6));
    const Floats dtable = randn(entries_size, 7), dweight = randn(size_t(NKV * G), 8);

    Cpu cpu;
    Floats want = qkv, want_dinp = dinp, want_dtable = dtable, want_dweight = dweight;
    value_embedding_forward(cpu, want.data(), inp.data(), tokens.data(), entries.data(), weight.data(), shape, C, G,
                            kGateScale);
    value_embedding_backward(cpu, want_dinp.data(), want_dtable.data(), want_dweight.data(), dqkv.data(), inp.data(),
                             tokens.data(), entries.data(), weight.data(), shape, C, G, kGateScale);

    Cuda cuda;
    const OnDevice<int32_t> d_tokens(cuda, tokens);
    const OnDevice<T> d_dqkv(cuda, dqkv), d_inp(cuda, inp), d_entries(cuda, entries), d_weight(cuda, weight);
    const int64_t channels = C, gate = G;
    const auto got = twice_the_same([&] {
        OnDevice<T> d_qkv(cuda, qkv), d_dinp(cuda, dinp);
        OnDevice<float> d_dtable(cuda, dtable), d_dweight(cuda, dweight);
        value_embedding_forward(cuda, d_qkv.data, d_inp.data, d_tokens.data, d_entries.data, d_weight.data, shape,
                                channels, gate, kGateScale);
        value_embedding_backward(cuda, d_dinp.data, d_dtable.data, d_dweight.data, d_dqkv.data, d_inp.data,
                                 d_tokens.data, d_entries.data, d_weight.data, shape, channels, gate, kGateScale);
        return std::vector{d_qkv.get(), d_dinp.get(), d_dtable.get(), d_dweight.get()};
    });
    const ValueEmbeddingBounds bounds =
        value_embedding_bounds(qkv, dinp, dtable, dweight, dqkv, inp, tokens, entries, weight, shape, C, G, kGateScale);
    check_within("qkv", got[0], want, stored<T>(twice(bounds.qkv), want));
    check_within("dinp", got[1], want_dinp, stored<T>(twice(bounds.dinp), want_dinp));
    check_within("dtable", got[2], want_dtable, twice(bounds.dtable));
    check_within("dgate_weight", got[3], want_dweight, twice(bounds.dgate_weight));
}

// An open gate and a shut one: whole numbers, whose sums are exact in any order.
TEMPLATE_TEST_CASE("value_embedding_backward is exact on whole numbers", "[value_embedding]" ON_DEVICE, float, bf16) {
    using T = TestType;
    const AttentionShape shape{1, 300, 1, 2, 40};
    const int64_t N = shape.T, C = 8, G = 1, V = 12, row = shape.row();
    const Ints tokens = half_one_token(N, V);
    const Floats dqkv = whole_numbers(N * row, 1, 100), start = whole_numbers(V * shape.NKV * shape.HS, 2, 100);
    Floats want = start;
    for (int64_t n = 0; n < N; n++)
        for (int64_t i = 0; i < shape.HS; i++)
            want[size_t(tokens[size_t(n)] * shape.NKV * shape.HS + i)] +=
                kGateScale * dqkv[size_t(n * row + (shape.NH + shape.NKV) * shape.HS + i)];
    Cuda cuda;
    const OnDevice<int32_t> d_tokens(cuda, tokens);
    const OnDevice<T> d_dqkv(cuda, dqkv), inp(cuda, Floats(size_t(N * C), 1)), weight(cuda, Floats{1e3f, -1e3f});
    const OnDevice<T> entries(cuda, whole_numbers(int64_t(start.size()), 3, 100));
    OnDevice<T> dinp(cuda, Floats(size_t(N * C), 5));
    OnDevice<float> dtable(cuda, start), dweight(cuda, Floats{7, 7});
    value_embedding_backward(cuda, dinp.data, dtable.data, dweight.data, d_dqkv.data, inp.data, d_tokens.data,
                             entries.data, weight.data, shape, C, G, kGateScale);
    check_equal("dtable", dtable.get(), want);
    check_equal("dinp", dinp.get(), Floats(size_t(N * C), 5));
    check_equal("dgate_weight", dweight.get(), {7, 7});
}

TEST_CASE("value_embedding's kernels refuse heads and gates that they cannot take", "[value_embedding]" ON_DEVICE) {
    Cuda cuda;
    OnDevice<bf16> x(cuda, 64);
    OnDevice<float> y(cuda, 64);
    const OnDevice<int32_t> tokens(cuda, Ints{0});
    CHECK(error_of([&] {
              value_embedding_forward(cuda, x.data, x.data, tokens.data, x.data, x.data, {1, 1, 1, 1, 12}, 8, 8, 3);
          }) == "2: value_embedding_forward with heads of 12: expected a multiple of 8, 16 bytes");
    CHECK(contains(error_of([&] {
                       value_embedding_backward(cuda, x.data, y.data, y.data, x.data, x.data, tokens.data, x.data,
                                                x.data, {1, 1, 1, 1, 8}, 64, 33, 3);
                   }),
                   "a gate of 33 channels"));
}

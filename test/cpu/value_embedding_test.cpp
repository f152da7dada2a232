// Value embeddings and their backward against PyTorch.
#include "llmc/cpu/value_embedding.h"
#include "test/cpu/gate_testing.h"  // value_embedding_bounds
#include "test/fixture.h"           // Fixture
#include "test/op_testing.h"        // on_any_threads, check_within, check_equal, plus, whole_numbers
#include "test/testing.h"

constexpr float kGateScale = 3;

TEST_CASE("value_embedding agrees with PyTorch", "[value_embedding]") {
    const Fixture f("value_embedding");
    const auto [B, T, NH, NKV, HS, C, G] = GENERATE(table<int, int, int, int, int, int, int>({{1, 1, 1, 1, 1, 1, 1},
                                                                                              {2, 5, 2, 1, 7, 9, 3},
                                                                                              {1, 3, 2, 2, 16, 24, 24},
                                                                                              {3, 13, 4, 2, 6, 20, 17},
                                                                                              {1, 4, 1, 1, 128, 12, 12},
                                                                                              {1, 70, 1, 2, 3, 5, 5}}));
    const std::string name = format("%dx%dx%dx%dx%d.", B, T, NH, NKV, HS), want = "want." + name;
    INFO(name);
    const AttentionShape shape{B, T, NH, NKV, HS};
    const Floats qkv = f.floats(name + "qkv"), dqkv = f.floats(name + "dqkv"), inp = f.floats(name + "inp");
    const Floats entries = f.floats(name + "table"), weight = f.floats(name + "weight");
    const Ints tokens = f.ints(name + "tokens");
    const Floats dinp = randn(inp.size(), 1), dtable = randn(entries.size(), 2), dweight = randn(weight.size(), 3);
    const int64_t channels = C, gate = G;
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(qkv), got_dinp(dinp), got_dtable(dtable), got_dweight(dweight);
        value_embedding_forward<float>(cpu, out, inp.data(), tokens.data(), entries.data(), weight.data(), shape,
                                       channels, gate, kGateScale);
        value_embedding_backward<float>(cpu, got_dinp, got_dtable, got_dweight, dqkv.data(), inp.data(), tokens.data(),
                                        entries.data(), weight.data(), shape, channels, gate, kGateScale);
        return std::vector{out.get(), got_dinp.get(), got_dtable.get(), got_dweight.get()};
    });
    const ValueEmbeddingBounds bounds =
        value_embedding_bounds(qkv, dinp, dtable, dweight, dqkv, inp, tokens, entries, weight, shape, C, G, kGateScale);
    check_within("qkv", got[0], f.floats(want + "qkv"), bounds.qkv);
    check_within("dinp", got[1], plus(dinp, f.floats(want + "dinp")), bounds.dinp);
    check_within("dtable", got[2], plus(dtable, f.floats(want + "dtable")), bounds.dtable);
    check_within("dgate_weight", got[3], plus(dweight, f.floats(want + "dweight")), bounds.dgate_weight);
}

// Gates that are wide open or shut: everything is a whole number, and a slope of zero leaves dinp and the weights
// alone.
TEST_CASE("value_embedding: gates far from zero are exact", "[value_embedding]") {
    const AttentionShape shape{2, 50, 3, 2, 70};  // heads of more than one range of columns
    const int64_t N = shape.B * shape.T, C = 3, G = 1, V = 9, row = shape.row();
    Rng rng(1, Stream::tests);
    Ints tokens;
    for (int64_t n = 0; n < N; n++) tokens.push_back(int32_t(rng.below(V)));
    const Floats inp(size_t(N * C), 1), weight{1e3f, -1e3f};  // the second head's gate is shut
    const Floats qkv = whole_numbers(N * row, 1, 100), entries = whole_numbers(V * shape.NKV * shape.HS, 2, 100);
    const Floats dqkv = whole_numbers(N * row, 3, 100), start = whole_numbers(V * shape.NKV * shape.HS, 4, 100);
    Floats want = qkv, want_dtable = start;
    for (int64_t n = 0; n < N; n++)
        for (int64_t i = 0; i < shape.HS; i++) {
            const auto at = size_t(n * row + (shape.NH + shape.NKV) * shape.HS + i);
            const auto entry = size_t(tokens[size_t(n)] * shape.NKV * shape.HS + i);
            want[at] += kGateScale * entries[entry];
            want_dtable[entry] += kGateScale * dqkv[at];
        }
    const auto got = on_any_threads([&](Cpu& cpu) {
        Guarded out(qkv), dinp(inp.size(), 5), dtable(start), dweight(2, 7);
        value_embedding_forward<float>(cpu, out, inp.data(), tokens.data(), entries.data(), weight.data(), shape, C, G,
                                       kGateScale);
        value_embedding_backward<float>(cpu, dinp, dtable, dweight, dqkv.data(), inp.data(), tokens.data(),
                                        entries.data(), weight.data(), shape, C, G, kGateScale);
        return std::vector{out.get(), dinp.get(), dtable.get(), dweight.get()};
    });
    check_equal("qkv", got[0], want);
    check_equal("dinp", got[1], Floats(inp.size(), 5));
    check_equal("dtable", got[2], want_dtable);
    check_equal("dgate_weight", got[3], {7, 7});
}

TEST_CASE("value_embedding in bf16 rounds each result once", "[value_embedding]") {
    const auto [NKV, HS, C, G] =
        GENERATE(table<int64_t, int64_t, int64_t, int64_t>({{1, 1, 1, 1}, {3, 7, 40, 33}, {2, 128, 24, 12}}));
    INFO(NKV << " heads of " << HS);
    check_rounds_once([NKV = NKV, HS = HS, C = C, G = G]<class T>(Cpu& cpu) {
        const AttentionShape shape{2, 37, NKV, NKV, HS};
        const int64_t N = shape.B * shape.T, V = 5;
        const auto inp = bf16_randn<T>(N * C, 1), entries = bf16_randn<T>(V * NKV * HS, 2);
        const auto weight = bf16_randn<T>(NKV * G, 3), dqkv = bf16_randn<T>(N * shape.row(), 4);
        Ints tokens;
        for (int64_t n = 0; n < N; n++) tokens.push_back(int32_t(n * n % V));
        Guarded<T> qkv(rounded<bf16>(randn(dqkv.size(), 5))), dinp(rounded<bf16>(randn(inp.size(), 6)));
        Guarded dtable(randn(entries.size(), 7)), dweight(randn(weight.size(), 8));
        value_embedding_forward(cpu, qkv.data(), inp.data(), tokens.data(), entries.data(), weight.data(), shape, C, G,
                                kGateScale);
        value_embedding_backward(cpu, dinp.data(), dtable, dweight, dqkv.data(), inp.data(), tokens.data(),
                                 entries.data(), weight.data(), shape, C, G, kGateScale);
        return std::vector{stored(qkv), stored(dinp), dtable.get(), dweight.get()};
    });
}

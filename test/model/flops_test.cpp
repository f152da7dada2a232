// FLOPs, and the parameters that they count: every preset and depth against sums written by hand.
#include "llmc/model/flops.h"
#include "llmc/run/scaling.h"  // depth_model
#include "test/testing.h"

namespace {

// Of the matrices of one block and lm_head; value embeddings have a gate.
int64_t matmul_parameters_by_hand(const GptShape& s) {
    const int64_t C = s.channels, KV = s.kv_heads() * s.head_size(), F = s.hidden();
    const int64_t mlp = (s.architecture.mlp == MlpKind::swiglu ? 3 : 2) * F * C;
    int64_t sum = s.vocab_size * C;
    for (int64_t l = 0; l < s.num_layers; l++)
        sum += 2 * C * C + 2 * KV * C + mlp + (s.has_value_embedding(l) ? s.kv_heads() * kGateChannels : 0);
    return sum;
}

}  // namespace

TEST_CASE("flops: every preset counts its matrices, its head and the keys under its mask", "[flops]") {
    for (const GptPreset& preset : kGptPresets)
        for (const std::string& architecture : architecture_names()) {
            GptShape s = preset.shape;
            s.architecture = find_architecture(architecture);
            const ParameterList list(s);
            INFO(preset.name << ", " << architecture);
            CHECK(matmul_parameters(list) == matmul_parameters_by_hand(s));
            for (const int64_t T : {s.max_seq_len, s.max_seq_len / 2, int64_t(96)}) {
                double causal = 0, unmasked = 0;
                for (int64_t l = 0; l < s.num_layers; l++) {
                    const bool full = s.architecture.windows[size_t(l) % s.architecture.windows.size()] == 'L' ||
                                      l + 1 == s.num_layers;
                    const int64_t w = std::min(T, full ? s.max_seq_len : s.max_seq_len / 4);
                    causal += double(w) - double(w) * double(w) / (2 * double(T));
                    unmasked += double(w);
                }
                const double N = double(matmul_parameters_by_hand(s)), C = double(s.channels);
                CHECK(flops_per_token(list, T) == 6 * N + 12 * C * causal);
                CHECK(flops_per_token(list, T, AttentionFlops::unmasked) == 6 * N + 12 * C * unmasked);
            }
        }
}

// The mask itself, token by token: a window of w tokens, of which the token's own counts as half.
TEST_CASE("flops: the keys under the mask are the mean over a sequence", "[flops]") {
    GptShape s{6, 4, 64, 512, 100};
    s.architecture.windows = "SL", s.architecture.short_window = 128;
    const int64_t T = 512;
    double keys = 0;
    for (const int64_t window : layer_windows(s.architecture, s.num_layers, s.max_seq_len)) {
        const int64_t w = window < 0 ? T : window;
        for (int64_t t = 0; t < T; t++) keys += double(std::min(t, w) + std::min(t + 1, w)) / 2 / double(T);
    }
    const ParameterList list(s);
    const double attention = flops_per_token(list, T) - 6 * double(matmul_parameters(list));
    CHECK(std::fabs(attention / (12 * 64) - keys) < 1e-9 * keys);
}

TEST_CASE("flops: nanochat's depths count what its scripts count", "[flops]") {
    for (int64_t depth = 1; depth <= 32; depth++)
        for (const int64_t kv_heads : {int64_t(0), int64_t(1)}) {
            INFO("depth " << depth << ", " << kv_heads << " key and value heads");
            const DepthModel m = depth_model({.depth = depth, .num_kv_heads = kv_heads});
            const int64_t C = m.channels, KV = m.num_kv_heads * 128, with = (depth + 1) / 2;
            CHECK(m.matrices == depth * (2 * C * C + 2 * KV * C + 8 * C * C));
            CHECK(m.gates == with * m.num_kv_heads * kGateChannels);
            CHECK((m.embedding == 32768 * C && m.head == m.embedding));
            CHECK(m.value_embeddings == with * 32768 * KV);
            CHECK(m.scalars == 2 * depth + kSmearChannels + 2);
            CHECK(m.num_parameters == m.matrices + m.gates + m.embedding + m.head + m.value_embeddings + m.scalars);
            CHECK(m.scaling_parameters == m.matrices + m.gates + m.head);
            double keys = 0;
            for (const int64_t window : m.windows) keys += double(window < 0 ? 2048 : std::min<int64_t>(window, 2048));
            CHECK(m.flops_per_token == 6 * double(m.scaling_parameters) + 12 * double(m.num_heads * 128) * keys);
        }
}

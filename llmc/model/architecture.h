/*
The differences between transformers besides their sizes. GPT-2 and its successors are values of this struct; no code
depends on the name of a model. To add a feature, see doc/add_an_architecture_feature.md.

  gpt2       Radford et al., 2019: LayerNorm, learned positions, GELU, biases, tied weights
  llama      Touvron et al., 2023 (arXiv:2302.13971), with Llama 3's rotary base: RMSNorm, SwiGLU, no biases
  stage-a    modded-nanogpt's track 3 baseline (Jordan et al., 2024 to 2026): squared ReLU, QK-norm, RoPE on half of
             each head, logit softcap, projections initialized to zero

  nanochat   Karpathy, 2026: norms without weights, value embeddings, x0 mixed into each block, smear, backout
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/flags.h"         // Field
#include "llmc/ops/cross_entropy.h"  // Softcap
#include "llmc/ops/rotary.h"         // RotaryOptions

enum class NormKind { layernorm, rmsnorm, plain_rmsnorm };  // with weight and bias, with weight, with neither
enum class MlpKind { gelu, relu_squared, swiglu };

// How weights are initialized: standard deviations.
struct InitRules {
    double embedding = 0.02;        // of tokens and positions
    double head = 0.02;             // of an untied lm_head
    double matrices = 0.02;         // of the blocks
    bool by_fan_in = false;         // divides `matrices` by sqrt(inputs)
    bool uniform = false;           // a uniform distribution with that deviation, instead of a normal one
    double mlp_factor = 1;          // multiplies the deviation of the MLP's first matrix
    bool zero_projections = false;  // zeros both projections onto the residual stream; else divides by sqrt(2 L)

    bool operator==(const InitRules&) const = default;
};

struct Architecture {
    NormKind norm = NormKind::layernorm;
    double norm_eps = 1e-5;
    bool biases = true;
    bool qkv_biases = false;  // biases of queries, keys and values only, if there are no others
    MlpKind mlp = MlpKind::gelu;
    bool tied_head = true;

    bool rotary_positions = false;    // else learned ones
    RotaryOptions rotary = {};        // and QK-norm without a gain
    std::string rotary_layers = "R";  // one letter per layer, repeated: R rotates its queries and keys, N does not
    bool qk_rmsnorm = false;          // QK-norm with gains, before the rotation; eps: norm_eps
    double score_scale = 0;           // softmax scale of attention; 0: 1 / sqrt(HS)
    std::string windows = "L";        // one letter per layer, repeated: L full, S sliding window
    bool full_last_layer = true;      // the last layer has full attention, whatever its letter
    int64_t short_window = 0;  // S: the token and this many before it; 0: a quarter of the sequence (layer_windows)

    bool embedding_norm = false;    // RMSNorm after the embedding, without a weight
    bool value_embeddings = false;  // token embeddings that a gate adds to the values of every second layer
    bool residual_lambdas = false;  // a block's input is r x + z x0, where x0 is the first block's input; r, z learned
    bool smear = false;             // a gate adds part of the previous token's embedding to each one
    bool backout = false;           // subtracts a learned part of the residual stream of the middle layer at the end
    Softcap softcap = {};           // for the logits

    InitRules init = {};

    bool operator==(const Architecture&) const = default;
};

// Whether both compute the same function of the same weights. Initialization may differ.
inline bool same_function(const Architecture& a, Architecture b) {
    b.init = a.init;
    return a == b;
}

inline constexpr int64_t kGateChannels = 12, kSmearChannels = 24;  // the gates' inputs: a token's first channels
inline constexpr float kGateScale = 3;                             // the upper limit of a value embedding's gate

// Each layer's window, as AttentionShape::window; -1: full. A quarter of the sequence is rounded up to a multiple of
// 128 tokens, as in nanochat. A `fraction` below 1 shrinks all windows, of full layers too, for runs whose windows
// grow; those above 128 tokens stay multiples of that.
std::vector<int64_t> layer_windows(const Architecture& a, int64_t num_layers, int64_t seq_len, double fraction = 1);

// Whether a layer rotates its queries and keys.
inline bool rotates(const Architecture& a, int64_t layer) {
    return a.rotary_positions && a.rotary_layers[size_t(layer) % a.rotary_layers.size()] == 'R';
}

std::vector<std::string> architecture_names();
Architecture find_architecture(const std::string& name);

// An Architecture without its InitRules as named fields: the form of checkpoints and of the flags that change parts.
struct ArchitectureFields {
    std::string norm, mlp, positions, rotary_layers, rotary_scaling, windows, softcap_kind;
    double norm_eps, rotary_base, rotary_factor, rotary_low_turns, rotary_high_turns, rotary_original_length, qk_scale,
        qk_eps, score_scale, softcap;
    int64_t short_window;
    bool biases, qkv_biases, tied_head, qk_rmsnorm, full_last_layer, half_rotary, clockwise_rotary, qk_norm,
        embedding_norm, value_embeddings, residual_lambdas, smear, backout;

    explicit ArchitectureFields(const Architecture& a);
    std::vector<Field> fields();
    Architecture architecture() const;
};

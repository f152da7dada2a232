/*
What transformers differ in beside their sizes. GPT-2 and what came after it are values of this struct; no code asks
which of them it is in.

  gpt2       Radford et al., 2019: LayerNorm, learned positions, GELU, biases, the embedding as head
  llama      Touvron et al., 2023 (arXiv:2302.13971), with Llama 3's rotary base: RMSNorm, SwiGLU, no biases
  stage-a    modded-nanogpt's track 3 baseline (Jordan et al., 2024 to 2026): squared ReLU, QK-norm, half of each head
             rotated, capped logits, projections that begin at zero
  nanochat   Karpathy, 2026: no gains, value embeddings, the first stream mixed into each block, smear, backout
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/flags.h"     // Field
#include "llmc/base/op_types.h"  // RotaryOptions, Softcap

enum class NormKind { layernorm, rmsnorm, plain_rmsnorm };  // with gain and bias, with gain, with neither
enum class MlpKind { gelu, relu_squared, swiglu };

// How weights begin: standard deviations.
struct InitRules {
    double embedding = 0.02;        // of tokens and positions
    double head = 0.02;             // of one of its own
    double matrices = 0.02;         // inside the blocks
    bool by_fan_in = false;         // those divided by sqrt(inputs)
    bool uniform = false;           // uniform with that deviation, instead of normal
    double mlp_factor = 1;          // times it, for the first matrix of the MLP
    bool zero_projections = false;  // the two of each block that add to the residual stream; else over sqrt(2 L)

    bool operator==(const InitRules&) const { return true; }  // what a model began with does not make it another
};

struct Architecture {
    NormKind norm = NormKind::layernorm;
    double norm_eps = 1e-5;
    bool biases = true;
    MlpKind mlp = MlpKind::gelu;
    bool tied_head = true;

    bool rotary_positions = false;  // else learned ones
    RotaryOptions rotary = {};      // and QK-norm
    double score_scale = 0;         // of attention's scores; 0: 1 / sqrt(HS)
    std::string windows = "L";      // a letter a layer, repeated: L all tokens, S fewer; the last layer has all
    int64_t short_window = 0;       // S: this many before the own; 0: a quarter of the sequence (layer_windows)

    bool embedding_norm = false;    // a norm behind the embedding
    bool value_embeddings = false;  // of tokens, added to every second layer's values through a gate
    bool residual_lambdas = false;  // a block's input is r x + z x0, x0 what the first one gets
    bool smear = false;             // a part of the token before is added to each embedding
    bool backout = false;           // a part of the middle of the network is taken out of its end
    Softcap softcap = {};           // of the logits

    InitRules init = {};

    bool operator==(const Architecture&) const = default;
};

inline constexpr int64_t kGateChannels = 12, kSmearChannels = 24;  // the first channels, that gates look at
inline constexpr float kGateScale = 3;                             // value embeddings count up to so many times

// How far each layer sees, as AttentionShape::window; -1: all. A quarter of the sequence is rounded up to a multiple of
// 128 tokens, as in nanochat. A `part` below 1 of every window, of long layers too: what a run may begin with, of
// windows above 128 tokens in multiples of that.
std::vector<int64_t> layer_windows(const Architecture& a, int64_t num_layers, int64_t seq_len, double part = 1);

std::vector<std::string> architecture_names();
Architecture find_architecture(const std::string& name);

// An architecture in words and numbers, but for its InitRules: what a checkpoint says of its model, and, as flags, what
// changes parts of one.
struct ArchitectureFields {
    std::string norm, mlp, positions, windows, softcap_kind;
    double norm_eps, rotary_base, qk_scale, qk_eps, score_scale, softcap;
    int64_t short_window;
    bool biases, tied_head, half_rotary, clockwise_rotary, qk_norm, embedding_norm, value_embeddings, residual_lambdas,
        smear, backout;

    explicit ArchitectureFields(const Architecture& a);
    std::vector<Field> fields();
    Architecture architecture() const;
};

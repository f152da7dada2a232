/*
The shape of a model: its sizes and its architecture. Presets have names; flags change parts of a preset.

  ModelConfig config;  ... parse_flags(config.fields(), ...)
  const GptShape shape = config.shape(V of the tokenizer);       fills in the preset; an Error on contradictions
*/
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/flags.h"          // Field
#include "llmc/model/architecture.h"  // Architecture

// The vocabulary is padded to a multiple of this, so that rows of logits are aligned; see cross_entropy.h.
inline constexpr int64_t kVocabularyMultiple = 128;

// The linear layers of a block: c_attn, c_proj, and c_fc and c_proj of the MLP.
enum LinearKind { kQkv, kProjection, kUp, kDown };
inline constexpr LinearKind kLinearKinds[] = {kQkv, kProjection, kUp, kDown};
inline constexpr const char* kLinearNames[] = {"qkv", "projection", "up", "down"};  // in --lora-targets

// Low-rank adapters of linear layers (lora.h), beside which the model itself does not learn.
struct Lora {
    int64_t rank = 0;  // 0: there are none
    double alpha = 0, dropout = 0;
    bool targets[4] = {};   // by LinearKind
    bool is_split = false;  // Q, K and V, and gate and up, have adapters of their own, as in transformers' Llama
    bool fp8_base = false;  // the model's large matrices are there in FP8 alone (linear.h)

    bool is_on() const { return rank > 0; }
    bool adapts(LinearKind kind) const { return is_on() && targets[kind]; }
};

struct GptShape {
    int64_t num_layers, num_heads, channels;
    int64_t max_seq_len;
    int64_t vocab_size;        // V
    int64_t num_kv_heads = 0;  // NKV; 0: as many as heads
    int64_t mlp_channels = 0;  // F; 0: 4 C
    Architecture architecture = {};
    int64_t head_channels = 0;  // HS; 0: C / NH
    Lora lora = {};
    int64_t mup_base_width = 0;  // muP (parameters.h): the width at which it is the standard parametrization; 0: off

    // Base width / C: by how much muP scales what it scales.
    double mup() const { return mup_base_width > 0 ? double(mup_base_width) / double(channels) : 1; }

    int64_t padded_vocab_size() const {  // Vp
        return (vocab_size + kVocabularyMultiple - 1) / kVocabularyMultiple * kVocabularyMultiple;
    }
    int64_t head_size() const { return head_channels > 0 ? head_channels : channels / num_heads; }  // HS
    int64_t query_channels() const { return num_heads * head_size(); }  // CQ: of attention's output too; C as a rule
    int64_t kv_heads() const { return num_kv_heads > 0 ? num_kv_heads : num_heads; }   // NKV
    int64_t hidden() const { return mlp_channels > 0 ? mlp_channels : 4 * channels; }  // F
    int64_t hidden_rows() const {  // of the MLP's first matrix; SwiGLU stacks the gate's on top
        return architecture.mlp == MlpKind::swiglu ? 2 * hidden() : hidden();
    }
    int64_t qkv_rows() const { return (num_heads + 2 * kv_heads()) * head_size(); }
    // Every second layer, the last one included.
    bool has_value_embedding(int64_t layer) const {
        return architecture.value_embeddings && layer % 2 == (num_layers - 1) % 2;
    }
    // The layer of whose output backout subtracts a part.
    int64_t backout_layer() const { return num_layers / 2; }
};

struct LinearSize {
    int64_t C, OC;  // input and output channels
};
inline LinearSize linear_size(const GptShape& s, LinearKind kind) {
    switch (kind) {
        case kQkv:
            return {s.channels, s.qkv_rows()};
        case kProjection:
            return {s.query_channels(), s.channels};
        case kUp:
            return {s.channels, s.hidden_rows()};
        case kDown:
            return {s.hidden(), s.channels};
    }
    return {};
}

// The rows of each matrix of a layer that has an adapter of its own.
inline std::vector<int64_t> lora_rows(const GptShape& s, LinearKind kind) {
    const int64_t KV = s.kv_heads() * s.head_size(), F = s.hidden();
    if (s.lora.is_split && kind == kQkv) return {s.query_channels(), KV, KV};
    if (s.lora.is_split && kind == kUp && s.architecture.mlp == MlpKind::swiglu) return {F, F};
    return {linear_size(s, kind).OC};
}
// Throws an Error if an adapter would have more rows or columns than its matrix.
void check_lora(const GptShape& shape);

// Whether both compute the same function of the same weights. They may differ in initialization, in whether a size that
// follows from others is given explicitly, and in how often a repeating pattern of letters is written out.
inline bool same_model(const GptShape& a, const GptShape& b) {
    Architecture other = b.architecture;
    for (int64_t l = 0; l < std::min(a.num_layers, b.num_layers); l++)
        if (rotates(a.architecture, l) != rotates(other, l)) return false;
    other.rotary_layers = a.architecture.rotary_layers;
    if (layer_windows(a.architecture, a.num_layers, a.max_seq_len) != layer_windows(other, b.num_layers, b.max_seq_len))
        return false;
    other.windows = a.architecture.windows, other.short_window = a.architecture.short_window;
    other.full_last_layer = a.architecture.full_last_layer;
    return a.num_layers == b.num_layers && a.num_heads == b.num_heads && a.channels == b.channels &&
           a.max_seq_len == b.max_seq_len && a.vocab_size == b.vocab_size && a.kv_heads() == b.kv_heads() &&
           a.hidden() == b.hidden() && a.head_size() == b.head_size() && same_function(a.architecture, other);
}

struct GptPreset {
    const char* name;
    const char* architecture;
    GptShape shape;
};

// GPT-2: Radford et al., 2019, table 2, with the parameter counts that the released models have. nanochat: derived
// from --depth. Llama: SmolLM 135M (Allal et al., 2024), in the vocabulary of GPT-2 if none is given.
extern const GptPreset kGptPresets[6];

struct ModelConfig {
    std::string model = "custom", architecture = "preset";
    int depth = 0, aspect_ratio = 64, depth_head_size = 128;
    int num_layers = 0, num_heads = 0, num_kv_heads = 0, channels = 0, head_channels = 0, mlp_channels = 0, seq_len = 0;
    int vocab_size = 0, mup_base_width = 0;
    std::vector<std::string> changes;  // of the architecture's fields; "preset": none

    ModelConfig();
    std::vector<Field> fields();
    std::string architecture_name() const;
    // An existing model, with a longer context if rotary-scaling = yarn and a rotary-factor are given: the positions
    // times the factor, and YaRN's own values of the rest. Else the model as it is.
    GptShape extended(GptShape shape) const;
    // Sets the sizes and parts that no flag gives to those of an existing model.
    void follow(const GptShape& shape);
    // The default recipe for this architecture (llmc/optim/recipe.h).
    std::string recipe() const;
    // The model's shape. `tokenizer_vocab_size`: of the data's tokenizer; 0: none. Throws an Error on contradictions.
    GptShape shape(int64_t tokenizer_vocab_size) const;
};

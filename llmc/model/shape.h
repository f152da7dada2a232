/*
What a model is: its sizes and its architecture. Presets have names; flags change parts of them, or make another.

  ModelConfig config;  ... parse_flags(config.fields(), ...)
  const GptShape shape = config.shape(V of the tokenizer);       presets filled in, contradictions found
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/flags.h"          // Field
#include "llmc/model/architecture.h"  // Architecture

// The vocabulary is padded to a multiple of this, so that the head's product has even rows; see cross_entropy.h.
inline constexpr int64_t kVocabularyMultiple = 128;

struct GptShape {
    int64_t num_layers, num_heads, channels;
    int64_t max_seq_len;
    int64_t vocab_size;        // V
    int64_t num_kv_heads = 0;  // NKV; 0: as many as heads
    int64_t mlp_channels = 0;  // F; 0: 4 C
    Architecture architecture = {};

    int64_t padded_vocab_size() const {  // Vp
        return (vocab_size + kVocabularyMultiple - 1) / kVocabularyMultiple * kVocabularyMultiple;
    }
    int64_t head_size() const { return channels / num_heads; }                         // HS
    int64_t kv_heads() const { return num_kv_heads > 0 ? num_kv_heads : num_heads; }   // NKV
    int64_t hidden() const { return mlp_channels > 0 ? mlp_channels : 4 * channels; }  // F
    int64_t hidden_rows() const {  // of the MLP's first matrix: SwiGLU has gates above
        return architecture.mlp == MlpKind::swiglu ? 2 * hidden() : hidden();
    }
    int64_t qkv_rows() const { return (num_heads + 2 * kv_heads()) * head_size(); }
    // Every second layer, and the last.
    bool has_value_embedding(int64_t layer) const {
        return architecture.value_embeddings && layer % 2 == (num_layers - 1) % 2;
    }
    // Backout takes a part of what comes out of this layer.
    int64_t backout_layer() const { return num_layers / 2; }
    // The same model, whether a size that follows from others is given or left open.
    bool operator==(const GptShape& s) const {
        return num_layers == s.num_layers && num_heads == s.num_heads && channels == s.channels &&
               max_seq_len == s.max_seq_len && vocab_size == s.vocab_size && kv_heads() == s.kv_heads() &&
               hidden() == s.hidden() && architecture == s.architecture;
    }
};

struct GptPreset {
    const char* name;
    const char* architecture;
    GptShape shape;
};

// GPT-2: Radford et al., 2019, table 2, with the parameter counts that the released models have. nanochat: --depth is
// its dial. Llama: SmolLM 135M (Allal et al., 2024), in the vocabulary of GPT-2 if none is given.
extern const GptPreset kGptPresets[6];

struct ModelConfig {
    std::string model = "custom", architecture = "preset";
    int depth = 0, aspect_ratio = 64, dial_head_size = 128;
    int num_layers = 0, num_heads = 0, num_kv_heads = 0, channels = 0, mlp_channels = 0, seq_len = 0, vocab_size = 0;
    std::vector<std::string> changes;  // of the architecture's fields; "preset": none

    ModelConfig();
    std::vector<Field> fields();
    std::string architecture_name() const;
    // Takes over what is not asked of a model that is there already.
    void follow(const GptShape& shape);
    // The recipe that models of this architecture were made with (llmc/optim/recipe.h).
    std::string recipe() const;
    // The model to make; `tokenizer_vocab_size` is that of the data, 0 if there is none.
    GptShape shape(int64_t tokenizer_vocab_size) const;
};

/*
What a model is: its shape. GPT-2's sizes are presets of it, and any other shape can be asked for.

  ModelConfig config;  ... parse_flags(config.fields(), ...)
  const GptShape shape = config.shape(V of the tokenizer);       presets filled in, contradictions found
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/check.h"  // require
#include "llmc/base/flags.h"  // Field

// The vocabulary is padded to a multiple of this, so that the head's product has even rows; see cross_entropy.h.
inline constexpr int64_t kVocabularyMultiple = 128;

struct GptShape {
    int64_t num_layers, num_heads, channels;
    int64_t max_seq_len;  // learned positions
    int64_t vocab_size;   // V

    int64_t padded_vocab_size() const {  // Vp
        return (vocab_size + kVocabularyMultiple - 1) / kVocabularyMultiple * kVocabularyMultiple;
    }
    int64_t head_size() const { return channels / num_heads; }  // HS
    bool operator==(const GptShape&) const = default;
};

inline constexpr float kLayernormEps = 1e-5f;  // GPT-2's
inline constexpr int64_t kMaxHeadSize = 256;   // what attention's tiles are made for

struct GptPreset {
    const char* name;
    GptShape shape;
};

// Radford et al., 2019, table 2, with the parameter counts that the released models have.
inline constexpr GptPreset kGptPresets[] = {
    {"gpt2-124M", {12, 12, 768, 1024, 50257}},
    {"gpt2-355M", {24, 16, 1024, 1024, 50257}},
    {"gpt2-774M", {36, 20, 1280, 1024, 50257}},
    {"gpt2-1558M", {48, 25, 1600, 1024, 50257}},
};

struct ModelConfig {
    std::string model = "custom";
    int num_layers = 0, num_heads = 0, channels = 0, seq_len = 0, vocab_size = 0;

    std::vector<Field> fields() {
        std::vector<std::string> names = {"custom"};
        for (const GptPreset& preset : kGptPresets) names.push_back(preset.name);
        return {
            {"model", "model", &model, "a preset; the flags below override parts of it", names},
            {"model", "num-layers", &num_layers, "transformer blocks (0: the preset's; custom: 4)", {}, 0, 1000},
            {"model", "num-heads", &num_heads, "attention heads (0: the preset's; custom: 4)", {}, 0, 1000},
            {"model", "channels", &channels, "width C (0: the preset's; custom: 128)", {}, 0, 1 << 20},
            {"model", "seq-len", &seq_len, "tokens per sequence T (0: the preset's; custom: 64)", {}, 0, 1 << 20},
            {"model", "vocab-size", &vocab_size, "V (0: the tokenizer's)", {}, 0, 1 << 20},
        };
    }

    // The model to make; `tokenizer_vocab_size` is that of the data, 0 if there is none.
    GptShape shape(int64_t tokenizer_vocab_size) const {
        GptShape shape{4, 4, 128, 64, 0};
        const bool custom = model == "custom";
        for (const GptPreset& preset : kGptPresets)
            if (model == preset.name) shape = preset.shape;
        if (num_layers) shape.num_layers = num_layers;
        if (num_heads) shape.num_heads = num_heads;
        if (channels) shape.channels = channels;
        if (seq_len && custom)
            shape.max_seq_len = seq_len;  // a preset keeps its positions and may train on shorter ones
        if (vocab_size)
            shape.vocab_size = vocab_size;
        else if (custom)
            shape.vocab_size = tokenizer_vocab_size;
        require(shape.vocab_size > 0,
                "the data has no tokenizer.json beside it that gives the vocabulary's size: give --vocab-size");
        require(tokenizer_vocab_size <= shape.vocab_size,
                "the data's tokenizer has %ld symbols, but the model a vocabulary of %ld: raise --vocab-size",
                tokenizer_vocab_size, shape.vocab_size);
        require(shape.channels % shape.num_heads == 0,
                "--channels %ld is not a multiple of --num-heads %ld: the nearest are %ld and %ld", shape.channels,
                shape.num_heads, shape.channels / shape.num_heads * shape.num_heads,
                (shape.channels / shape.num_heads + 1) * shape.num_heads);
        require(shape.head_size() <= kMaxHeadSize,
                "heads of %ld channels: attention takes at most %ld, so raise --num-heads or lower --channels",
                shape.head_size(), kMaxHeadSize);
        require(seq_len <= shape.max_seq_len, "--seq-len %d is above the %ld positions of --model %s", seq_len,
                shape.max_seq_len, model.c_str());
        return shape;
    }
};

/*
config.json: the model's shape and architecture, in the terms of Hugging Face's transformers where it has them.

  family   model_type   the names and layout of its weights (stored_model.h)
  gpt2     gpt2         GPT2LMHeadModel
  llama    llama        LlamaForCausalLM and its successors, which differ in a switch or two: mistral (windows),
                        ministral (windows in some layers), qwen2 (biases of queries, keys and values), qwen3 (QK-norm
                        with gains), smollm3 (layers that do not rotate)
  nanochat nanochat     NanoChatForCausalLM: nanochat of October 2025, the version in transformers
  anvil    anvil        Anvil's: sizes as in GPT-2's config, n_kv_head, n_inner, and every part of the architecture by
                        its flag's name

A model is written as the family that most other programs support. gpt2: any GPT-2, with any number of channels, layers,
heads and hidden channels of the MLP, any epsilon, and a head that is tied or not. llama: any Llama without other
biases, with any head size, with plain rotary positions or those scaled as in Llama 3.1, and with at most one of its
successors' switches. nanochat: a nanochat without value embeddings, lambdas, smear, backout and windows, whose queries
and keys are not scaled and whose norms have one epsilon. All other models: anvil; an export includes the code for
transformers. For a feature of transformers' configs that Anvil does not support (an exact GELU, YaRN's positions, ...)
and for an unknown field, also of the family anvil, reading throws an Error that names the field.
dev/interop/check_models.py changes every field that transformers reads, one at a time and several at random.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>
#include "llmc/base/tensor.h"  // DType
#include "llmc/model/shape.h"  // GptShape

enum class ModelFamily { gpt2, llama, nanochat, anvil };

// The family as which a model is written.
ModelFamily family_of(const GptShape& shape);

// The model_type in config.json; in the family llama that of the matching successor.
const char* model_type_of(const GptShape& shape);

// Advice for a model that an export's format cannot represent.
const char* export_advice(const GptShape& shape);

// The ids of tokens that begin a text, end it (several may), and fill rows. Empty: there is none.
struct TokenIds {
    std::vector<int64_t> begin, end, pad;
};

// The text of config.json. `code`: the Python module in the same folder, without .py, with which transformers loads a
// model of the family anvil; empty: none.
std::string model_config(const GptShape& shape, DType dtype, const TokenIds& tokens = {}, const std::string& code = "");

struct ConfiguredModel {
    GptShape shape;
    ModelFamily family;  // according to the file, which an older program may have written
};
// `where` names the text in errors: the file's path.
ConfiguredModel read_model_config(const std::string& text, const std::string& where);

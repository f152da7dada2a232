/*
config.json: the model's shape and architecture, in the terms of Hugging Face's transformers where they exist.

  family   model_type   its weights' names and layout (stored_model.h)
  gpt2     gpt2         GPT2LMHeadModel
  llama    llama        LlamaForCausalLM, and its successors, which differ in a switch or two: mistral (windows), qwen2
                        (biases of queries, keys and values), qwen3 (QK-norm with gains), smollm3 (layers that do not
                        rotate)
  nanochat nanochat     NanoChatForCausalLM: nanochat of October 2025, which is what transformers has
  anvil    anvil        ours: sizes as GPT-2's config has them, n_kv_head, n_inner, and every part of the architecture
                        by its flag's name

A model is written in the form that most other programs understand: any GPT-2 (every number of channels, layers, heads,
MLP's hidden channels and epsilon; head tied or not), any Llama without other biases and whatever its heads' size,
rotary positions plain or as Llama 3.1 stretches them, with at most one of the switches of its successors, a nanochat
without value embeddings, lambdas, smear, backout and windows, whose queries and keys are not scaled and whose norms
have one epsilon; else as ours, for which transformers gets the code with an export. A feature of transformers' configs
that Anvil does not support (an exact GELU, YaRN's positions, ...) is an Error that names the field, and so is an
unknown field.
*/
#pragma once
#include <cstdint>
#include <string>
#include "llmc/base/dtype.h"   // DType
#include "llmc/model/shape.h"  // GptShape

enum class ModelFamily { gpt2, llama, nanochat, anvil };

// The family that a model is written as.
ModelFamily family_of(const GptShape& shape);

// The model_type in config.json; for the family llama, the matching successor's.
const char* model_type_of(const GptShape& shape);

// What to do with a model that an export's format cannot represent.
const char* export_advice(const GptShape& shape);

// `end_token` ends a document; -1: unknown. `code`: the Python module beside it, without .py, with which transformers
// loads a model of the family anvil; empty: none.
std::string model_config(const GptShape& shape, DType dtype, int64_t end_token = -1, const std::string& code = "");

struct ConfiguredModel {
    GptShape shape;
    ModelFamily family;  // as the file says, which an older program may have written
};
// `where` names the text in errors: the path of the file.
ConfiguredModel read_model_config(const std::string& text, const std::string& where);

/*
Writes a model for other programs: ./train_gpt export --format FORMAT --init-from MODEL --out-dir OUT

  hf      OUT/model.safetensors, config.json, tokenizer.json, tokenizer_config.json, generation_config.json: a folder
          that from_pretrained() of transformers loads; of a model that it has no class for (model_config.h) with
          modeling_anvil.py, the class, and trust_remote_code=True
  llmc    OUT/model.bin, llm.c's (GPT-2)
  gguf    OUT/model.gguf, for llama.cpp and what is built on it (GPT-2), with the tokenizer if it is byte-level

Weights keep their data type, unless --dtype says otherwise.
*/
#pragma once
#include <string>
#include "llmc/base/dtype.h"            // DType
#include "llmc/interop/stored_model.h"  // StoredModel

// Writes the folder, completely or not at all. Returns a line or two that say what is in it.
std::string export_model(const StoredModel& model, const std::string& format, const std::string& out_dir, DType dtype);

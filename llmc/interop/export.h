/*
Writes a model for other programs: ./train_gpt export --format FORMAT --init-from MODEL --out-dir OUT

  hf      OUT/model.safetensors, config.json, tokenizer.json and the files about its tokens (tokenizer_export.h): a
          folder that from_pretrained() of transformers loads. If transformers has no class for the model
          (model_config.h), also modeling_anvil.py with the class; that takes trust_remote_code=True
  llmc    OUT/model.bin of llm.c (GPT-2)
  gguf    OUT/model.gguf for llama.cpp and programs based on it (gguf.h), with the tokenizer if it is byte-level

  peft    OUT/adapter_model.safetensors, adapter_config.json: the adapter alone (adapter.h). The other formats have it
          merged into its base

Weights keep their data type unless --dtype gives another one.
*/
#pragma once
#include <string>
#include "llmc/base/tensor.h"           // DType
#include "llmc/interop/stored_model.h"  // StoredModel

// Writes the folder atomically. Returns a line or two that describe its content.
std::string export_model(const StoredModel& model, const std::string& format, const std::string& out_dir, DType dtype);

/*
GGUF, version 3, the format of llama.cpp (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): a GPT-2, Llama,
Qwen2, Qwen3 or SmolLM3 with all that is needed to run it, in one file. All numbers are little-endian. A string is a
uint64 with its length, and its bytes.

  "GGUF"  uint32 3  uint64 tensors  uint64 keys
  each key:     name, uint32 type, value                            gpt2.block_count = 12, tokenizer.ggml.tokens = [...]
  each tensor:  name, uint32 rank, its dimensions, fastest first, uint32 type, uint64 offset from the first data
  the data, each tensor at a multiple of 32 bytes

Matrices are (out, in) as in Anvil, in fp32 or bf16; gains, biases and positions are always in fp32. A tied head is
omitted. The query and key rows of a Llama and a SmolLM3 are permuted, because llama.cpp rotates other pairs of
channels. The scaling of Llama 3.1's positions is a tensor of divisors of the frequencies.
*/
#pragma once
#include <string>
#include "llmc/base/tensor.h"               // DType
#include "llmc/interop/stored_model.h"      // StoredModel
#include "llmc/interop/tokenizer_export.h"  // ByteLevelTokenizer, TokenFacts

// Without tokens the file says that it has no vocabulary. Throws an Error if llama.cpp does not support the model.
void write_gguf(const std::string& path, const StoredModel& model, DType dtype, const ByteLevelTokenizer& tokenizer,
                const TokenFacts& facts);

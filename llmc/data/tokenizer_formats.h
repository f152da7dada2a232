/*
Files of tokenizers but tokenizer.json (llmc/data/tokenizer_json.cpp). `text` is a file's content, `where` its name.

  vocab.bpe       GPT-2's: "#version: 0.2", then the two tokens of a merge a line, in GPT-2's spelling of bytes. The
                  order of the merges gives all ids: the 256 bytes in the order of their spellings, a token a merge,
then
                  <|endoftext|>.
  ranks           tiktoken's: the bytes of a token in base64 and its rank, which is its id, a line. Split pattern and
                  special tokens lie beside it in PATH.json, {"pattern": "gpt4", "special_tokens": {"<|endoftext|>":
9}}; without that file those of GPT-2 (50256 ranks) and of GPT-4 (100256 ranks) are known. tokenizer.bin   llm.c's: 256
int32 (20240328, version 1 or 2, number of tokens, id of <|endoftext|> from version 2 on), then a length byte and the
bytes of each token. The merges are found from the order of the ids.
*/
#pragma once
#include <string>
#include <string_view>
#include "llmc/data/tokenizer.h"  // Tokenizer

// Whichever of them the text is.
Tokenizer read_tokenizer(std::string_view text, const std::string& sidecar, const std::string& where);

bool is_vocab_bpe(std::string_view text);
bool is_ranks(std::string_view text);
bool is_llmc_tokenizer(std::string_view text);

Tokenizer read_vocab_bpe(std::string_view text, const std::string& where);
// `sidecar` is the content of PATH.json; "" if there is none.
Tokenizer read_ranks(std::string_view text, const std::string& sidecar, const std::string& where);
Tokenizer read_llmc_tokenizer(std::string_view text, const std::string& where);
Tokenizer read_tokenizer_json(std::string_view text, const std::string& where);

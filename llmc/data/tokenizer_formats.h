/*
Readers of tokenizer files other than tokenizer.json (llmc/data/tokenizer_json.cpp). `text` is the file's content,
`where` its name for error messages.

  vocab.bpe       GPT-2's: "#version: 0.2", then one merge per line, as two tokens in GPT-2's spelling of bytes. The
                  order of the merges determines all ids: the 256 bytes in the order of their spellings, one token per
                  merge, then <|endoftext|>.
  ranks           tiktoken's: per line a token's bytes in base64 and its rank, which is its id. PATH.json beside it has
                  the split pattern and the special tokens: {"pattern": "gpt4", "special_tokens": {"<|eot|>": 9}}.
                  Without that file, those of GPT-2 (50256 ranks) and GPT-4 (100256 ranks) are used.
  tokenizer.bin   llm.c's: 256 int32 (20240328, version 1 or 2, number of tokens; from version 2 on the id of
                  <|endoftext|>), then a length byte and the bytes of each token. The merges are recovered from the
                  order of the ids.
*/
#pragma once
#include <string>
#include <string_view>
#include "llmc/data/tokenizer.h"  // Tokenizer

// Detects which of these formats the text has. `sidecar`: as for read_ranks().
Tokenizer read_tokenizer(std::string_view text, const std::string& sidecar, const std::string& where);

bool is_vocab_bpe(std::string_view text);
bool is_ranks(std::string_view text);
bool is_llmc_tokenizer(std::string_view text);

// Each of these readers throws an Error that begins with `where` if the text does not have the format.
Tokenizer read_vocab_bpe(std::string_view text, const std::string& where);
// `sidecar` is the content of PATH.json; "" if there is none.
Tokenizer read_ranks(std::string_view text, const std::string& sidecar, const std::string& where);
Tokenizer read_llmc_tokenizer(std::string_view text, const std::string& where);
Tokenizer read_tokenizer_json(std::string_view text, const std::string& where);

/*
The files beside a tokenizer.json (the format of Hugging Face's tokenizers) that tell other programs how to use it. What
a model's folder says of its tokens is kept in checkpoints and exports; what it does not say is guessed.

  const TokenFacts facts = read_token_facts("hf/Llama-3.2-1B-Instruct", tokenizer_json, max_tokens);
  model_config(shape, dtype, facts.ids);                    begin, end and pad tokens as in config.json
  for (const auto& [name, text] : facts.files) ...          tokenizer_config.json, generation_config.json, ...
*/
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>
#include "llmc/interop/model_config.h"  // TokenIds

// The token that ends or begins documents, such as <|endoftext|>, in a tokenizer.json. id -1: there is none.
struct EndToken {
    int64_t id = -1;
    std::string text;
};
EndToken find_end_token(const std::string& tokenizer_json);

struct TokenFacts {
    TokenIds ids;  // config.json's; what it leaves out is that of tokenizer_config.json
    // By name: tokenizer.json; tokenizer_config.json and generation_config.json, as they are or else made;
    // special_tokens_map.json and chat_template.jinja if they exist.
    std::map<std::string, std::string> files;
    std::string chat_template;  // in either file; empty: there is none
    int64_t text_end = -1;      // of tokenizer_config.json, which may differ from config.json's; -1: none
};
// Of a model's folder, or, if that is empty, of a tokenizer alone. Without a tokenizer there are no files.
// `chat_template`: one that replaces the folder's, and with it what ends an answer; empty: none does.
TokenFacts read_token_facts(const std::string& folder, const std::string& tokenizer_json, int64_t max_tokens,
                            const std::string& chat_template = "");

// Whether two tokenizer.json have the same added tokens, special or not.
bool same_added_tokens(const std::string& a, const std::string& b);

// Every token that ends an answer or a text, in the order of generation_config.json.
std::vector<int64_t> all_ends(const TokenFacts& facts);

// The text of tokenizer_config.json, with which AutoTokenizer of transformers loads the tokenizer.
std::string tokenizer_config(const std::string& tokenizer_json, int64_t max_tokens);

// The token that ends an answer in a chat template; -1: none. Tokenizers of base models have such tokens, too, but no
// template with them.
int64_t find_end_of_answer(const std::string& tokenizer_json, const std::string& chat_template);

// A byte-level BPE for GGUF: bytes in GPT-2's spelling; the id is the index.
struct ByteLevelTokenizer {
    struct Token {
        std::string text;
        bool is_added = false, is_special = false;  // an added one that is not special is made from any text
    };
    std::vector<Token> tokens;  // empty: the tokenizer is of another kind; see `why`
    std::vector<std::string> merges;
    std::string pre = "gpt-2";  // how text is split, by llama.cpp's name
    int64_t begin_token = -1;   // put before every text; -1: none
    std::string why;

    void put(int64_t id, const Token& token) {
        if (size_t(id) >= tokens.size()) tokens.resize(size_t(id) + 1);
        tokens[size_t(id)] = token;
    }
};
ByteLevelTokenizer read_byte_level(const std::string& tokenizer_json);

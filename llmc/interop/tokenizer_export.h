/*
The files beside a tokenizer.json (the format of Hugging Face's tokenizers) that tell other programs how to use it.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>

// A token that ends or begins documents, such as <|endoftext|>, from a tokenizer.json's text. id -1: it has none.
struct EndToken {
    int64_t id = -1;
    std::string text;
};
EndToken find_end_token(const std::string& tokenizer_json);

// tokenizer_config.json, with which AutoTokenizer of transformers loads the tokenizer.
std::string tokenizer_config(const std::string& tokenizer_json, int64_t max_tokens);

// Of a tokenizer with nanochat's special tokens: the same with its template for conversations (llmc/data/chat.h), in
// transformers' language, unless it has one; and the token that ends an answer, -1 of other tokenizers: of ChatML's and
// Llama 3's, which those of base models have as well, only where there is a template beside it.
std::string with_chat_template(const std::string& config, const std::string& tokenizer_json);
int64_t find_end_of_answer(const std::string& tokenizer_json, bool has_template = false);

// A byte-level BPE for GGUF: bytes in GPT-2's spelling; the id is the index.
struct ByteLevelTokenizer {
    struct Token {
        std::string text;
        bool is_special = false;
    };
    std::vector<Token> tokens;  // empty: it is of another kind, which `why` names
    std::vector<std::string> merges;
    std::string pre = "gpt-2";  // how text is cut, in llama.cpp's words
    int64_t begin_token = -1;   // put before every text; -1: none
    std::string why;
};
ByteLevelTokenizer read_byte_level(const std::string& tokenizer_json);

/*
The files beside a tokenizer.json (the format of Hugging Face's tokenizers) that tell other programs how to use it.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>

// The token that ends or begins documents, such as <|endoftext|>, in a tokenizer.json. id -1: there is none.
struct EndToken {
    int64_t id = -1;
    std::string text;
};
EndToken find_end_token(const std::string& tokenizer_json);

// The text of tokenizer_config.json, with which AutoTokenizer of transformers loads the tokenizer.
std::string tokenizer_config(const std::string& tokenizer_json, int64_t max_tokens);

// Adds nanochat's chat template (llmc/data/chat.h) in Jinja to a tokenizer_config.json, if the tokenizer has nanochat's
// special tokens and the file has no template. find_end_of_answer(): the token that ends an answer; -1: none. ChatML's
// and Llama 3's count only with `has_template`, because tokenizers of base models have them, too.
std::string with_chat_template(const std::string& config, const std::string& tokenizer_json);
int64_t find_end_of_answer(const std::string& tokenizer_json, bool has_template = false);

// A byte-level BPE for GGUF: bytes in GPT-2's spelling; the id is the index.
struct ByteLevelTokenizer {
    struct Token {
        std::string text;
        bool is_special = false;
    };
    std::vector<Token> tokens;  // empty: the tokenizer is of another kind; see `why`
    std::vector<std::string> merges;
    std::string pre = "gpt-2";  // how text is split, by llama.cpp's name
    int64_t begin_token = -1;   // put before every text; -1: none
    std::string why;
};
ByteLevelTokenizer read_byte_level(const std::string& tokenizer_json);

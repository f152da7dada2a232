/*
Tokenizers: text to ids and back. There are two, behind one struct:

  char   one id per Unicode code point that occurs in the training text, in sorted order (nanoGPT's shakespeare_char:
         V = 65 for tiny Shakespeare). A symbol it has not seen is an error. No document separator.
  byte   V = 256, the id is the byte. Takes any file whatsoever. Byte 0 separates documents.

  Symbols symbols;                                          Tokenizer t = byte_tokenizer();
  symbols.add(text, "input.txt");                           t = load_tokenizer("data/x/tokenizer.json");
  Tokenizer t = char_tokenizer(symbols);                    t.decode(t.encode("Once")) == "Once"

On disk a tokenizer is a `tokenizer.json` that Hugging Face's `tokenizers` loads: both are a BPE without merges, one
over code points, the other over bytes in GPT-2's byte-to-unicode spelling.
*/
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

enum class TokenizerKind { chars, bytes };

struct Tokenizer {
    TokenizerKind kind = TokenizerKind::bytes;
    std::vector<std::string> symbols;       // symbols[id]: the bytes that the id stands for
    std::vector<int32_t> id_of_code_point;  // chars only; -1: not in the vocabulary, as is all beyond the end

    int vocab_size() const { return int(symbols.size()); }
    int separator() const { return kind == TokenizerKind::bytes ? 0 : -1; }  // id between documents; -1: none
    const char* name() const { return kind == TokenizerKind::bytes ? "byte" : "char"; }

    // An error if the text has a symbol that the vocabulary lacks; `where` is how messages call the text.
    std::vector<int32_t> encode(std::string_view text, const std::string& where = "the text") const;

    // The bytes of the ids, one after the other; of bytes, not always UTF-8. An error if an id is not in [0, V).
    std::string decode(const std::vector<int32_t>& ids) const;
};

Tokenizer byte_tokenizer();

// The code points seen so far, to make a char tokenizer of.
struct Symbols {
    std::vector<bool> seen;
    // Returns the number of code points. Text that is not UTF-8 is an error that names `where` and the offset in bytes.
    int64_t add(std::string_view text, const std::string& where);
};

Tokenizer char_tokenizer(const Symbols& symbols);

// tokenizer.json; written whole or not at all. Loading any other kind of tokenizer is an error that says so.
void save_tokenizer(const Tokenizer& tokenizer, const std::string& path);
Tokenizer load_tokenizer(const std::string& path);

/*
Tokenizers: text to ids and back. There are three kinds, with one interface:

  char   one id per Unicode code point that occurs in the training text, in sorted order (nanoGPT's shakespeare_char:
         V = 65 for tiny Shakespeare). A symbol it has not seen is an error. No document separator.
  byte   V = 256, the id is the byte. Takes any file whatsoever. Byte 0 separates documents.
  bpe    byte pairs merged in the order in which they were learned (llmc/data/bpe.h): GPT-2's, one that was trained here
         (llmc/data/bpe_training.h), or another's; also pairs of characters, as SentencePiece's are (Llama 2, Mistral),
         whose text begins with a space. Takes any bytes, UTF-8 or not. A special token separates documents.

  Symbols symbols;                                          Tokenizer t = byte_tokenizer();
  symbols.add(text, "input.txt");                           t = load_tokenizer("data/x/tokenizer.json");
  Tokenizer t = char_tokenizer(symbols);                    t.decode(t.encode("Once")) == "Once"

  PieceCounts counts("nanochat");                           t = load_tokenizer("vocab.bpe");
  counts.add(text);                                         save_tokenizer(t, "tokenizer.json");
  Tokenizer t = train_bpe(counts, {.vocab_size = 32768});   save_ranks(t, "gpt2.tiktoken");

On disk a tokenizer is a `tokenizer.json` that Hugging Face's `tokenizers` loads: all are a BPE, of code points without
merges (char), or of bytes in GPT-2's byte-to-unicode spelling without (byte) or with them. Other files are read too.
*/
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

enum class TokenizerKind { chars, bytes, bpe };

struct Bpe;

struct Tokenizer {
    TokenizerKind kind = TokenizerKind::bytes;
    std::vector<std::string> symbols;       // symbols[id]: the bytes that the id stands for; "": an id that is not used
    std::vector<int32_t> id_of_code_point;  // chars only; -1: not in the vocabulary, as is all beyond the end
    std::shared_ptr<const Bpe> bpe = nullptr;  // bpe only; shared, since it never changes

    int vocab_size() const { return int(symbols.size()); }
    int separator() const;  // id between documents; -1: none
    // How many bytes of text each id stands for; 0 for the separator of documents and other special tokens.
    std::vector<int32_t> token_bytes() const;
    const char* name() const;

    // Text never becomes special tokens: what looks like one is split like any other text. Throws if the text has a
    // symbol that the vocabulary lacks; `where` names the text in messages. The ids are the same at any number of
    // threads; 0: all cores, for a text that is large enough. `is_beginning`: some tokenizers put a space before a
    // text, but not before its continuation.
    std::vector<int32_t> encode(std::string_view text, const std::string& where = "the text", int threads = 0,
                                bool is_beginning = true) const;

    // The first place from `at` on where text may be cut without changing its ids: encode(a + b) is encode(a) followed
    // by encode(b) with is_beginning = false. The end of the text if there is none.
    size_t cut(std::string_view text, size_t at) const;

    // The bytes of the ids, concatenated; not always UTF-8. Throws if an id is not in [0, V).
    std::string decode(const std::vector<int32_t>& ids) const;
};

Tokenizer byte_tokenizer();

// The code points seen so far, for a char tokenizer.
struct Symbols {
    std::vector<bool> seen;
    // Returns the number of code points. Throws on text that is not UTF-8, naming `where` and the offset in bytes.
    int64_t add(std::string_view text, const std::string& where);
};

Tokenizer char_tokenizer(const Symbols& symbols);

// Writes tokenizer.json, completely or not at all.
void save_tokenizer(const Tokenizer& tokenizer, const std::string& path);
std::string tokenizer_json(const Tokenizer& tokenizer);

// Writes tiktoken's file of ranks, one "base64 rank" per line, and PATH.json with what that leaves out: split pattern
// and special tokens. bpe only.
void save_ranks(const Tokenizer& tokenizer, const std::string& path);

// The format is detected from the content: a tokenizer.json, GPT-2's vocab.bpe, tiktoken's ranks, llm.c's
// tokenizer.bin.
Tokenizer load_tokenizer(const std::string& path);

// What a checkpoint stores of the tokenizer loaded from `path`: the file itself if it is a tokenizer.json, else one
// made from it; "" if that is impossible.
std::string tokenizer_json_of(const Tokenizer& tokenizer, const std::string& path);

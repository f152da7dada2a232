/*
Tokenizers: text to ids and back. There are three kinds with one interface:

  char   one id per Unicode code point of the training text, in sorted order (nanoGPT's shakespeare_char: V = 65 for
         tiny Shakespeare). Other code points are an error. No document separator.
  byte   V = 256, the id is the byte. Accepts any file. Byte 0 separates documents.
  bpe    byte pairs merged in the order in which they were learned (llmc/data/bpe.h): GPT-2's, one trained by Anvil
         (llmc/data/bpe_training.h), or another program's; also pairs of characters, as in SentencePiece (Llama 2,
         Mistral), where text begins with a space. Accepts any bytes, UTF-8 or not. A special token separates documents.

  Symbols symbols;                                          Tokenizer t = byte_tokenizer();
  symbols.add(text, "input.txt");                           t = load_tokenizer("data/x/tokenizer.json");
  Tokenizer t = char_tokenizer(symbols);                    t.decode(t.encode("Once")) == "Once"

  PieceCounts counts("nanochat");                           t = load_tokenizer("vocab.bpe");
  counts.add(text);                                         save_tokenizer(t, "tokenizer.json");
  Tokenizer t = train_bpe(counts, {.vocab_size = 32768});   save_ranks(t, "gpt2.tiktoken");

On disk a tokenizer is a `tokenizer.json` that Hugging Face's `tokenizers` loads. All three kinds are stored as a BPE:
char has code points and no merges, byte and bpe have bytes in GPT-2's byte-to-unicode spelling, bpe with merges. Other
file formats can be read, too.
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
    std::vector<std::string> symbols;          // the bytes of each id; "": the id is not used
    std::vector<int32_t> id_of_code_point;     // chars only; -1 or beyond the end: not in the vocabulary
    std::shared_ptr<const Bpe> bpe = nullptr;  // bpe only; immutable, so it can be shared

    int vocab_size() const { return int(symbols.size()); }
    int separator() const;  // the id between documents; -1: none
    // The number of text bytes of each id; 0 for the document separator and other special tokens.
    std::vector<int32_t> token_bytes() const;
    const char* name() const;

    // Text never becomes special tokens: a special token's spelling is split like any other text. It does become the
    // added tokens that are not special (llmc/data/added_tokens.h). Throws if the text
    // has a symbol that is not in the vocabulary; `where` names the text in errors. The ids are the same at any number
    // of threads; 0: all cores if the text is large enough. `is_beginning`: some tokenizers put a space before a text,
    // but not before its continuation.
    std::vector<int32_t> encode(std::string_view text, const std::string& where = "the text", int threads = 0,
                                bool is_beginning = true) const;

    // The first position from `at` on where text may be cut without changing its ids: encode(a + b) is encode(a)
    // followed by encode(b) with is_beginning = false. The end of the text if there is none.
    size_t cut(std::string_view text, size_t at) const;

    // The bytes of the ids, concatenated; not always valid UTF-8. Throws if an id is not in [0, V).
    std::string decode(const std::vector<int32_t>& ids) const;
};

// The tokenizer whose ids are bytes.
Tokenizer byte_tokenizer();

// The code points of a text, for a char tokenizer.
struct Symbols {
    std::vector<bool> seen;
    // Adds a text and returns its number of code points. Throws on text that is not UTF-8, naming `where` and the byte
    // offset.
    int64_t add(std::string_view text, const std::string& where);
};

// A tokenizer with one id per code point seen, in ascending order.
Tokenizer char_tokenizer(const Symbols& symbols);

// Writes tokenizer.json atomically.
void save_tokenizer(const Tokenizer& tokenizer, const std::string& path);
// The content of that file. Throws an Error if the merges are not known.
std::string tokenizer_json(const Tokenizer& tokenizer);

// Writes tiktoken's file of ranks, one "base64 rank" per line, and PATH.json with the split pattern and the special
// tokens, which the former lacks. bpe only.
void save_ranks(const Tokenizer& tokenizer, const std::string& path);

// Detects the format from the content: tokenizer.json, GPT-2's vocab.bpe, tiktoken's ranks or llm.c's tokenizer.bin.
Tokenizer load_tokenizer(const std::string& path);

// The tokenizer.json that a checkpoint stores for the tokenizer from `path`: the file itself if it is a tokenizer.json,
// else a conversion; "" if that is impossible.
std::string tokenizer_json_of(const Tokenizer& tokenizer, const std::string& path);

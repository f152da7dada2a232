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
    // How many bytes of text each id stands for: none, if it separates documents or is another special token.
    std::vector<int32_t> token_bytes() const;
    const char* name() const;

    // Text never becomes special tokens: what looks like one is split like any other text. An error if the text has a
    // symbol that the vocabulary lacks; `where` is how messages call the text. The ids are the same at any number of
    // threads; 0: as many as there are, for a text that is large enough. `is_beginning`: some tokenizers put a space
    // before a text, and not before its continuation.
    std::vector<int32_t> encode(std::string_view text, const std::string& where = "the text", int threads = 0,
                                bool is_beginning = true) const;

    // The first place from `at` on where text may be cut without a change of its ids: encode(a + b) is encode(a) and
    // then encode(b), no beginning. The end of the text if there is none before.
    size_t cut(std::string_view text, size_t at) const;

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

// tokenizer.json; written whole or not at all.
void save_tokenizer(const Tokenizer& tokenizer, const std::string& path);
std::string tokenizer_json(const Tokenizer& tokenizer);

// tiktoken's file of ranks, "base64 rank" a line, and PATH.json with what it leaves out: split pattern and special
// tokens. bpe only.
void save_ranks(const Tokenizer& tokenizer, const std::string& path);

// What the file is, its content tells: a tokenizer.json, GPT-2's vocab.bpe, tiktoken's ranks, llm.c's tokenizer.bin.
Tokenizer load_tokenizer(const std::string& path);

// What a checkpoint keeps of the tokenizer that was loaded from `path`: the file itself if it is a tokenizer.json, else
// one made of it; "" if it cannot be made.
std::string tokenizer_json_of(const Tokenizer& tokenizer, const std::string& path);

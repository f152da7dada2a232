/*
Learning a BPE (llmc/data/bpe.h) from text. In each step the most frequent pair of adjacent tokens becomes a new token;
of several the one with the smallest ids, compared left id first. Ids: the 256 bytes, one token per merge, the special
tokens. These are the rules of nanochat's rustbpe, and the merges are identical to its.

  PieceCounts counts("nanochat");                        the distinct pieces of the text, and how often each occurs
  for (document : corpus) counts.add(document);          or one PieceCounts a thread, and counts.add(other)
  Tokenizer t = train_bpe(counts, {.vocab_size = 32768});

All distinct pieces are contiguous in memory, and each pair knows its places, so the cost of a merge is proportional to
what it changes, for pieces of any length. The order in which text was added does not matter. Memory: 17 bytes per byte
of distinct pieces, and as many again for pairs.
*/
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "llmc/data/split.h"      // SplitPattern
#include "llmc/data/tokenizer.h"  // Tokenizer

class PieceCounts {
public:
    explicit PieceCounts(const std::string& pattern);  // its name; an error if there is none such
    void add(std::string_view document);               // no piece goes on in the next
    void add(const PieceCounts& other);                // of the same pattern

    SplitPattern pattern() const { return pattern_; }
    size_t size() const { return pieces_.size(); }
    std::string_view piece(size_t i) const {
        return std::string_view(bytes_).substr(pieces_[i].begin, pieces_[i].bytes);
    }
    int64_t count(size_t i) const { return pieces_[i].count; }

private:
    struct Piece {
        size_t begin, bytes;
        int64_t count;
        size_t hash;
    };
    void add(std::string_view piece, int64_t count);
    void grow();

    SplitPattern pattern_;
    std::string bytes_;
    std::vector<Piece> pieces_;
    std::vector<uint32_t> table_;  // by hash: the number of a piece, or kEmpty
};

// nanochat's special tokens: the first separates documents, the others are for conversations.
std::vector<std::string> nanochat_special_tokens();

struct BpeTraining {
    int vocab_size = 32768;  // all tokens, the special ones included
    std::vector<std::string> special_tokens = nanochat_special_tokens();
};

// The vocabulary is smaller than requested if the text has no more pairs to merge.
Tokenizer train_bpe(const PieceCounts& counts, const BpeTraining& config = {});

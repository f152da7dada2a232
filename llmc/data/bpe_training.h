/*
Learns a BPE (llmc/data/bpe.h) from text. In each step the most frequent pair of adjacent tokens becomes a new token. Of
equally frequent pairs the one with the smallest left id is taken, then the one with the smallest right id. Ids: the 256
bytes, one token per merge, the special tokens. These are the rules of nanochat's rustbpe, and the merges are the same.

  PieceCounts counts("nanochat");                        the distinct pieces of the text and their frequencies
  for (document : corpus) counts.add(document);          or one PieceCounts per thread and counts.add(other)
  Tokenizer t = train_bpe(counts, {.vocab_size = 32768});

All distinct pieces are contiguous in memory, and each pair has a list of its positions, so the cost of a merge is
proportional to the number of tokens it changes, for pieces of any length. The result does not depend on the order of
the text. Memory: 17 bytes per byte of distinct pieces, and about as much for the pairs.
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
    explicit PieceCounts(const std::string& pattern);  // the pattern's name; an Error if it is unknown
    void add(std::string_view document);               // no piece spans two documents
    void add(const PieceCounts& other);                // must have the same pattern

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
    std::vector<uint32_t> table_;  // a hash table of indices into pieces_, or kEmpty
};

// nanochat's special tokens: the first one separates documents, the others are for conversations.
std::vector<std::string> nanochat_special_tokens();

struct BpeTraining {
    int vocab_size = 32768;  // all tokens, the special ones included
    std::vector<std::string> special_tokens = nanochat_special_tokens();
};

// The vocabulary is smaller than requested if no pairs are left to merge.
Tokenizer train_bpe(const PieceCounts& counts, const BpeTraining& config = {});

/*
Byte-pair encoding (Sennrich et al., 2016; of bytes: Radford et al., 2019). Text is cut into pieces (llmc/data/split.h).
A piece begins as its bytes. Then the adjacent pair whose merge has the lowest rank becomes one token, the leftmost
first, repeatedly, until no pair has a merge:

  l o w e r     merges: 0 (l, o)  1 (e, r)  2 (lo, w)     ->  lo w e r  ->  lo w er  ->  low er

A piece that is a token is found as a whole, so most words cost one lookup. Each thread caches the tokens of other
pieces. Short pieces are merged by looking for the lowest rank each time; long ones with a heap, O(n log n) at worst and
close to O(n) for most: 100 MB without a space are one piece.

SentencePiece's way (Kudo and Richardson, 2018; Llama 2, Mistral): a piece begins as its characters, those that the
vocabulary lacks as their bytes, which have ids of their own. A space is a character like others, spelled U+2581, and
one is put before the text. There is no pattern, so all text would be one piece. If no token extends from a word into
the blank after it, which is checked when the tokenizer is read, text is cut there, and merges lead to the same tokens.
*/
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>
#include "llmc/data/split.h"  // SplitPattern

struct Merge {
    int32_t left, right, result;
};

struct SpecialToken {
    std::string text;
    int32_t id;
};

// The most ids and merges: what fits into one 64-bit entry of the table below.
inline constexpr int32_t kMaxBpeIds = 1 << 20;
inline constexpr size_t kMaxMerges = (size_t(1) << 24) - 1;

// (left, right) -> rank. One 64-bit word per entry: 20 bits, 20 bits, 24 bits.
class PairRanks {
public:
    static constexpr uint32_t kNone = uint32_t(-1);
    void reset(size_t pairs);
    void add(int32_t left, int32_t right, uint32_t rank);  // a pair that is not in it yet
    uint32_t find(int32_t left, int32_t right) const {
        const uint64_t key = key_of(left, right);
        for (size_t i = place_of(key);; i = (i + 1) & mask_) {
            if (entries_[i] == kEmpty) return kNone;
            if (entries_[i] >> 24 == key) return uint32_t(entries_[i] & 0xFFFFFF);
        }
    }

private:
    static constexpr uint64_t kEmpty = uint64_t(-1);  // no entry: its rank would be more than kMaxMerges - 1
    static uint64_t key_of(int32_t left, int32_t right) { return uint64_t(left) << 20 | uint64_t(right); }
    size_t place_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15) >> shift_; }
    std::vector<uint64_t> entries_;
    size_t mask_ = 0;
    int shift_ = 0;
};

// Bytes -> id, for tokens that a whole piece may become at once.
class PieceIds {
public:
    void reset(size_t tokens);
    void add(std::string_view piece, int32_t id);
    int32_t find(std::string_view piece) const {  // -1: none
        if (piece.size() > kShort) return find_long(piece);
        const Key key = key_of(piece);
        for (size_t i = place_of(key);; i = (i + 1) & mask_) {
            const Entry& entry = entries_[i];
            if (entry.key.low == key.low && entry.key.high == key.high && entry.bytes == piece.size()) return entry.id;
            if (entry.bytes == 0) return -1;
        }
    }

private:
    static constexpr size_t kShort = 16;
    struct Key {
        uint64_t low, high;
    };
    struct Entry {
        Key key;
        int32_t id;
        uint32_t bytes;  // 0: an empty entry
    };
    static Key key_of(std::string_view piece);
    size_t place_of(const Key& key) const {
        return ((key.low * 0x9E3779B97F4A7C15) ^ ((key.high + key.low) * 0xC2B2AE3D27D4EB4F)) >> shift_;
    }
    int32_t find_long(std::string_view piece) const;
    std::vector<Entry> entries_;
    struct Hash {
        using is_transparent = void;
        size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
    };
    std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> long_;
    size_t mask_ = 0;
    int shift_ = 0;
};

// Whether a BPE of characters puts a space before a text that is not empty.
enum class FirstSpace { none, always, unless_there };

struct Bpe {
    SplitPattern pattern = SplitPattern::gpt2;  // of bytes
    bool of_characters = false;                 // and else SentencePiece's way
    FirstSpace first_space = FirstSpace::none;
    std::vector<Merge> merges;  // by rank
    std::vector<SpecialToken> specials;
    // A piece that is a token becomes it, even if the merges do not lead there: tiktoken's way, and that of a
    // tokenizer.json with "ignore_merges".
    bool whole_pieces = false;
    bool normalizes = false;  // text to NFC first (nfc.h), as Qwen's do
    bool encodes = true;      // false: the merges are not known, and there is only the way back
    int32_t separator = -1;   // the special token between documents

    // Made from the above and the tokens by prepare(); for a BPE of characters by its reader.
    std::array<int32_t, 256> byte_ids;
    std::vector<int32_t> char_ids;  // of characters: by code point; -1, or beyond the end: as bytes

    // Made from the above and the tokens by prepare().
    PairRanks ranks;
    PieceIds pieces;
    uint64_t serial = 0;  // another for each that is made; 0: not yet

    // Checks what was read from `where` and makes the tables.
    void prepare(const std::vector<std::string>& symbols, const std::string& where);

    // `is_beginning`: of a text; else its continuation.
    void encode(std::string_view text, std::vector<int32_t>& ids, bool is_beginning = true) const;
    // The tokens that a piece begins as. Returns how many, at most one per byte.
    size_t first_tokens(std::string_view piece, int32_t* tokens) const;

    // The merges alone, without lookups of whole pieces. Returns how many pairs it examined and ordered, so that tests
    // can check that it is not quadratic.
    size_t merge_piece(std::string_view piece, std::vector<int32_t>& ids) const;
};

// The special token that separates documents: <|bos|>, <|endoftext|>, <|begin_of_text|>, or the first.
int32_t separator_of(const std::vector<SpecialToken>& specials);

struct Tokenizer;

// A tokenizer of these tokens. Errors begin with `where`.
Tokenizer make_bpe_tokenizer(std::vector<std::string> symbols, Bpe bpe, const std::string& where);

// The merges that lead to each token, from the order of the tokens alone: a token was learned from the two tokens that
// merges of lower rank make of its bytes. Those with an empty symbol and the special ones are left out. Returns the
// number of tokens that no two others make; they are reached as whole pieces only.
size_t recover_merges(const std::vector<std::string>& symbols, Bpe& bpe);

// How SentencePiece spells a space.
inline constexpr char kSpelledSpace[] = "\u2581";

// How GPT-2's files spell a byte: as one printable code point, the printable bytes of Latin-1 as themselves, the other
// 68 as U+0100, U+0101, ... in order (Radford et al., 2019, encoder.py: bytes_to_unicode).
const std::vector<std::string>& gpt2_byte_spellings();
std::string spell_as_gpt2(std::string_view bytes);
// False if `spelled` contains anything else.
bool bytes_of_gpt2_spelling(std::string_view spelled, std::string& bytes);

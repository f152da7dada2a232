/*
Byte-pair encoding (Sennrich et al., 2016; of bytes: Radford et al., 2019). Text is split into pieces
(llmc/data/split.h), and the tokens of a piece are at first its bytes. Then the adjacent pair whose merge has the lowest
rank, of several the leftmost, becomes one token. This is repeated until no pair has a merge:

  l o w e r     merges: 0 (l, o)  1 (e, r)  2 (lo, w)     ->  lo w e r  ->  lo w er  ->  low er

A piece that is a token needs one lookup, as most words do. Each thread caches the tokens of other pieces. Short pieces
are merged by searching all pairs for the lowest rank each time. Long ones use a heap, in O(n log n) at worst and close
to O(n) mostly: 100 MB of text without a space are one piece.

The variant of SentencePiece (Kudo and Richardson, 2018; Llama 2, Mistral): the tokens of a piece are at first its
characters. Characters that the vocabulary lacks become bytes, which have their own ids. A space is an ordinary
character, spelled U+2581, and one is put before the text. There is no split pattern, so all text would be one piece.
But if no token reaches from another character into a space or line feed, text can be split there without changing its
tokens. prepare() looks which of the two it is. A carriage return is none: real vocabularies have tokens like ";\r".
*/
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>
#include "llmc/data/added_tokens.h"  // AddedToken, AddedTokens
#include "llmc/data/split.h"         // SplitPattern

struct Merge {
    int32_t left, right, result;
};

// The maximum numbers of ids and merges: they must fit into a 64-bit entry of PairRanks.
inline constexpr int32_t kMaxBpeIds = 1 << 20;
inline constexpr size_t kMaxMerges = (size_t(1) << 24) - 1;

// A hash table (left, right) -> rank. An entry is a 64-bit word of 20 + 20 + 24 bits.
class PairRanks {
public:
    static constexpr uint32_t kNone = uint32_t(-1);
    void reset(size_t pairs);
    void add(int32_t left, int32_t right, uint32_t rank);  // the pair must not be in the table
    uint32_t find(int32_t left, int32_t right) const {
        const uint64_t key = key_of(left, right);
        for (size_t i = place_of(key);; i = (i + 1) & mask_) {
            if (entries_[i] == kEmpty) return kNone;
            if (entries_[i] >> 24 == key) return uint32_t(entries_[i] & 0xFFFFFF);
        }
    }

private:
    static constexpr uint64_t kEmpty = uint64_t(-1);  // no entry has this value: its rank would be above kMaxMerges - 1
    static uint64_t key_of(int32_t left, int32_t right) { return uint64_t(left) << 20 | uint64_t(right); }
    size_t place_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15) >> shift_; }
    std::vector<uint64_t> entries_;
    size_t mask_ = 0;
    int shift_ = 0;
};

// A hash table from bytes to ids, for tokens that may be a whole piece.
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

// Where a BPE of characters puts a space: before a text, or before each of its parts between added tokens.
enum class FirstSpace { none, text, parts };

struct Bpe {
    SplitPattern pattern = SplitPattern::gpt2;  // of bytes
    bool of_characters = false;                 // the variant of SentencePiece
    FirstSpace first_space = FirstSpace::none;
    bool metaspace = false;  // spaces are put and spelled after added tokens are found, and none where one is already
    std::vector<Merge> merges;  // by rank
    std::vector<AddedToken> added;
    // A piece that is a token becomes that token, even if the merges do not lead to it, as with tiktoken and with a
    // tokenizer.json that has "ignore_merges".
    bool whole_pieces = false;
    bool normalizes = false;  // converts text to NFC first (nfc.h), like Qwen's tokenizers
    bool encodes = true;      // false: the merges are not known, so text can only be decoded
    int32_t separator = -1;   // the special token between documents

    // Computed by prepare() from the fields above and the tokens; in the variant of SentencePiece by its reader.
    std::array<int32_t, 256> byte_ids;
    std::vector<int32_t> char_ids;  // by code point; -1 or beyond the end: encode the character as bytes

    // Computed by prepare().
    PairRanks ranks;
    PieceIds pieces;
    std::string blanks;   // where the words of a BPE of characters begin
    bool may_cut = true;  // whether text may be cut between a letter or digit and a blank: no token goes across
    uint64_t serial = 0;  // unique to each prepared Bpe; 0: not prepared
    AddedTokens in_text, in_normalized;

    // Checks the fields and computes the tables. Throws an Error that begins with `where`, the file's name.
    void prepare(const std::vector<std::string>& symbols, const std::string& where);
    // The part of prepare() for added tokens, after one of them has become special.
    void prepare_added(const std::string& where);
    // The part of a text between added tokens that are not normalized, in place or in `scratch`. `begins`: it is not
    // the continuation of another part.
    std::string_view normalize(std::string_view part, bool begins, std::string& scratch) const;

    // Appends the ids of a text. `is_beginning`: false for the continuation of a text.
    void encode(std::string_view text, std::vector<int32_t>& ids, bool is_beginning = true) const;
    // The initial tokens of a piece. Returns their number, at most one per byte.
    size_t first_tokens(std::string_view piece, int32_t* tokens) const;

    // Applies the merges only, without looking up whole pieces. Returns how many pairs it examined and ordered, so that
    // tests can check that the time is not quadratic.
    size_t merge_piece(std::string_view piece, std::vector<int32_t>& ids) const;
};

// The token between documents: the first of <|bos|>, <|endoftext|>, <|begin_of_text|> and <s> that exists, else the
// first special token, else the first added one; -1: there are none.
int32_t separator_of(const std::vector<AddedToken>& added);

struct Tokenizer;

// A tokenizer with these tokens. Errors begin with `where`.
Tokenizer make_bpe_tokenizer(std::vector<std::string> symbols, Bpe bpe, const std::string& where);

// Recovers the merges that lead to each token from the order of the tokens: a token was learned from the two tokens
// into which merges of lower rank turn its bytes. Skips tokens with an empty symbol and added ones. Returns the number
// of tokens for which there is no such pair, as in Llama 3's vocabulary. Any two tokens that together are such a token
// become it, as with tiktoken.
size_t recover_merges(const std::vector<std::string>& symbols, Bpe& bpe);

// SentencePiece's spelling of a space, and a text with spaces in its place.
inline constexpr char kSpelledSpace[] = "\u2581";
std::string with_spaces(std::string_view text);

// GPT-2's spelling of each byte in files, a printable code point: printable bytes of Latin-1 are themselves, the other
// 68 are U+0100, U+0101, ... in order (Radford et al., 2019, encoder.py: bytes_to_unicode).
const std::vector<std::string>& gpt2_byte_spellings();
// These bytes in GPT-2's spelling.
std::string spell_as_gpt2(std::string_view bytes);
// False if `spelled` contains any other code point.
bool bytes_of_gpt2_spelling(std::string_view spelled, std::string& bytes);

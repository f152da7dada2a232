// Counts pieces and computes the merges from the counts.
#include "llmc/data/bpe_training.h"
#include <bit>
#include <queue>
#include <set>
#include "llmc/base/check.h"  // require, ensure
#include "llmc/data/bpe.h"    // Bpe, Merge

namespace {
constexpr uint32_t kEmpty = uint32_t(-1);
}

// ---- pieces --------------------------------------------------------------------------------------------------------

PieceCounts::PieceCounts(const std::string& pattern) : pattern_(split_pattern(pattern)), table_(1024, kEmpty) {}

void PieceCounts::add(std::string_view document) {
    for_each_piece(pattern_, document, [&](std::string_view piece) { add(piece, 1); });
}

void PieceCounts::add(const PieceCounts& other) {
    ensure(other.pattern_ == pattern_);
    for (size_t i = 0; i < other.size(); i++) add(other.piece(i), other.count(i));
}

void PieceCounts::add(std::string_view piece, int64_t count) {
    const size_t hash = std::hash<std::string_view>()(piece), mask = table_.size() - 1;
    size_t place = hash & mask;
    for (; table_[place] != kEmpty; place = (place + 1) & mask) {
        Piece& there = pieces_[table_[place]];
        if (there.hash == hash && this->piece(table_[place]) == piece) {
            there.count += count;
            return;
        }
    }
    table_[place] = uint32_t(pieces_.size());
    pieces_.push_back({bytes_.size(), piece.size(), count, hash});
    bytes_ += piece;
    if (pieces_.size() * 2 > table_.size()) grow();
}

void PieceCounts::grow() {
    const size_t mask = table_.size() * 2 - 1;
    table_.assign(mask + 1, kEmpty);
    for (size_t i = 0; i < pieces_.size(); i++) {
        size_t place = pieces_[i].hash & mask;
        while (table_[place] != kEmpty) place = (place + 1) & mask;
        table_[place] = uint32_t(i);
    }
}

// ---- merges --------------------------------------------------------------------------------------------------------

namespace {
// A position of a pair. The count of its piece says how often it occurs.
struct Place {
    uint32_t at, piece;
};

struct Pair {
    int32_t left, right;
    int64_t count;
    std::vector<Place> places;  // in order; may contain stale positions
};

// All pairs, in a hash table by their tokens.
class Pairs {
public:
    // The index of the pair, which is added if it is new.
    size_t number_of(int32_t left, int32_t right) {
        const size_t mask = table_.size() - 1;
        size_t place = place_of(left, right);
        for (; table_[place] != kEmpty; place = (place + 1) & mask) {
            const Pair& there = pairs_[table_[place]];
            if (there.left == left && there.right == right) return table_[place];
        }
        table_[place] = uint32_t(pairs_.size());
        pairs_.push_back({left, right, 0, {}});
        if (pairs_.size() * 2 > table_.size()) grow();
        return pairs_.size() - 1;
    }
    Pair& operator[](size_t number) { return pairs_[number]; }
    size_t size() const { return pairs_.size(); }

private:
    // Uses the upper bits of the product: its lower 32 bits do not depend on the left token, and a frequent right token
    // has thousands of left ones.
    size_t place_of(int32_t left, int32_t right) const {
        const uint64_t key = uint64_t(uint32_t(left)) << 32 | uint32_t(right);
        return key * 0x9E3779B97F4A7C15 >> (64 - std::countr_zero(table_.size()));
    }
    void grow() {
        table_.assign(table_.size() * 2, kEmpty);
        for (size_t i = 0; i < pairs_.size(); i++) {
            size_t place = place_of(pairs_[i].left, pairs_[i].right);
            while (table_[place] != kEmpty) place = (place + 1) & (table_.size() - 1);
            table_[place] = uint32_t(i);
        }
    }
    std::vector<Pair> pairs_;
    std::vector<uint32_t> table_ = std::vector<uint32_t>(1024, kEmpty);
};

// The distinct pieces as tokens. A token is stored at its first and at its last byte, so that both neighbors can be
// found from its length.
class Merger {
public:
    Merger(const PieceCounts& counts) {
        for (size_t piece = 0; piece < counts.size(); piece++) {
            for (const char byte : counts.piece(piece)) first_.push_back(static_cast<unsigned char>(byte));
            first_.push_back(kBorder);
            counts_.push_back(counts.count(piece));
            require(first_.size() < UINT32_MAX,
                    "the text has more than 4 GB of distinct words: train the tokenizer on less of it");
        }
        last_ = first_;
        for (uint32_t at = 0, piece = 0; at < first_.size(); at++) {
            if (first_[at] == kBorder)
                piece++;
            else if (first_[at + 1] != kBorder)
                add(first_[at], first_[at + 1], {at, piece});
        }
        for (size_t pair = 0; pair < pairs_.size(); pair++) queue_.push({pairs_[pair], pair});
    }

    // Replaces the most frequent pair with `token`. Returns false if there are no pairs.
    bool merge(int32_t token, Merge& merge) {
        size_t best;
        do {
            if (queue_.empty()) return false;
            best = queue_.top().pair;
            const bool still = queue_.top().count == pairs_[best].count;
            queue_.pop();
            if (still) break;
            if (pairs_[best].count > 0) queue_.push({pairs_[best], best});
        } while (true);
        merge = {pairs_[best].left, pairs_[best].right, token};
        bytes_.push_back(bytes_[size_t(merge.left)] + bytes_[size_t(merge.right)]);
        const size_t known = pairs_.size();
        const std::vector<Place> places = std::move(pairs_[best].places);
        for (const Place& place : places) merge_at(place, merge);
        // Only pairs that contain the new token have become more frequent.
        for (size_t pair = known; pair < pairs_.size(); pair++)
            if (pairs_[pair].count > 0) queue_.push({pairs_[pair], pair});
        return true;
    }

private:
    static constexpr int32_t kBorder = -1, kInside = -2;

    // A pair with its count when it was queued. The count can only have decreased since.
    struct Candidate {
        int64_t count;
        int32_t left, right;
        size_t pair;
        Candidate(const Pair& p, size_t pair) : count(p.count), left(p.left), right(p.right), pair(pair) {}
        bool operator<(const Candidate& other) const {
            if (count != other.count) return count < other.count;
            return left != other.left ? left > other.left : right > other.right;
        }
    };

    void merge_at(Place place, const Merge& merge) {
        const uint32_t at = place.at, right_at = at + length(merge.left);
        if (first_[at] != merge.left || first_[right_at] != merge.right) return;
        const uint32_t end = right_at + length(merge.right);
        remove(merge.left, merge.right, place);
        if (at > 0 && last_[at - 1] != kBorder) {
            const int32_t before = last_[at - 1];
            remove(before, merge.left, place);
            add(before, merge.result, {at - length(before), place.piece});
        }
        if (first_[end] != kBorder) {
            remove(merge.right, first_[end], place);
            add(merge.result, first_[end], place);
        }
        first_[right_at] = last_[right_at - 1] = kInside;
        first_[at] = last_[end - 1] = merge.result;
    }
    void add(int32_t left, int32_t right, Place place) {
        Pair& pair = pairs_[pairs_.number_of(left, right)];
        pair.count += counts_[place.piece];
        pair.places.push_back(place);
    }
    void remove(int32_t left, int32_t right, Place place) {
        pairs_[pairs_.number_of(left, right)].count -= counts_[place.piece];
    }
    uint32_t length(int32_t token) const { return bytes_[size_t(token)]; }

    std::vector<int32_t> first_, last_;
    std::vector<int64_t> counts_;                                          // by piece
    std::vector<uint32_t> bytes_ = std::vector<uint32_t>(size_t(256), 1);  // by token
    Pairs pairs_;
    std::priority_queue<Candidate> queue_;
};
}  // namespace

std::vector<std::string> nanochat_special_tokens() {
    return {"<|bos|>",          "<|user_start|>", "<|user_end|>",     "<|assistant_start|>", "<|assistant_end|>",
            "<|python_start|>", "<|python_end|>", "<|output_start|>", "<|output_end|>"};
}

Tokenizer train_bpe(const PieceCounts& counts, const BpeTraining& config) {
    const std::set<std::string> different(config.special_tokens.begin(), config.special_tokens.end());
    require(different.size() == config.special_tokens.size() && !different.count(""),
            "special tokens must not be empty, and must differ from each other");
    const int64_t least = 256 + int64_t(config.special_tokens.size());
    require(config.vocab_size >= least && config.vocab_size <= kMaxBpeIds,
            "a vocabulary of %d tokens: expected %ld (the 256 bytes and %zu special tokens) to %d", config.vocab_size,
            least, config.special_tokens.size(), kMaxBpeIds);
    require(counts.size() > 0, "there is no text to train a tokenizer on");

    std::vector<std::string> symbols;
    for (int byte = 0; byte < 256; byte++) symbols.push_back(std::string(1, char(byte)));
    Bpe bpe;
    bpe.pattern = counts.pattern();
    Merger merger(counts);
    Merge merge;
    while (int64_t(bpe.merges.size()) < config.vocab_size - least && merger.merge(int32_t(symbols.size()), merge)) {
        bpe.merges.push_back(merge);
        symbols.push_back(symbols[size_t(merge.left)] + symbols[size_t(merge.right)]);
    }
    for (const std::string& text : config.special_tokens) {
        bpe.added.push_back({text, int32_t(symbols.size())});
        symbols.push_back(text);
    }
    if (!bpe.added.empty()) bpe.separator = bpe.added[0].id;
    return make_bpe_tokenizer(std::move(symbols), std::move(bpe), "the trained tokenizer");
}

/*
Best-fit packing: rows that begin where a document does, made of whole documents as far as they fit. The rule is
nanochat's (Karpathy, 2026, dataloader.py, "BOS-aligned best fit"):

  of at least 1000 waiting documents, take the longest one that still fits into the row, repeatedly; where none fits,
  take the shortest, crop it to the space left, and begin the next row. Of equally long ones the first comes first.

So every token sees its document from the beginning, and a row has no padding unless asked for. The price is the cropped
tokens, whose fraction DataLoader::cropped() returns. The documents that wait are an ordered set, so a choice takes
O(log n) instead of a scan over n of them: dev/bench/packing.cu measures both (doc/performance.md).

With `pads` (--packing pad) no document that fits into a row is cropped: if no waiting document fits into the space left
in a row, it is filled with separators that are not learned. So nothing of a conversation is lost, as in nanochat's
chat_sft.py ("bestfit-pad"). One that is longer than a row is cropped to it, where nanochat's would wait forever.

A document is the separator and the tokens up to the next one, or to the end of its shard. Tokens before a shard's first
separator continue a document of another shard and are left out. Shards are read in their order, or, shuffled, in a new
order every epoch, their documents, too. Where documents begin is found when a shard's turn comes, in 11 ms for 100
million tokens in memory, and kept until the next shard's turn.

Each document comes once per epoch: at the end of an epoch the waiting documents are used up before the next one begins,
in the middle of a row if need be. (nanochat mixes epochs, and never comes to the longest of those that do not fit. With
fewer than a thousand documents in all, rows come by their length, whatever the shuffling.)

All ranks pack all rows, and read the tokens of their own. Packing needs only lengths, 0.5 ms per million tokens. Unlike
assigning documents to ranks, it makes row i the same at any number of ranks. The waiting documents are part of the
state (some 13 KB of text), so it restores to the very row, at any number of ranks and any batch size.
*/
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>
#include "llmc/base/rng.h"     // Permutation
#include "llmc/data/rows.h"    // RowSource
#include "llmc/data/shards.h"  // TokenShard

struct Document {
    uint32_t shard;
    int32_t begin, length;  // tokens; the separator is the first
    bool operator==(const Document&) const = default;
};

// The waiting documents.
class BestFit {
public:
    void add(const Document& document) { waiting_.insert({document, arrivals_++}); }
    // The one to place next where `space` tokens are left: longer than that only if all are. There must be one.
    Document take(int64_t space);
    // Whether there is one that is not longer than that.
    bool fits(int64_t space) const { return !waiting_.empty() && waiting_.begin()->document.length <= space; }
    size_t size() const { return waiting_.size(); }
    std::vector<Document> in_order() const;  // of arrival

private:
    struct Waiting {
        Document document;
        uint64_t arrival;
    };
    // Ordered by length; of equally long ones the first comes last, where a search by length ends.
    struct Before {
        using is_transparent = void;
        bool operator()(const Waiting& a, const Waiting& b) const {
            return a.document.length != b.document.length ? a.document.length < b.document.length
                                                          : a.arrival > b.arrival;
        }
        bool operator()(int64_t length, const Waiting& b) const { return length < b.document.length; }
    };
    std::set<Waiting, Before> waiting_;
    uint64_t arrivals_ = 0;
};

struct PackingConfig {
    int separator;    // the token that begins a document
    int64_t seq_len;  // T
    bool shuffle;
    uint64_t seed;
    int vocab_size;  // V: an id outside [0, V) in the data is an error
    bool pads = false;
};

class PackedRows : public RowSource {
public:
    // The shards must outlive this. An error if none of them has a document.
    PackedRows(const std::vector<TokenShard>& shards, const PackingConfig& config);

    void read(int32_t* row) override { pack(row); }
    void skip(int64_t rows) override;
    LoaderState state() const override;
    void restore(const LoaderState& state) override;
    int64_t num_rows(uint64_t epoch) const override;

private:
    void pack(int32_t* row);
    void refill();
    void begin_epoch(uint64_t number);
    std::optional<Document> next_document();

    const std::vector<TokenShard>& shards_;
    PackingConfig config_;

    // The epoch, and in it the next document: of the shard that is the turn_-th, the next_-th.
    uint64_t epoch_ = 0, epoch_seed_ = 0;
    Permutation shard_order_{1, 0};
    uint64_t turn_ = 0, next_ = 0;
    std::vector<int32_t> begins_;  // where the documents of that shard begin; empty: to be found
    Permutation document_order_{1, 0};

    BestFit waiting_;
    uint64_t rows_ = 0, cropped_ = 0;
    mutable std::optional<std::pair<uint64_t, int64_t>> counted_;  // the epoch that num_rows() was last asked of
};

// What best-fit packing would make of an epoch, or of the whole documents that begin in its first `most_tokens` tokens.
// Shards are read in their order. Takes less than a millisecond per million tokens in memory.
struct PackingTrial {
    int64_t tokens = 0, documents = 0;  // that it looked at
    int64_t packed = 0;                 // of these tokens, those in rows; the others are cropped, or before a document
    double kept() const { return tokens > 0 ? double(packed) / double(tokens) : 0; }
};
PackingTrial try_packing(const std::vector<TokenShard>& shards, int separator, int64_t seq_len, int64_t most_tokens);

/*
Best-fit packing: each row begins where a document does and consists of whole documents as far as they fit. The rule is
nanochat's (Karpathy, 2026, dataloader.py, "BOS-aligned best fit"):

  of at least 1000 waiting documents, take the longest one that still fits into the row, repeatedly; if none fits,
  take the shortest, crop it to the remaining space, and begin the next row. Of equally long ones, take the first.

So every token sees its document from the beginning, and a row has no padding unless requested. The cost is the cropped
tokens; DataLoader::cropped() returns their fraction. The waiting documents are in an ordered set, so a choice takes
O(log n) instead of a scan over n documents: dev/bench/packing.cu measures both (doc/performance.md).

With `pads` (--packing pad), a document that fits into a row is never cropped: if no waiting document fits into the
remaining space, the row is filled with separators that are not learned. So no part of a conversation is lost, as in
nanochat's chat_sft.py ("bestfit-pad"). A document longer than a row is cropped to it; nanochat would never place it.

A document is a separator and the tokens up to the next one or to the end of its shard. Tokens before a shard's first
separator belong to a document of another shard and are left out. Shards and their documents are read in order or, with
shuffling, in a new order every epoch. The beginnings of a shard's documents are searched when its turn comes, in 11 ms
for 100 million tokens in memory, and kept until the next shard's turn.

Each document comes once per epoch: at the end of an epoch the waiting documents are used up before the next epoch
begins, in the middle of a row if necessary. (nanochat mixes epochs and never places the longest of the documents that
do not fit. With fewer than 1000 documents in total, rows are in the order of length, with or without shuffling.)

All ranks pack all rows, but read only the tokens of their own. Packing needs only lengths, 0.5 ms per million tokens.
Unlike assigning documents to ranks, this makes row i the same at any number of ranks. The waiting documents are part of
the state (about 13 KB of text), so it restores the exact row at any number of ranks and any batch size.

Of shards that are fetched (llmc/data/fetch.h), each rank keeps the first T + 1 tokens of all waiting documents, since
their shards may be dropped before a row takes them. To restore a state, each shard of a waiting document is fetched
once more.
*/
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include "llmc/base/rng.h"     // Permutation
#include "llmc/data/rows.h"    // RowSource
#include "llmc/data/shards.h"  // TokenShard

struct Document {
    uint32_t shard;
    int32_t begin, length;  // in tokens; the first is the separator
    bool operator==(const Document&) const = default;
};

// The waiting documents.
class BestFit {
public:
    void add(const Document& document) { waiting_.insert({document, arrivals_++}); }
    // Removes the document to place next if `space` tokens remain: the longest that fits, else the shortest. There must
    // be one.
    Document take(int64_t space);
    // Whether a waiting document fits into `space` tokens.
    bool fits(int64_t space) const { return !waiting_.empty() && waiting_.begin()->document.length <= space; }
    size_t size() const { return waiting_.size(); }
    std::vector<Document> in_order() const;  // in the order of arrival

private:
    struct Waiting {
        Document document;
        uint64_t arrival;
    };
    // Ordered by length; of equally long ones the first to arrive is last, where a search by length ends.
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
    // The shards must outlive this object. Throws an Error if none of them has a document.
    PackedRows(const std::vector<TokenShard>& shards, const PackingConfig& config);

    void read(int32_t* row) override { pack(row); }
    void skip(int64_t rows) override;
    LoaderState state() const override;
    void restore(const LoaderState& state) override;
    int64_t num_rows(uint64_t epoch) const override;
    size_t shard_after(size_t shard) const override;

private:
    void pack(int32_t* row);
    void refill();
    void begin_epoch(uint64_t number);
    std::optional<Document> next_document();
    std::vector<Document> documents_of(const std::string& text);
    void keep(const Document& document);
    void require_documents(bool has_any) const;

    const std::vector<TokenShard>& shards_;
    PackingConfig config_;

    // The epoch and its next document: the next_-th of the turn_-th shard.
    uint64_t epoch_ = 0, epoch_seed_ = 0;
    Permutation shard_order_{1, 0};
    uint64_t turn_ = 0, next_ = 0;
    std::vector<int32_t> begins_;  // where that shard's documents begin; empty: not searched yet
    Permutation document_order_{1, 0};

    BestFit waiting_;
    // Of the waiting documents in shards that are fetched, by place: what a row may take.
    struct Kept {
        Document document;
        std::vector<int32_t> tokens;
    };
    std::map<std::pair<uint32_t, int32_t>, Kept> kept_;
    std::vector<uint32_t> restoring_;  // the shards of the documents that restore() looks up, in this order
    uint64_t rows_ = 0, cropped_ = 0;
    mutable std::optional<std::pair<uint64_t, int64_t>> counted_;  // the last result of num_rows() and its epoch
};

// The effect of best-fit packing on an epoch, or on the whole documents that begin in its first `most_tokens` tokens.
// Shards are read in order. Takes less than 1 ms per million tokens in memory.
struct PackingTrial {
    int64_t tokens = 0, documents = 0;  // that were examined
    int64_t packed = 0;                 // tokens in rows; the others are cropped, or precede a shard's first document
    double kept() const { return tokens > 0 ? double(packed) / double(tokens) : 0; }
};
PackingTrial try_packing(const std::vector<TokenShard>& shards, int separator, int64_t seq_len, int64_t most_tokens);

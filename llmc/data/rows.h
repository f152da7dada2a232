/*
Sources of a batch's rows. A row has T + 1 tokens: T inputs and, shifted by one, their targets. A target that is not
learned is ~id (llmc/data/shards.h).

A source has one endless order of rows, determined only by the data, T, shuffling and the seed. Every rank follows it,
reads its own rows and skips the others', so row i is the same at any number of ranks and any batch size. There are two
such sources: the windows of llmc/data/loader.h and the documents of llmc/data/packing.h. The order of a third one,
llm.c's in llmc/data/llmc_order.h, depends on the ranks and the batch size, too.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

// The position of a source. It determines all rows that follow.
struct LoaderState {
    uint64_t epoch = 0, position = 0;  // position: in this epoch, in the source's own unit
    // For packing only: rows so far, cropped tokens so far, and the waiting documents.
    uint64_t rows = 0, cropped = 0;
    std::string waiting = {};
    bool operator==(const LoaderState&) const = default;
};

class RowSource {
public:
    virtual ~RowSource() = default;
    virtual void read(int32_t* row) = 0;  // reads the next row
    virtual void skip(int64_t rows) = 0;  // skips this many rows without reading their tokens
    virtual LoaderState state() const = 0;
    virtual void restore(const LoaderState& state) = 0;  // throws, unchanged, if it does not exist
    virtual int64_t num_rows(uint64_t epoch) const = 0;  // the number of rows that an epoch alone makes
    // The shard that it reads after this one, which it reads now. Of a source of one data set.
    virtual size_t shard_after(size_t shard) const { return shard; }
};

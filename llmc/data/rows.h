/*
Sources of a batch's rows: T + 1 tokens each, T inputs and, shifted by one, their targets. A target that is not learned
is ~id (llmc/data/shards.h).

A source has one endless order of rows, determined by the data, T, shuffling and seed alone. Every rank follows it,
reads its own rows and skips the others', so row i is the same at any number of ranks and any batch size. There are two:
the windows of llmc/data/loader.h, and the documents of llmc/data/packing.h. A third one, llm.c's in
llmc/data/llmc_order.h, depends on both.
*/
#pragma once
#include <cstdint>
#include <string>

// The position of a source: all that determines which rows come next.
struct LoaderState {
    uint64_t epoch = 0, position = 0;  // position: in this epoch, in the source's own unit
    // Of packing alone: rows so far, tokens left out so far, and the documents that were found and not yet used.
    uint64_t rows = 0, cropped = 0;
    std::string waiting = {};
    bool operator==(const LoaderState&) const = default;
};

class RowSource {
public:
    virtual ~RowSource() = default;
    virtual void read(int32_t* row) = 0;  // the next row
    virtual void skip(int64_t rows) = 0;  // as many of them, without reading their tokens
    virtual LoaderState state() const = 0;
    virtual void restore(const LoaderState& state) = 0;  // an error, and no change, if there is no such place
    virtual int64_t num_rows(uint64_t epoch) const = 0;  // that an epoch makes by itself
};

/*
Several data sets in one run, each with its share of the rows:

  --train-data 'data/web/train_*.bin:0.7,data/code/train_*.bin:0.3'

A comma-separated list of PATTERN:WEIGHT. Weights are positive; each counts relative to their sum. A value that does not
end in :WEIGHT is a single pattern, whatever else is in it; a colon or comma in a file's name that looks like part of a
list is written [:] or [,], which the pattern takes for that character.

Row i comes from the source that is owed most of its share, of equal ones the first. So after any number of rows each
source has given its share of them, up to an error below the number of sources. No two runs differ, and rows do not
depend on ranks or batches. Each source goes through its own rows in its own order and its own epochs, as if it were
alone; a row is never of two sources.
*/
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "llmc/data/rows.h"  // RowSource, LoaderState

struct DataSource {
    std::string pattern;
    double weight;
};

// The sources of --train-data, at least one; a single pattern has weight 1. Throws an Error that begins with the
// invalid part.
std::vector<DataSource> data_sources(const std::string& text);
bool has_weights(const std::string& text);

class Mixture : public RowSource {
public:
    // At least two sources, and as many weights.
    Mixture(std::vector<std::unique_ptr<RowSource>> sources, const std::vector<double>& weights);

    void read(int32_t* row) override { sources_[choose()]->read(row); }
    void skip(int64_t rows) override;
    LoaderState state() const override;
    void restore(const LoaderState& state) override;
    int64_t num_rows(uint64_t epoch) const override;  // of all sources

    // How many rows each of so many sources has given by then.
    static std::vector<uint64_t> rows_given(const LoaderState& state, size_t sources);

private:
    size_t choose();
    void set_given(const std::vector<uint64_t>& given);

    std::vector<std::unique_ptr<RowSource>> sources_;
    // In units of 2^-32 rows, so that sums are exact: each source's share of a row, and what it is owed.
    std::vector<int64_t> shares_, owed_;
    std::vector<uint64_t> given_;  // rows so far
};

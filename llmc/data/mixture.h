/*
Several data sets in one run, each with a fraction of the rows:

  --train-data 'data/web/train_*.bin:0.7,data/code/train_*.bin:0.3'

A comma-separated list of PATTERN:WEIGHT. Weights are positive and relative to their sum. A value that does not end in
:WEIGHT is a single pattern, whatever else it contains. If a colon or comma in a file's name looks like part of a list,
write it as [:] or [,], which the pattern matches as that character.

Row i comes from the source that lags most in its share; of equal ones the first is taken. So after any number of rows
each source has provided its share of them, with an error below the number of sources. The choice is the same in every
run and does not depend on ranks or batches. Each source goes through its own rows in its own order and its own epochs,
as if it were alone; a row never comes from two sources.
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

// The sources in --train-data, at least one; a single pattern has weight 1. Throws an Error that begins with the
// invalid part.
std::vector<DataSource> data_sources(const std::string& text);
// Whether the text is a list of patterns with weights.
bool has_weights(const std::string& text);

class Mixture : public RowSource {
public:
    // At least two sources, and one weight per source.
    Mixture(std::vector<std::unique_ptr<RowSource>> sources, const std::vector<double>& weights);

    void read(int32_t* row) override { sources_[choose()]->read(row); }
    void skip(int64_t rows) override;
    LoaderState state() const override;
    void restore(const LoaderState& state) override;
    int64_t num_rows(uint64_t epoch) const override;  // the sum over all sources

    // How many rows each of `sources` sources has provided in this state.
    static std::vector<uint64_t> rows_given(const LoaderState& state, size_t sources);

private:
    size_t choose();
    void set_given(const std::vector<uint64_t>& given);

    std::vector<std::unique_ptr<RowSource>> sources_;
    // In units of 2^-32 rows, so that sums are exact: each source's share of a row, and by how much it lags.
    std::vector<int64_t> shares_, owed_;
    std::vector<uint64_t> given_;  // rows so far, by source
};

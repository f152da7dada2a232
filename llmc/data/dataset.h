/*
A dataset: a folder made from text, ready to train on. `data/prepare` is this with flags.

  DIR/train_000000.bin ...  DIR/val_000000.bin ...   token shards (llmc/data/shards.h)
  DIR/tokenizer.json                                 what the ids mean (llmc/data/tokenizer.h)
  DIR/dataset.json                                   where the tokens come from, and how many there are

Everything is first written into DIR/unfinished/, then what was there before is removed and the new files are moved into
place, and last DIR/unfinished/ goes. As long as it exists, no loader takes the shards beside it, so a run that was
killed at any point leaves nothing that looks complete. A run that ends with an error leaves the folder as it was.
*/
#pragma once
#include <cstdint>
#include <string>
#include <vector>

struct DatasetConfig {
    std::vector<std::string> inputs;  // text files, or folders whose .txt and .md files are taken
    int64_t stories_bytes = 0;        // instead of inputs: about so many bytes of llmc/data/stories.h
    uint64_t seed = 1337;             // of the stories
    std::string out;
    std::string tokenizer = "byte";  // or "char"
    double val_fraction = 0.1;       // the last part of the tokens, kept for validation
    int64_t shard_tokens = 100'000'000;
};

struct DatasetSummary {
    int64_t train_tokens = 0, val_tokens = 0;
    int train_shards = 0, val_shards = 0, vocab_size = 0;
};

// The documents are joined in the given order (those of a folder sorted by path). The byte tokenizer puts its separator
// before each document if there are several. Errors name the file and leave nothing behind.
DatasetSummary prepare_dataset(const DatasetConfig& config);

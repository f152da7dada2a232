// What a run reads while it goes on: batches, validation data, tasks, the prompt of its samples.
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>
#include "llmc/data/loader.h"       // DataLoader
#include "llmc/data/token_scan.h"   // TokenScan
#include "llmc/eval/task_file.h"    // TaskFile
#include "llmc/train/run_config.h"  // RunConfig
#include "llmc/train/tokens.h"      // KnownTokenizer
#include "llmc/train/world.h"       // World

struct RunInputs {
    std::optional<DataLoader> train, val;  // without the first nothing is learned: `eval`
    std::vector<int32_t> prompt, token_bytes;
    std::vector<TaskFile> tasks;
    std::optional<TokenScan> scan;  // of the shards of a run that learns; last, because it reads them

    // All ranks; what one cannot read is an Error on all.
    RunInputs(const RunConfig& config, const KnownTokenizer& tokenizer, World& world);

    uint64_t train_hash() const { return train ? train->data_hash() : 0; }
    double cropped() const { return train ? train->cropped() : NAN; }  // DataLoader::cropped()
};

// An Error on all ranks if one has other shards than rank 0: which one, and which shard. They may lie elsewhere on
// every host; their names, sizes, headers and samples of their tokens are compared.
void check_same_data(Ranks& ranks, const char* what, const std::optional<DataLoader>& data);

// What documents begin with: --document-token, else the tokenizer's separator; -1: neither is known.
int separator_of(const RunFlags& flags, const KnownTokenizer& tokenizer);

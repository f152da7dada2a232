// What a run reads while it trains: batches, validation data, tasks, the prompt of its samples.
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
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

    // Collective. If one rank cannot read its inputs, all throw an Error.
    RunInputs(const RunConfig& config, const KnownTokenizer& tokenizer, World& world);

    uint64_t train_hash() const { return train ? train->data_hash() : 0; }
    double cropped() const { return train ? train->cropped() : NAN; }  // DataLoader::cropped()
    std::vector<SourceFacts> mixture() const;  // the sources of the training data; none if there is one only
    std::string hash_of_tasks() const;
};

// Throws an Error on all ranks if one has other shards than rank 0, naming the rank and the shard. Paths may differ;
// names, sizes, headers and samples of the tokens are compared.
void check_same_data(Ranks& ranks, const char* what, const std::optional<DataLoader>& data);

// The token that begins documents: --document-token, else the tokenizer's separator; -1: unknown.
int separator_of(const RunFlags& flags, const KnownTokenizer& tokenizer);

// nanochat's rows for nanochat's model: sets --packing best-fit in a new run with --depth that has not been told how to
// pack, if it trains on documents of which that keeps at least half. Those of a text in one piece would be a row an
// epoch. Returns a line that says what was found; "": the choice was not open.
std::string choose_packing(RunFlags& flags, bool is_new, int separator, int64_t seq_len);

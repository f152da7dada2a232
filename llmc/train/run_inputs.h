// What a run reads while it trains: batches, validation data, tasks, the prompt of its samples.
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "llmc/data/loader.h"      // DataLoader
#include "llmc/data/token_scan.h"  // TokenScan
#include "llmc/eval/task_file.h"   // TaskFile
#include "llmc/run/run_config.h"   // RunConfig
#include "llmc/train/tokens.h"     // KnownTokenizer
#include "llmc/train/world.h"      // World

struct RunInputs {
    std::optional<DataLoader> train, val;  // `train` is empty with the command `eval`
    std::vector<int32_t> prompt, token_bytes;
    std::vector<TaskFile> tasks;
    std::optional<TokenScan> scan;  // of a training run's shards; the last member, because it reads the others

    // Collective. If one rank cannot read its inputs, all throw an Error.
    RunInputs(const RunConfig& config, const KnownTokenizer& tokenizer, World& world);

    uint64_t train_hash() const { return train ? train->data_hash() : 0; }
    double cropped() const { return train ? train->cropped() : NAN; }  // DataLoader::cropped()
    std::vector<SourceFacts> mixture() const;  // the sources of the training data; empty if there is only one
    std::string hash_of_tasks() const;
};

// Throws an Error on all ranks that names the rank and the shard if one has other shards than rank 0. Names, sizes,
// headers and samples of the tokens are compared; paths may differ. Collective.
void check_same_data(Ranks& ranks, const char* what, const std::optional<DataLoader>& data);

// The token that begins documents: --document-token, else the tokenizer's separator; -1: not known.
int separator_of(const RunFlags& flags, const KnownTokenizer& tokenizer);

// How --fetch brings shards; empty without it.
std::optional<FetchConfig> fetch_config(const RunFlags& flags);

// Sets --packing best-fit, nanochat's choice, in a new run with --depth but without --packing, if that keeps at least
// half of the tokens. (A corpus that is one long document would give a single row per epoch.) Returns a line about the
// decision; "": there was none to make.
std::string choose_packing(RunFlags& flags, bool is_new, int separator, int64_t seq_len);

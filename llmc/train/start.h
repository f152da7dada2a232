/*
Where a run starts: from nothing, from the weights of another model, or from a checkpoint, whose flags it takes over
where the command line gives none.
*/
#pragma once
#include <cstdint>
#include <memory>
#include "llmc/comm/ranks.h"            // Ranks
#include "llmc/interop/stored_model.h"  // StoredModel
#include "llmc/io/checkpoint.h"         // FoundCheckpoint
#include "llmc/model/shape.h"           // GptShape
#include "llmc/train/config.h"          // TrainConfig

struct Start {
    TrainConfig config;
    FoundCheckpoint from;  // from.path is empty for a new run; what was passed over, rank 0 alone knows
    std::shared_ptr<const StoredModel> source;  // of a new run with --init-from, else null

    bool resumed() const { return !from.path.empty(); }
    // Of the model that there is; empty: a new one.
    const std::string& path() const { return source ? source->path() : from.path; }
};

// --export: writes the model that was asked for and says what it wrote.
std::string export_asked(const TrainConfig& config);

// The flags alone, before anything is done with them; `help` tells whether --help was among them, and has been printed.
TrainConfig parse_config(int argc, char** argv, bool* help);

// Reads the command line and finds the checkpoint it names. Rank 0 looks for it and checks all of it, and the others
// take its word. Warns on stderr of newer ones that do not verify.
Start find_start(int argc, char** argv, Ranks& ranks);

// The model to make: the checkpoint's or that of --init-from, which the flags may not contradict, or what the flags and
// the data ask for. `tokenizer_vocab_size` is 0 if the data has no tokenizer.
GptShape find_shape(const Start& start, int64_t tokenizer_vocab_size);

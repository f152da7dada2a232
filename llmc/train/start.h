/*
Where a run starts: from nothing, or from a checkpoint, whose flags it takes over where the command line gives none.
*/
#pragma once
#include <cstdint>
#include "llmc/io/checkpoint.h"  // FoundCheckpoint
#include "llmc/model/shape.h"    // GptShape
#include "llmc/train/config.h"   // TrainConfig

struct Start {
    TrainConfig config;
    FoundCheckpoint from;  // from.path is empty for a new run
    bool help = false;     // --help was asked for and printed: leave

    bool resumed() const { return !from.path.empty(); }
};

// Reads the command line and finds the checkpoint it names. Warns on stderr of newer ones that do not verify.
Start find_start(int argc, char** argv);

// The model to make: the checkpoint's, which the flags may not contradict, or what the flags and the data ask for.
// `tokenizer_vocab_size` is 0 if the data has no tokenizer.
GptShape find_shape(const Start& start, int64_t tokenizer_vocab_size);

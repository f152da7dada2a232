/*
What a run was asked for, complete: the command line's flags, those of the checkpoint where it gives none, and where the
weights come from: a checkpoint, another model, or nowhere.
*/
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include "llmc/comm/ranks.h"            // Ranks
#include "llmc/interop/stored_model.h"  // StoredModel
#include "llmc/io/checkpoint.h"         // FoundCheckpoint
#include "llmc/model/shape.h"           // GptShape
#include "llmc/train/command.h"         // CommandLine

struct RunRequest {
    RunFlags flags;
    FoundCheckpoint checkpoint = {};  // its path is empty for a new run; what was passed over, rank 0 alone knows
    std::shared_ptr<const StoredModel> source = nullptr;  // of a new run with --init-from, else null

    // Does this rank see the checkpoint's folder? If not, rank 0 has sent it the small files, and the path is rank 0's.
    bool is_here = true;
    std::map<std::string, std::string> sent_files = {};
    std::vector<int> elsewhere = {};  // the ranks that do not; on all
    uint64_t verified_bytes = 0;      // of it, by this rank

    std::string local_run = {};  // of the local checkpoints that this run may go on from (local_checkpoints.h)

    bool resumed() const { return !checkpoint.path.empty(); }
    // The content of one of the checkpoint's small files.
    std::string checkpoint_file(const std::string& name) const;
    bool has_checkpoint_file(const std::string& name) const;
    // Of the model that there is; empty: a new one.
    const std::string& path() const { return source ? source->path() : checkpoint.path; }
};

// Finds the checkpoint or model that the flags name. Rank 0 looks for it. A checkpoint is verified by all who see its
// folder, a share of its bytes each, and ranks on other hosts need not see it; another model rank 0 checks alone. Warns
// on stderr of newer checkpoints that do not verify. All ranks.
RunRequest find_request(const CommandLine& line, Ranks& ranks);

// The command `export`: writes the model and says what it wrote.
std::string export_asked(const CommandLine& line);

// The model to make: the checkpoint's or that of --init-from, which the flags may not contradict, or what the flags and
// the data ask for. `tokenizer_vocab_size` is 0 if the data has no tokenizer.
GptShape find_shape(const RunRequest& request, int64_t tokenizer_vocab_size);

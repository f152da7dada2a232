/*
A complete request for a run: the flags of the command line, those of the checkpoint for the rest, and the source of the
weights: a checkpoint, another model, or none.
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

    // Whether this rank sees the checkpoint's folder. If not, rank 0 has sent it the small files, and the path is rank
    // 0's.
    bool is_here = true;
    std::map<std::string, std::string> sent_files = {};
    std::vector<int> elsewhere = {};  // the ranks that do not; on all
    uint64_t verified_bytes = 0;      // of it, by this rank

    std::string local_run = {};  // of the local checkpoints that this run may go on from (local_checkpoints.h)

    bool resumed() const { return !checkpoint.path.empty(); }
    // The content of one of the checkpoint's small files.
    std::string checkpoint_file(const std::string& name) const;
    bool has_checkpoint_file(const std::string& name) const;
    // The existing model's config; empty: a new model.
    const std::string& path() const { return source ? source->path() : checkpoint.path; }
};

// Finds the checkpoint or model that the flags name. Rank 0 looks for it. A checkpoint is verified by all ranks that
// see its folder, a share of its bytes each; ranks on other hosts need not see it. Another model is checked by rank 0
// alone. Warns on stderr of newer checkpoints that do not verify. Collective.
RunRequest find_request(const CommandLine& line, Ranks& ranks);

// The command `export`: writes the model and says what it wrote.
std::string export_asked(const CommandLine& line);

// The shape of the model: the checkpoint's or that of --init-from, which the flags must not contradict, or as flags and
// data ask for. `tokenizer_vocab_size` is 0 if the data has no tokenizer.
GptShape find_shape(const RunRequest& request, int64_t tokenizer_vocab_size);

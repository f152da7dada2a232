/*
A complete request for a run: the flags of the command line, completed by those of the checkpoint, and the source of the
weights: a checkpoint, another model, or none.
*/
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include "llmc/comm/ranks.h"            // Ranks
#include "llmc/interop/stored_model.h"  // StoredModel
#include "llmc/io/checkpoint.h"         // FoundCheckpoint
#include "llmc/model/shape.h"           // GptShape
#include "llmc/run/command.h"           // CommandLine

struct RunRequest {
    RunFlags flags;
    FoundCheckpoint checkpoint = {};                      // path: empty for a new run; passed_over: only on rank 0
    std::shared_ptr<const StoredModel> source = nullptr;  // --init-from's model in a new run, else null
    // With --lora-rank: the model that the adapters are for, in a new run `source`, and the hash of its weights.
    std::shared_ptr<const StoredModel> base = nullptr;
    std::string base_hash = "";
    RunFlags before = {};  // the flags of the checkpoint's run

    // Whether this rank sees the checkpoint's folder. If not, the path is rank 0's, and rank 0 has sent the small
    // files.
    bool is_here = true;
    std::map<std::string, std::string> sent_files = {};
    std::vector<int> elsewhere = {};  // the ranks that do not see the folder; known on all ranks
    uint64_t verified_bytes = 0;      // of the checkpoint, by this rank

    // Predicts tokens per second on the GPU of that name, on which --batch-size auto decides; 0: not known
    // (predicted_tokens_per_s in llmc/plan/plan.h).
    std::function<double(const RunFlags&, const GptShape&, int world_size, const std::string& gpu)> predict = nullptr;

    bool resumed() const { return !checkpoint.path.empty(); }
    // Whether it trains or evaluates, and does not only print.
    bool needs_session() const { return flags.evaluates() || (flags.command == Command::train && !flags.dry_run); }
    // The flags of these names whose values are not those of the checkpoint's run: "--steps, --seed"; "": none.
    std::string changed(const std::vector<const char*>& names) const;
    // The content of one of the checkpoint's small files.
    std::string checkpoint_file(const std::string& name) const;
    bool has_checkpoint_file(const std::string& name) const;
    // Where the existing model is; empty: a new model.
    const std::string& path() const { return source ? source->path() : checkpoint.path; }
};

// Finds the checkpoint or model that the flags name, on rank 0. All ranks that see a checkpoint's folder verify it
// together, each a share of its bytes; ranks on other hosts need not see it. Another model is checked by rank 0 alone.
// Warns on stderr about newer checkpoints that are damaged. Collective.
RunRequest find_request(const CommandLine& line, Ranks& ranks);

// The weights of the checkpoint or model, of an adapter with its base.
StoredModel stored_model(const RunRequest& request);

// The command `export`: writes the model, and returns a text about the written files.
std::string export_asked(const CommandLine& line);

// The shape of the model: the checkpoint's or that of --init-from, which the flags must not contradict, or as flags and
// data ask for. `tokenizer_vocab_size` is 0 if the data has no tokenizer.
GptShape find_shape(const RunRequest& request, int64_t tokenizer_vocab_size);

// See start.h.
#include "llmc/train/start.h"
#include <cstdio>
#include <filesystem>
#include "llmc/base/check.h"           // require
#include "llmc/base/file.h"            // read_file
#include "llmc/train/checkpointing.h"  // checkpoint_shape, kTrainConfigFile

namespace {

constexpr const char* kDescription =
    "Trains a GPT on token shards, which data/prepare makes of text. Examples are in README.md, all flags in "
    "doc/flags.md.";

std::string text_of(const GptShape& s) {
    return format("%ld layers, %ld heads, %ld channels, a vocabulary of %ld", s.num_layers, s.num_heads, s.channels,
                  s.vocab_size);
}

std::string parent_folder(const std::string& path) {
    const std::string parent = std::filesystem::path(path).parent_path();
    return parent.empty() ? "." : parent;
}

// What --resume names. An empty path: `auto`, and nothing there yet.
FoundCheckpoint find_asked(const TrainConfig& config) {
    const bool automatic = config.resume == "auto";
    const std::string& where = automatic ? config.out_dir : config.resume;
    FoundCheckpoint found = find_checkpoint(where);
    if (found.path.empty()) {
        std::string whys;
        for (const PassedOver& other : found.passed_over)
            whys += (whys.empty() ? "" : "; ") + other.path + ": " + other.why;
        require(whys.empty(), "--resume %s: no checkpoint in %s verifies (%s); to start anew, give another --out-dir",
                config.resume.c_str(), where.c_str(), whys.c_str());
        require(automatic, "--resume %s: there is no checkpoint; give a run's folder, one of its checkpoints, or auto",
                config.resume.c_str());
    }
    for (const PassedOver& other : found.passed_over)
        std::fprintf(stderr, "warning: passed over %s: %s\n", other.path.c_str(), other.why.c_str());
    return found;
}

// The folder may hold this run's past, but not its future nor another run: pruning and the next --resume could not tell
// them apart.
void check_out_dir(const Start& start) {
    const std::string& out_dir = start.config.out_dir;
    const std::vector<int64_t> steps = checkpoint_steps(out_dir);
    if (steps.empty()) return;
    require(start.resumed(),
            "%s holds the checkpoints of a run: continue it with --resume auto, or give another --out-dir",
            out_dir.c_str());
    std::error_code ignored;
    const std::string home = parent_folder(start.from.path);
    require(std::filesystem::equivalent(out_dir, home, ignored),
            "--out-dir %s holds the checkpoints of another run than %s: give another --out-dir", out_dir.c_str(),
            start.from.path.c_str());
    // Newer ones that were passed over are damaged, and will be replaced.
    require(steps.back() <= start.from.step || !start.from.passed_over.empty(),
            "%s holds newer checkpoints than step %ld, up to step %ld: to go another way from there, give another "
            "--out-dir",
            out_dir.c_str(), start.from.step, steps.back());
}

}  // namespace

Start find_start(int argc, char** argv) {
    Start start;
    TrainConfig& config = start.config;
    const Flags flags = parse_flags(config.fields(), argc, argv, kDescription);
    start.help = flags.help;
    if (start.help) return start;
    if (!config.resume.empty()) start.from = find_asked(config);
    if (start.resumed()) {
        const std::string stored = start.from.path + "/" + kTrainConfigFile;
        config = TrainConfig();
        from_json(config.fields(), read_file(stored), stored);
        config.resume.clear();
        parse_flags(config.fields(), argc, argv, kDescription);
        if (!flags.has("out-dir")) config.out_dir = parent_folder(start.from.path);
    }
    check_out_dir(start);
    config.validate();
    return start;
}

GptShape find_shape(const Start& start, int64_t tokenizer_vocab_size) {
    ModelConfig asked = start.config.model;
    if (!start.resumed()) return asked.shape(tokenizer_vocab_size);
    const GptShape stored = checkpoint_shape(start.from.path);
    require(asked.seq_len <= stored.max_seq_len, "--seq-len %d is above the %ld positions of the model in %s",
            asked.seq_len, stored.max_seq_len, start.from.path.c_str());
    if (!asked.vocab_size) asked.vocab_size = int(stored.vocab_size);
    GptShape shape = asked.shape(tokenizer_vocab_size);
    shape.max_seq_len = stored.max_seq_len;  // a model may go on with shorter sequences
    require(shape == stored, "%s is of another model: it has %s, and the flags and the data ask for %s",
            start.from.path.c_str(), text_of(stored).c_str(), text_of(shape).c_str());
    return stored;
}

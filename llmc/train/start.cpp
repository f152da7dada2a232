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

// What --resume names. An empty path: `auto`, and nothing there yet.
FoundCheckpoint find_asked(const TrainConfig& config) {
    const bool automatic = config.resume == "auto";
    FoundCheckpoint found = find_checkpoint(automatic ? config.out_dir : config.resume);
    for (const PassedOver& other : found.passed_over)
        std::fprintf(stderr, "warning: passed over %s: %s\n", other.path.c_str(), other.why.c_str());
    require(!found.path.empty() || (automatic && found.passed_over.empty()),
            "--resume %s: there is no checkpoint that verifies in %s; to start anew, give another --out-dir",
            config.resume.c_str(), automatic ? config.out_dir.c_str() : config.resume.c_str());
    return found;
}

}  // namespace

Start find_start(int argc, char** argv) {
    Start start;
    TrainConfig& config = start.config;
    const Flags flags = parse_flags(config.fields(), argc, argv, kDescription);
    start.help = flags.help;
    if (start.help) return start;
    if (config.resume.empty()) {
        require(checkpoint_steps(config.out_dir).empty(),
                "%s holds the checkpoints of a run: continue it with --resume auto, or give another --out-dir",
                config.out_dir.c_str());
    } else {
        start.from = find_asked(config);
    }
    if (start.resumed()) {
        const std::string stored = start.from.path + "/" + kTrainConfigFile;
        config = TrainConfig();
        from_json(config.fields(), read_file(stored), stored);
        config.resume.clear();
        parse_flags(config.fields(), argc, argv, kDescription);
        if (!flags.has("out-dir")) config.out_dir = std::filesystem::path(start.from.path).parent_path();
    }
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

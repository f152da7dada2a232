// See start.h.
#include "llmc/train/start.h"
#include <cstdio>
#include <filesystem>
#include "llmc/base/check.h"           // require
#include "llmc/base/file.h"            // read_file
#include "llmc/data/tokenizer.h"       // load_tokenizer
#include "llmc/data/utf8.h"            // printable
#include "llmc/interop/export.h"       // export_model
#include "llmc/train/checkpointing.h"  // checkpoint_shape, kTrainConfigFile

namespace {

constexpr const char* kDescription =
    "Trains a GPT on token shards, which data/tokenize makes of text. Examples are in README.md, all flags in "
    "doc/flags.md.";

Flags parse(TrainConfig& config, int argc, char** argv) {
    const Flags flags = parse_flags(config.fields(), argc, argv, kDescription);
    // Who brings text of their own does not mean to validate on tiny Shakespeare.
    if (flags.has("train-data") && !flags.has("val-data")) config.val_data.clear();
    return flags;
}

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
        std::error_code ignored;
        const bool is_model = std::filesystem::exists(where + "/config.json", ignored);
        require(automatic,
                "--resume %s: there is no checkpoint; give a run's folder, one of its checkpoints, or auto%s",
                config.resume.c_str(), is_model ? "; a model of another program is for --init-from" : "");
    }
    for (const PassedOver& other : found.passed_over)
        std::fprintf(stderr, "warning: passed over %s: %s\n", other.path.c_str(), printable(other.why).c_str());
    return found;
}

// The folder may hold this run's past, but not its future nor another run: pruning and the next --resume could not tell
// them apart.
void check_out_dir(const Start& start) {
    const std::string& out_dir = start.config.out_dir;
    check_names_are_free(out_dir);
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

// --init-from. Rank 0 checks all of it. The flags of the model are its own from here on, so that the run can be resumed
// without it; and so is the tokenizer, where the data have none.
void open_source(Start& start, Ranks& ranks) {
    TrainConfig& config = start.config;
    on_first_rank(ranks, [&] { start.source = std::make_shared<const StoredModel>(config.init_from); });
    const std::string path = ranks.broadcast(start.source ? start.source->path() : "");
    share_errors(ranks, [&] {
        if (!start.source) start.source = std::make_shared<const StoredModel>(path, true);
    });
    config.model.follow(start.source->shape());
    const std::string tokenizer = start.source->tokenizer_path();
    const bool has_data = config.generate.empty() && (!config.eval_only || !config.val_data.empty());
    if (tokenizer.empty() || (has_data && std::filesystem::exists(config.tokenizer_path()))) return;
    try {
        load_tokenizer(tokenizer);
        config.tokenizer = tokenizer;
        if (has_data && ranks.rank == 0)
            std::fprintf(stderr, "warning: no tokenizer.json beside the data: taken to be in the tokens of %s\n",
                         tokenizer.c_str());
    } catch (const Error& error) {
        if (ranks.rank == 0)
            std::fprintf(stderr, "warning: no samples and no bits per byte, for want of a tokenizer: %s\n",
                         printable(error.what()).c_str());
    }
}

}  // namespace

std::string export_asked(const TrainConfig& config) {
    require(!config.init_from.empty() || !config.resume.empty(),
            "--export %s: expected --init-from MODEL, the model to write", config.export_format.c_str());
    const StoredModel model(!config.init_from.empty() ? config.init_from
                            : config.resume == "auto" ? config.out_dir
                                                      : config.resume);
    const DType dtype = config.dtype == "auto" ? model.dtype() : config.dtype == "bf16" ? DType::bf16 : DType::f32;
    return export_model(model, config.export_format, config.out_dir, dtype);
}

TrainConfig parse_config(int argc, char** argv, bool* help) {
    TrainConfig config;
    const Flags flags = parse(config, argc, argv);
    require(!flags.has("generate") || !config.generate.empty(),
            "--generate is empty, but a text to continue begins somewhere: give at least a line break");
    *help = flags.help;
    return config;
}

Start find_start(int argc, char** argv, Ranks& ranks) {
    Start start;
    TrainConfig& config = start.config;
    const Flags flags = parse(config, argc, argv);
    if (!config.resume.empty()) {
        on_first_rank(ranks, [&] { start.from = find_asked(config); });
        start.from.path = ranks.broadcast(start.from.path);
        start.from.step = ranks.all_gather_values(start.from.step, "the step to go on from")[0];
    }
    bool by_muon = false;  // the checkpoint's --optimizer
    if (start.resumed()) {
        const std::string stored = start.from.path + "/" + kTrainConfigFile;
        share_errors(ranks, [&] {
            require(std::filesystem::exists(stored),
                    "%s, which rank 0 resumes from, is not there: every rank must see the same folder", stored.c_str());
            config = TrainConfig();
            from_older_json(config.fields(), read_file(stored), stored);
        });
        by_muon = config.muon();
        config.resume.clear();
        config.reset_launch();
        parse_flags(config.fields(), argc, argv, kDescription);
        if (!flags.has("out-dir")) config.out_dir = parent_folder(start.from.path);
    }
    if (!start.resumed() && !config.init_from.empty()) {
        // What nobody named is no measure of a model that comes from elsewhere.
        if (config.eval_only && !flags.has("val-data")) config.val_data.clear();
        open_source(start, ranks);
    }
    if (!config.eval_only && config.generate.empty()) on_first_rank(ranks, [&] { check_out_dir(start); });
    share_errors(ranks, [&] {
        // A run that has it from a checkpoint goes on at any number of ranks.
        require(!flags.has("noise-scale") || !config.noise_scale || ranks.world_size > 1,
                "--noise-scale compares each rank's gradient with that of all, and this is one rank: start it with "
                "mpirun or torchrun, give --virtual-ranks 2, or leave it out");
        require(
            !config.eval_only || start.resumed() || start.source,
            "--eval-only looks at a model that there is: give --resume, a run's folder or one of its checkpoints, or "
            "--init-from");
        require(!config.eval_only || !config.val_data.empty() || !config.eval_tasks.empty(),
                "--eval-only has nothing to look at: give --val-data, in the model's tokens, or --eval-tasks");
        require(config.steps != 0 || config.eval_only || !config.generate.empty() || !start.source ||
                    flags.has("train-data") || flags.has("val-data"),
                "--steps 0 validates the model of --init-from, and nobody has said on which data: give --train-data "
                "and --val-data, in its tokens");
        config.validate();
        // AdamW's second moments could be read as Muon's, which mean something else.
        const auto name = [](bool muon) { return muon ? "muon" : "adamw"; };
        require(!start.resumed() || config.muon() == by_muon,
                "%s holds the state of --optimizer %s, with which --optimizer %s cannot go on: leave that flag out",
                start.from.path.c_str(), name(by_muon), name(config.muon()));
    });
    return start;
}

GptShape find_shape(const Start& start, int64_t tokenizer_vocab_size) {
    ModelConfig asked = start.config.model;
    if (!start.resumed() && !start.source) return asked.shape(tokenizer_vocab_size);
    const GptShape stored = start.source ? start.source->shape() : checkpoint_shape(start.from.path);
    const std::string& path = start.path();
    require(asked.seq_len <= stored.max_seq_len, "--seq-len %d is above the %ld positions of the model in %s",
            asked.seq_len, stored.max_seq_len, path.c_str());
    if (!asked.vocab_size) asked.vocab_size = int(stored.vocab_size);
    GptShape shape = asked.shape(tokenizer_vocab_size);
    shape.max_seq_len = stored.max_seq_len;  // a model may go on with shorter sequences
    require(shape == stored, "%s is of another model: it has %s, and the flags and the data ask for %s", path.c_str(),
            text_of(stored).c_str(), text_of(shape).c_str());
    return stored;
}

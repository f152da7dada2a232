// See run_request.h.
#include "llmc/train/run_request.h"
#include <cstdio>
#include <filesystem>
#include "llmc/base/check.h"               // require
#include "llmc/base/file.h"                // read_file
#include "llmc/data/tokenizer.h"           // load_tokenizer
#include "llmc/data/utf8.h"                // printable
#include "llmc/interop/export.h"           // export_model
#include "llmc/train/checkpointing.h"      // checkpoint_shape, kRunFlagsFile
#include "llmc/train/local_checkpoints.h"  // bring_in_local
#include "llmc/train/parts.h"              // PartSender, PartReader
#include "llmc/train/placement.h"          // identity_of

namespace {

std::string text_of(const GptShape& s) {
    return format("%ld layers, %ld heads, %ld channels, a vocabulary of %ld", s.num_layers, s.num_heads, s.channels,
                  s.vocab_size);
}

// Names the source of all flags that differ from those before.
void note_changes(RunFlags& flags, RunFlags before, const std::string& source) {
    const std::vector<Field> now = flags.fields(), then = before.fields();
    for (size_t i = 0; i < now.size(); i++)
        if (text_of(now[i]) != text_of(then[i])) flags.sources[now[i].name] = source;
}

std::string parent_folder(const std::string& path) {
    const std::string parent = std::filesystem::path(path).parent_path();
    return parent.empty() ? "." : parent;
}

// What --resume names. An empty path: `auto`, and nothing there yet.
FoundCheckpoint find_asked(const RunFlags& flags) {
    const bool automatic = flags.resume == "auto";
    const std::string& where = automatic ? flags.out_dir : flags.resume;
    FoundCheckpoint found = find_checkpoint(where);
    if (found.path.empty()) {
        std::string whys;
        for (const PassedOver& other : found.passed_over)
            whys += (whys.empty() ? "" : "; ") + other.path + ": " + other.why;
        require(whys.empty(), "--resume %s: no checkpoint in %s verifies (%s); to start anew, give another --out-dir",
                flags.resume.c_str(), where.c_str(), whys.c_str());
        std::error_code ignored;
        const bool is_model = std::filesystem::exists(where + "/config.json", ignored);
        require(automatic,
                "--resume %s: there is no checkpoint; give a run's folder, one of its checkpoints, or auto%s",
                flags.resume.c_str(), is_model ? "; a model of another program is for --init-from" : "");
    }
    for (const PassedOver& other : found.passed_over)
        std::fprintf(stderr, "warning: passed over %s: %s\n", other.path.c_str(), printable(other.why).c_str());
    return found;
}

constexpr const char* kSmallFiles[] = {kRunFlagsFile, kStateFile, "config.json", "tokenizer.json"};

// Who sees the checkpoint that rank 0 has found, under its path or one of their own, reads it there; the others get its
// small files from rank 0, and their state later (loading.h).
void share_checkpoint(RunRequest& request, const RunFlags& asked, Ranks& ranks) {
    std::string& path = request.checkpoint.path;
    const std::string manifest = "/manifest.json", identity = ranks.broadcast(identity_of(path + manifest));
    if (ranks.rank != 0) {
        const std::string name = std::filesystem::path(path).filename();
        request.is_here = false;
        for (const std::string& own : {path, asked.resume, asked.resume + "/" + name, asked.out_dir + "/" + name}) {
            if (identity.empty() || identity_of(own + manifest) != identity) continue;
            path = own, request.is_here = true;
            break;
        }
    }
    const std::vector<std::string> all = ranks.all_gather(request.is_here ? "yes" : "");
    for (size_t r = 0; r < all.size(); r++)
        if (all[r].empty()) request.elsewhere.push_back(int(r));
    if (request.elsewhere.empty()) return;
    share_errors(ranks, [&] {
        const Watchdog::Patience patience(ranks.watchdog());
        if (ranks.rank == 0) {
            for (const int r : request.elsewhere) {
                PartSender part(ranks, r);
                for (const char* file : kSmallFiles)
                    part.write_text(request.has_checkpoint_file(file) ? request.checkpoint_file(file) : "");
                part.finish();
            }
        } else if (!request.is_here) {
            PartReader part(ranks);
            for (const char* file : kSmallFiles) request.sent_files[file] = part.read_text();
            part.finish();
        }
    });
    if (ranks.rank == 0)
        std::printf("checkpoint: %s %s not see it; rank 0 sends what is needed of it\n",
                    rank_list(request.elsewhere).c_str(), request.elsewhere.size() == 1 ? "does" : "do");
}

// The folder may hold this run's past, but not its future nor another run: pruning and the next --resume could not tell
// them apart.
void check_out_dir(const RunRequest& request) {
    const std::string& out_dir = request.flags.out_dir;
    check_names_are_free(out_dir);
    const std::vector<int64_t> steps = checkpoint_steps(out_dir);
    if (steps.empty()) return;
    require(request.resumed(),
            "%s holds the checkpoints of a run: continue it with --resume auto, or give another --out-dir",
            out_dir.c_str());
    std::error_code ignored;
    const std::string home = parent_folder(request.checkpoint.path);
    require(std::filesystem::equivalent(out_dir, home, ignored),
            "--out-dir %s holds the checkpoints of another run than %s: give another --out-dir", out_dir.c_str(),
            request.checkpoint.path.c_str());
    // Newer ones that were passed over are damaged, and will be replaced.
    require(steps.back() <= request.checkpoint.step || !request.checkpoint.passed_over.empty(),
            "%s holds newer checkpoints than step %ld, up to step %ld: to go another way from there, give another "
            "--out-dir",
            out_dir.c_str(), request.checkpoint.step, steps.back());
}

// --init-from. Rank 0 checks all of it. The flags of the model are its own from here on, so that the run can be resumed
// without it; and so is the tokenizer, where the data have none.
void open_source(RunRequest& request, Ranks& ranks) {
    RunFlags& flags = request.flags;
    on_first_rank(ranks, [&] { request.source = std::make_shared<const StoredModel>(flags.init_from); });
    const std::string path = ranks.broadcast(request.source ? request.source->path() : "");
    share_errors(ranks, [&] {
        if (!request.source) request.source = std::make_shared<const StoredModel>(path, true);
    });
    const RunFlags before = flags;
    flags.model.follow(request.source->shape());
    note_changes(flags, before, flags.init_from);
    const std::string tokenizer = request.source->tokenizer_path();
    const bool has_data = flags.trains() || (flags.evaluates() && !flags.val_data.empty());
    if (tokenizer.empty() || (has_data && std::filesystem::exists(flags.tokenizer_path()))) return;
    try {
        load_tokenizer(tokenizer);
        flags.tokenizer = tokenizer;
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

std::string RunRequest::checkpoint_file(const std::string& name) const {
    const auto sent = sent_files.find(name);
    return sent != sent_files.end() ? sent->second : read_file(checkpoint.path + "/" + name);
}

bool RunRequest::has_checkpoint_file(const std::string& name) const {
    if (!is_here) return sent_files.contains(name) && !sent_files.at(name).empty();
    std::error_code ignored;
    return std::filesystem::exists(checkpoint.path + "/" + name, ignored);
}

RunRequest find_request(const CommandLine& line, Ranks& ranks) {
    RunRequest request{.flags = line.run};
    RunFlags& flags = request.flags;
    if (!flags.resume.empty()) {
        // A run's folder, of the run that goes on in it. A single checkpoint is that one and no other.
        const std::string& where = flags.resume == "auto" ? flags.out_dir : flags.resume;
        const bool is_same = flags.resume == "auto" || !line.given.has("out-dir") || flags.out_dir == where;
        const bool looks = ranks.broadcast(is_same ? "yes" : "") == "yes";  // out-dir is each rank's own
        if (flags.trains() && !flags.dry_run && looks) request.local_run = bring_in_local(ranks, where);
        on_first_rank(ranks, [&] { request.checkpoint = find_asked(flags); });
        request.checkpoint.path = ranks.broadcast(request.checkpoint.path);
        request.checkpoint.step = ranks.all_gather_values(request.checkpoint.step, "the step to go on from")[0];
    }
    std::string optimizer;  // the checkpoint's
    if (request.resumed()) {
        share_checkpoint(request, line.run, ranks);
        const std::string stored = request.checkpoint.path + "/" + kRunFlagsFile;
        share_errors(ranks, [&] {
            flags = RunFlags();
            flags.command = line.run.command;
            from_older_json(flags.fields(), request.checkpoint_file(kRunFlagsFile), stored);
        });
        note_changes(flags, RunFlags(), "the checkpoint");
        optimizer = flags.chosen_recipe().optimizer();
        flags.resume.clear();
        flags.reset_launch();
        set_given(flags.fields(), line.given);
        note_given(flags, line.given);
        // With `auto` that is where it was found, and on a rank that sees another folder this is its own.
        if (!line.given.has("out-dir"))
            flags.out_dir = line.run.resume == "auto" ? line.run.out_dir : parent_folder(request.checkpoint.path);
    }
    if (!request.resumed() && !flags.init_from.empty()) {
        // The default validation data are no measure of a model from elsewhere.
        if (flags.evaluates() && !line.given.has("val-data")) flags.val_data.clear();
        open_source(request, ranks);
    }
    if (flags.trains()) on_first_rank(ranks, [&] { check_out_dir(request); });
    share_errors(ranks, [&] {
        // A run that has it from a checkpoint goes on at any number of ranks.
        require(!line.given.has("noise-scale") || !flags.noise_scale || ranks.world_size > 1,
                "--noise-scale compares each rank's gradient with that of all, and this is one rank: start it with "
                "mpirun or torchrun, give --virtual-ranks 2, or leave it out");
        require(flags.trains() || request.resumed() || request.source,
                "expected the model to %s: give --resume, a run's folder or one of its checkpoints, or --init-from",
                flags.evaluates()                ? "evaluate"
                : flags.command == Command::chat ? "talk to"
                                                 : "generate with");
        require(!flags.evaluates() || !flags.val_data.empty() || !flags.eval_tasks.empty(),
                "nothing to evaluate: give --val-data, in the model's tokens, or --eval-tasks");
        require(flags.steps != int64_t(0) || !flags.trains() || !request.source || line.given.has("train-data") ||
                    line.given.has("val-data"),
                "--steps 0 validates the model of --init-from, and nobody has said on which data: give --train-data "
                "and --val-data, in its tokens");
        flags.validate();
        // Rules may give the same name to state that means something else.
        const std::string asked = flags.chosen_recipe().optimizer();
        require(!request.resumed() || asked == optimizer,
                "%s holds the state of --optimizer %s, with which --optimizer %s cannot go on: leave that flag out",
                request.checkpoint.path.c_str(), optimizer.c_str(), asked.c_str());
    });
    return request;
}

std::string export_asked(const CommandLine& line) {
    const RunFlags& flags = line.run;
    require(!flags.init_from.empty() || !flags.resume.empty(),
            "expected the model to export: give --resume, a run's folder or one of its checkpoints, or --init-from");
    require(line.given.has("out-dir"), "expected --out-dir, the folder to write");
    const StoredModel model(!flags.init_from.empty() ? flags.init_from
                            : flags.resume == "auto" ? flags.out_dir
                                                     : flags.resume);
    const DType dtype = flags.dtype == "auto" ? model.dtype() : flags.dtype == "bf16" ? DType::bf16 : DType::f32;
    return export_model(model, line.exported.format, flags.out_dir, dtype);
}

GptShape find_shape(const RunRequest& request, int64_t tokenizer_vocab_size) {
    ModelConfig asked = request.flags.model;
    if (!request.resumed() && !request.source) return asked.shape(tokenizer_vocab_size);
    const std::string& path = request.path();
    const GptShape stored = request.source
                                ? request.source->shape()
                                : checkpoint_shape(request.checkpoint_file("config.json"), path + "/config.json");
    require(asked.seq_len <= stored.max_seq_len, "--seq-len %d is above the %ld positions of the model in %s",
            asked.seq_len, stored.max_seq_len, path.c_str());
    if (!asked.vocab_size) asked.vocab_size = int(stored.vocab_size);
    GptShape shape = asked.shape(tokenizer_vocab_size);
    shape.max_seq_len = stored.max_seq_len;  // a model may go on with shorter sequences
    require(same_model(shape, stored), "%s is of another model: it has %s, and the flags and the data ask for %s",
            path.c_str(), text_of(stored).c_str(), text_of(shape).c_str());
    return stored;
}

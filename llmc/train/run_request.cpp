// See run_request.h.
#include "llmc/train/run_request.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <thread>
#include <tuple>
#include "llmc/base/check.h"            // require
#include "llmc/base/file.h"             // files_matching, read_file, thread_read_bytes
#include "llmc/base/script.h"           // find_script, script_lines
#include "llmc/checkpoint/run_state.h"  // checkpoint_shape, kRunFlagsFile
#include "llmc/comm/handshake.h"        // check_alike
#include "llmc/checkpoint/parts.h"      // PartSender, PartReader
#include "llmc/checkpoint/placement.h"  // identity_of
#include "llmc/data/mixture.h"          // data_sources
#include "llmc/data/tokenizer.h"        // load_tokenizer
#include "llmc/data/utf8.h"             // printable
#include "llmc/interop/adapter.h"       // base_hash, check_base, expected_hash
#include "llmc/interop/export.h"        // export_model
#include "llmc/run/child_process.h"     // why_not_run
#include "llmc/run/stop.h"              // stop_signal

namespace {

std::string text_of(const GptShape& s) {
    const double scale = s.architecture.score_scale;
    return format("%ld layers, %ld heads, %ld channels, a vocabulary of %ld", s.num_layers, s.num_heads, s.channels,
                  s.vocab_size) +
           (scale > 0 ? format(", score-scale %g", scale) : "");
}

// Fills in what the run decided at its start, if its checkpoint is an older one that does not tell. It stays decided:
// neither the number of ranks nor a new --steps may change it.
void fill_in_decided(RunFlags& flags, const RunState& state) {
    const bool knows_length =
        flags.steps || (flags.model.depth == 0 && flags.target_flops == 0 && flags.target_param_data_ratio == 0);
    if (!flags.warmup_steps && knows_length) flags.warmup_steps = flags.chosen_recipe().warmup_steps;
    if (flags.total_batch_size == 0 && flags.model.depth == 0 && state.step > 0 && state.tokens % state.step == 0)
        flags.total_batch_size = state.tokens / state.step;
}

// Where the checkpoint's run looked for data that are not there now.
void check_data_is_here(const RunFlags& flags) {
    for (const auto& [flag, pattern, is_read] : {std::tuple{"train-data", flags.train_data, flags.trains()},
                                                 {"val-data", flags.val_data, !flags.generates()}}) {
        const std::string source = flags.source_of(flag);
        if (!is_read || pattern.empty() || (!source.empty() && source != "the checkpoint")) continue;
        for (const DataSource& data : data_sources(pattern))
            require(!files_matching(data.pattern).empty() || data.pattern.starts_with("/"),
                    "no file matches '%s' in %s: this relative path is from the checkpoint; resume in the folder where "
                    "the run was started, or give --%s",
                    data.pattern.c_str(), std::filesystem::current_path().c_str(), flag);
    }
}

// The type of a checkpoint's weights. Collective.
std::string stored_dtype(const FoundCheckpoint& checkpoint, Ranks& ranks) {
    std::string type;
    on_first_rank(ranks, [&] { type = StoredModel(checkpoint.path, true).dtype() == DType::bf16 ? "bf16" : "fp32"; });
    return ranks.broadcast(type);
}

// Sets the source of all flags that differ from those before.
void note_changes(RunFlags& flags, RunFlags before, const std::string& source) {
    const std::vector<Field> now = flags.fields(), then = before.fields();
    for (size_t i = 0; i < now.size(); i++)
        if (text_of(now[i]) != text_of(then[i])) flags.sources[now[i].name] = source;
}

std::string parent_folder(const std::string& path) {
    const std::string parent = std::filesystem::path(path).parent_path();
    return parent.empty() ? "." : parent;
}

// Where this rank sees the checkpoint that rank 0 has at `path`: at the same path or at its own. Empty: nowhere.
std::string own_path(const std::string& path, const std::string& identity, const RunFlags& asked) {
    const std::string name = std::filesystem::path(path).filename();
    for (const std::string& own : {path, asked.resume, asked.resume + "/" + name, asked.out_dir + "/" + name})
        if (!identity.empty() && identity_of(own + kManifestFile) == identity) return own;
    return "";
}

// Rank 0 looks for a checkpoint. Ranks that see the same folder help to verify it, a share of its bytes each:
//
//   SharedVerification together(flags, ranks);
//   if (rank 0) found = find_checkpoint(where, [&](const std::string& folder) { return together.verify(folder); });
//   together.finish();                                     the other ranks help until rank 0 calls this, too
class SharedVerification {
public:
    SharedVerification(const RunFlags& flags, Ranks& ranks) : flags_(flags), ranks_(ranks) {}

    Verified verify(const std::string& folder) {
        const Verification check(folder);
        Verified found = check.found();
        if (!found.why.empty()) return found;
        ranks_.broadcast(identity_of(folder + kManifestFile) + " " + folder);
        found.why = share(folder);
        return found;
    }
    void finish() {
        if (ranks_.rank == 0) {
            ranks_.broadcast("");
            return;
        }
        for (std::string asked; !(asked = ranks_.broadcast("")).empty();) {
            const size_t space = asked.find(' ');
            ranks_.require_sense(space != std::string::npos, 0, "the checkpoint to verify");
            share(own_path(asked.substr(space + 1), asked.substr(0, space), flags_));
        }
    }

private:
    const RunFlags& flags_;
    Ranks& ranks_;

    // `folder`: on this rank; empty if it sees none. Returns what is damaged, on rank 0.
    std::string share(const std::string& folder) {
        const std::vector<std::string> sees = ranks_.all_gather(folder.empty() ? "" : "yes");
        const auto number_below = [&](size_t r) { return int(std::count(sees.begin(), sees.begin() + r, "yes")); };
        std::string mine;
        share_errors(ranks_, [&] {
            if (folder.empty()) return;
            const Verification check(folder);
            mine = check.found().why;
            if (mine.empty()) mine = check.why_damaged(number_below(size_t(ranks_.rank)), number_below(sees.size()));
        });
        const std::vector<std::string> all = ranks_.gather(mine);
        for (size_t r = 0; r < all.size(); r++)
            if (!all[r].empty()) return r == 0 ? all[r] : peer_text(all[r]);
        return "";
    }
};

// The checkpoint that --resume names. Empty path: `auto`, and there is none yet. `not_brought`: why --before-resume has
// failed; then a run must not begin anew.
FoundCheckpoint find_asked(const RunFlags& flags, const std::string& not_brought, SharedVerification& together) {
    const bool automatic = flags.resume == "auto";
    const std::string& where = automatic ? flags.out_dir : flags.resume;
    FoundCheckpoint found = find_checkpoint(where, [&](const std::string& folder) { return together.verify(folder); });
    if (found.path.empty()) {
        if (!not_brought.empty())
            throw Error(kExitRank, format("--before-resume %s, and there is no checkpoint in %s: let it end with exit "
                                          "code 0 once it has looked, also where there is none yet",
                                          not_brought.c_str(), where.c_str()));
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

// --resume auto continues from rank 0's folder. If ranks do not share a folder, another rank's may have a newer
// checkpoint, from a time when that rank was rank 0. Then steps would be trained again.
void check_first_has_newest(const std::string& out_dir, Ranks& ranks) {
    int64_t mine = -1;
    share_errors(ranks, [&] {
        const std::vector<int64_t> steps = checkpoint_steps(out_dir);
        if (!steps.empty()) mine = steps.back();
    });
    const int64_t first = ranks.all_gather_values(mine, "the step of its newest checkpoint")[0];
    share_errors(ranks, [&] {
        require(
            mine <= first,
            "%s holds checkpoints up to step %ld here, and rank 0 has %s: start rank 0 on this host, or give another "
            "--out-dir",
            out_dir.c_str(), mine, first < 0 ? "none" : format("them up to step %ld", first).c_str());
    });
}

// --before-resume, on rank 0: it alone needs the files, and sends the others theirs. They wait up to io-timeout, and
// all attempts together end before that. Returns why it was not done; "": it was.
std::string run_before_resume(const RunFlags& flags) {
    constexpr int kAttempts = 3;
    const std::string out_dir = std::filesystem::absolute(flags.out_dir);
    std::error_code ignored;  // the command will say more
    std::filesystem::create_directories(out_dir, ignored);
    const auto began = std::chrono::steady_clock::now();
    std::string why;
    for (int attempt = 0; attempt < kAttempts; attempt++) {
        std::this_thread::sleep_for(std::chrono::seconds(attempt));
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - began;
        const double left_s = 0.9 * flags.io_timeout_s - taken.count();
        if (left_s <= 0) break;
        why = why_not_run(flags.before_resume, {"ANVIL_OUT_DIR=" + out_dir}, left_s,
                          [] { return stop_signal() != nullptr; });
        if (why.empty() || stop_signal()) break;
        std::fprintf(stderr, "warning: --before-resume %s\n", why.c_str());
    }
    return why;
}

// Collective. The path is rank 0's.
FoundCheckpoint find_together(const RunFlags& flags, const std::string& not_brought, Ranks& ranks) {
    const Watchdog::Patience patience(ranks.watchdog());
    FoundCheckpoint found;
    SharedVerification together(flags, ranks);
    std::exception_ptr error;
    if (ranks.rank == 0) try {
            found = find_asked(flags, not_brought, together);
        } catch (const SharedError&) {
            throw;  // the other ranks throw it, too
        } catch (const Error&) {
            error = std::current_exception();
        }
    together.finish();
    on_first_rank(ranks, [&] {
        if (error) std::rethrow_exception(error);
    });
    found.path = ranks.broadcast(found.path);
    found.step = ranks.all_gather_values(found.step, "the step to go on from")[0];
    return found;
}

constexpr const char* kSmallFiles[] = {kRunFlagsFile, kStateFile, "config.json", "tokenizer.json"};

// Ranks that see the checkpoint that rank 0 has found, at the same path or at their own, read it there. The others
// receive its small files from rank 0, and their state later (loading.h).
void share_checkpoint(RunRequest& request, const RunFlags& asked, Ranks& ranks) {
    std::string& path = request.checkpoint.path;
    const std::string identity = ranks.broadcast(identity_of(path + kManifestFile));
    if (ranks.rank != 0) {
        const std::string own = own_path(path, identity, asked);
        request.is_here = !own.empty();
        if (request.is_here) path = own;
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
    // Newer checkpoints that were passed over are damaged and will be replaced.
    require(steps.back() <= request.checkpoint.step || !request.checkpoint.passed_over.empty(),
            "%s holds newer checkpoints than step %ld, up to step %ld: resume from the newest (--resume %s), or give "
            "another --out-dir to train from step %ld again",
            out_dir.c_str(), request.checkpoint.step, steps.back(), out_dir.c_str(), request.checkpoint.step);
}

// The file or folder as given, or the folder of a model with this name on the hub, which a script downloads.
std::string model_path(const std::string& asked) {
    std::error_code ignored;
    const std::string script = find_script("data/model.sh");
    if (script.empty() || asked.find('/') != std::string::npos || std::filesystem::exists(asked, ignored)) return asked;
    std::string names;
    for (const std::string& name : script_lines(script, {"--names"})) {
        if (name == asked) return script_lines(script, {name}).back();
        names += (names.empty() ? "" : ", ") + name;
    }
    require(false, "%s: no such file or folder, and no model that is known by name: expected one of %s", asked.c_str(),
            names.c_str());
    return "";
}

// --init-from. Rank 0 checks the whole model. From here on the flags of the model are those of the source, so that the
// run can be resumed without it. So is the tokenizer, if the data has none.
void open_source(RunRequest& request, Ranks& ranks) {
    RunFlags& flags = request.flags;
    on_first_rank(ranks, [&] { request.source = std::make_shared<const StoredModel>(model_path(flags.init_from)); });
    const std::string path = ranks.broadcast(request.source ? request.source->path() : "");
    share_errors(ranks, [&] {
        if (!request.source) request.source = std::make_shared<const StoredModel>(path, true);
    });
    const RunFlags before = flags;
    flags.model.follow(flags.model.extended(request.source->shape()));
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

// --lora-rank: the model that does not learn, which all ranks read. A resumed run looks where its first start found it,
// or where --init-from says.
void open_base(RunRequest& request, Ranks& ranks) {
    RunFlags& flags = request.flags;
    std::string path;
    if (request.source) {
        request.base = request.source;
    } else {
        on_first_rank(ranks, [&] {
            const std::string where = model_path(flags.init_from);
            std::error_code ignored;
            require(std::filesystem::exists(where, ignored),
                    "%s: an adapter of %s, which is not there any more: give --init-from with its new place",
                    request.checkpoint.path.c_str(), where.c_str());
            request.base = std::make_shared<const StoredModel>(where);
        });
        path = ranks.broadcast(request.base ? request.base->path() : "");
    }
    share_errors(ranks, [&] {
        if (!request.base) request.base = std::make_shared<const StoredModel>(path, true);
        request.base_hash = base_hash(*request.base);
        flags.init_from = std::filesystem::absolute(request.base->path());
        if (request.resumed() && request.is_here)
            check_base(request.checkpoint.path, expected_hash(request.checkpoint.path), request.base->path(),
                       request.base_hash);
    });
    check_alike(ranks, {{"the base of the adapters", request.base_hash}});
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

std::string RunRequest::changed(const std::vector<const char*>& names) const {
    RunFlags now = flags, then = before;
    const std::vector<Field> ours = now.fields(), theirs = then.fields();
    std::string all;
    for (const char* name : names)
        for (size_t i = 0; i < ours.size(); i++)
            if (std::string(name) == ours[i].name && text_of(ours[i]) != text_of(theirs[i]))
                all += (all.empty() ? "--" : ", --") + std::string(name);
    return all;
}

RunRequest find_request(const CommandLine& line, Ranks& ranks) {
    RunRequest request{.flags = line.run};
    RunFlags& flags = request.flags;
    if (flags.command == Command::bench_comm) return request;
    if (!flags.resume.empty()) {
        std::string not_brought;
        if (ranks.rank == 0 && !flags.before_resume.empty()) not_brought = run_before_resume(flags);
        if (flags.resume == "auto" && ranks.world_size > 1) check_first_has_newest(flags.out_dir, ranks);
        request.checkpoint = find_together(flags, not_brought, ranks);
        request.verified_bytes = thread_read_bytes;
    }
    std::string optimizer;  // that of the checkpoint
    if (request.resumed()) {
        share_checkpoint(request, line.run, ranks);
        const std::string stored = request.checkpoint.path + "/" + kRunFlagsFile;
        share_errors(ranks, [&] {
            flags = RunFlags();
            flags.command = line.run.command;
            try {
                from_older_json(flags.fields(), by_new_names(request.checkpoint_file(kRunFlagsFile)), stored);
            } catch (const Error& error) {  // a choice of another version: its optimizer, say
                throw Error(error.exit_code,
                            error.what() + ("; its weights alone: --init-from " + request.checkpoint.path));
            }
            fill_in_decided(
                flags, run_state_of(request.checkpoint_file(kStateFile), request.checkpoint.path + "/" + kStateFile));
        });
        flags.resume.clear();
        flags.reset_launch();
        note_changes(flags, RunFlags(), "the checkpoint");
        optimizer = flags.chosen_recipe().optimizer();
        request.before = flags;
        set_given(flags.fields(), line.given);
        note_given(flags, line.given);
        share_errors(ranks, [&] {
            const std::string others =
                request.changed({"model", "depth", "mup-base-width", "lora-rank", "lora-targets", "lora-alpha"});
            require(others.empty(),
                    "%s is of a run with another %s: leave it out, or start a new run in another --out-dir",
                    request.checkpoint.path.c_str(), others.c_str());
        });
        if (flags.lora().is_on()) open_base(request, ranks);
        if (flags.dtype == "auto") {
            flags.dtype = stored_dtype(request.checkpoint, ranks);
            flags.sources["dtype"] = "the checkpoint";
        }
        share_errors(ranks, [&] { check_data_is_here(flags); });
        if (flags.trains() && flags.steps && ranks.rank == 0 && *flags.steps < request.checkpoint.step)
            std::fprintf(stderr, "warning: --steps %ld is below the checkpoint's step %ld: nothing is trained\n",
                         *flags.steps, request.checkpoint.step);
        // With `auto`, the folder in which it was found. A rank that does not share rank 0's folder uses its own.
        if (!line.given.has("out-dir"))
            flags.out_dir = line.run.resume == "auto" ? line.run.out_dir : parent_folder(request.checkpoint.path);
    }
    if (!request.resumed() && !flags.init_from.empty()) {
        // The default validation data does not measure another model.
        if (flags.evaluates() && !line.given.has("val-data")) flags.val_data.clear();
        open_source(request, ranks);
        if (flags.lora().is_on()) open_base(request, ranks);
    }
    if (flags.trains() && !flags.dry_run) on_first_rank(ranks, [&] { check_out_dir(request); });
    share_errors(ranks, [&] {
        require(flags.trains() || request.resumed() || request.source,
                "expected the model to %s: give --resume, a run's folder or one of its checkpoints, or --init-from",
                flags.evaluates()                ? "evaluate"
                : flags.command == Command::chat ? "talk to"
                                                 : "generate with");
        require(!flags.evaluates() || !flags.val_data.empty() || !flags.eval_tasks.empty(),
                "nothing to evaluate: give --val-data, in the model's tokens, or --eval-tasks");
        require(flags.steps != int64_t(0) || !flags.trains() || !request.source || line.given.has("train-data") ||
                    line.given.has("val-data"),
                "--steps 0 validates the model of --init-from, and no data are given: give --train-data "
                "and --val-data, in its tokens");
        require(!flags.lora().is_on() || request.base || flags.dry_run,
                "--lora-rank trains adapters of an existing model: give --init-from");
        flags.validate();
        // State of the same name may have another meaning in another rule.
        const std::string asked = flags.chosen_recipe().optimizer();
        require(!request.resumed() || asked == optimizer,
                "%s holds the state of --optimizer %s, with which --optimizer %s cannot continue: leave that flag out",
                request.checkpoint.path.c_str(), optimizer.c_str(), asked.c_str());
        const bool was_lean = request.resumed() && request.before.lean();
        require(!was_lean || flags.lean() || !flags.trains(),
                "%s is of --memory lean and has no fp32 master weights, from which --memory full would continue: leave "
                "--memory out, or start anew from its weights with --init-from",
                request.checkpoint.path.c_str());
        if (flags.trains() && flags.lean() && request.resumed() && !was_lean && ranks.rank == 0)
            std::printf(
                "--memory lean: the weights of %s are rounded to bf16; from here on they have no fp32 master weights\n",
                request.checkpoint.path.c_str());
        // Errors that do not depend on the vocabulary come first, before anything is measured.
        if (!request.resumed() && !request.source) flags.model.shape(1);
    });
    return request;
}

StoredModel stored_model(const RunRequest& request) { return StoredModel(request.path(), true, request.base); }

std::string export_asked(const CommandLine& line) {
    const RunFlags& flags = line.run;
    require(!flags.init_from.empty() || !flags.resume.empty(),
            "expected the model to export: give --resume, a run's folder or one of its checkpoints, or --init-from");
    require(line.given.has("out-dir"), "expected --out-dir, the folder to write");
    const std::string from = flags.init_from.empty() ? "" : model_path(flags.init_from);
    const std::string checkpoint = flags.resume == "auto" ? flags.out_dir : flags.resume;
    // With both, the checkpoint is an adapter and the other model its base.
    const StoredModel model(checkpoint.empty() ? from : checkpoint, false,
                            from.empty() || checkpoint.empty() ? nullptr : std::make_shared<const StoredModel>(from));
    require(from.empty() || checkpoint.empty() || model.adapter(),
            "%s is a whole model, and --init-from another: give one of them", model.path().c_str());
    const DType dtype = flags.dtype == "auto" ? model.dtype() : flags.dtype == "bf16" ? DType::bf16 : DType::f32;
    return export_model(model, line.exported.format, flags.out_dir, dtype);
}

GptShape find_shape(const RunRequest& request, int64_t tokenizer_vocab_size) {
    ModelConfig asked = request.flags.model;
    if (!request.resumed() && !request.source) return asked.shape(tokenizer_vocab_size);
    const std::string& path = request.path();
    GptShape stored = request.source ? asked.extended(request.source->shape())
                                     : checkpoint_shape(request.checkpoint_file("config.json"), path + "/config.json");
    require(
        asked.seq_len <= stored.max_seq_len, "--seq-len %d is above the %ld positions of the model in %s%s",
        asked.seq_len, stored.max_seq_len, path.c_str(),
        request.source && stored.architecture.rotary_positions
            ? ": lower it, or extend them by the lines rotary-scaling = yarn and rotary-factor in a file for --model"
            : "");
    if (!asked.vocab_size) asked.vocab_size = int(stored.vocab_size);
    GptShape shape = asked.shape(tokenizer_vocab_size);
    shape.max_seq_len = stored.max_seq_len;  // a model may be trained further on shorter sequences
    if (request.source && request.source->shape().max_seq_len != stored.max_seq_len) {
        require(
            !request.flags.lora().is_on(),
            "rotary-factor = %g with --lora-rank: adapters keep the positions of their base: train the model itself",
            shape.architecture.rotary.scaling.factor);
        stored.architecture.rotary = shape.architecture.rotary;  // YaRN's numbers may be others
    }
    require(same_model(shape, stored), "%s is of another model: it has %s, and the flags and the data ask for %s",
            path.c_str(), text_of(stored).c_str(), text_of(shape).c_str());
    stored.mup_base_width = shape.mup_base_width;  // of the training, not of the model
    return stored;
}

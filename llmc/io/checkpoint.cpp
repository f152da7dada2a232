// See checkpoint.h.
#include "llmc/io/checkpoint.h"
#include <algorithm>
#include <charconv>
#include <filesystem>
#include "llmc/base/check.h"  // require, ensure
#include "llmc/base/hash.h"   // xxh3, hex64
#include "llmc/base/file.h"   // FileWriter, make_folders, sync_folder

namespace fs = std::filesystem;

static constexpr const char *kBeingWritten = ".tmp", *kReplaced = ".old", *kBest = "/best";

std::string checkpoint_path(const std::string& out_dir, int64_t step) { return out_dir + format("/step_%08ld", step); }

namespace {
struct Folder {
    int64_t step;
    std::string suffix;  // "", .tmp, .old, .tmp.2 and so on
    bool is_replaced() const { return suffix.starts_with(kReplaced); }
    bool is_being_written() const { return suffix.starts_with(kBeingWritten); }
    std::string path;
};
}  // namespace

// .tmp, .tmp.2, .tmp.3 and so on: names for a folder, of which some may be taken by what cannot be removed.
static constexpr int kMostNames = 1000;
static std::string numbered(const std::string& kind, int number) {
    return number == 1 ? kind : kind + "." + std::to_string(number);
}
static bool is_numbered(const std::string& suffix, const std::string& kind) {
    if (!suffix.starts_with(kind)) return false;
    const std::string number = suffix.substr(kind.size());
    return number.empty() ||
           (number.size() > 1 && number[0] == '.' && number.find_first_not_of("0123456789", 1) == std::string::npos);
}

// Accepts step_00001000, step_00001000.tmp and so on; other names are not of checkpoints.
static bool parse_name(const std::string& name, int64_t& step, std::string& suffix) {
    if (!name.starts_with("step_")) return false;
    const char *const begin = name.data() + 5, *const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(begin, end, step);
    suffix = std::string(stop, end);
    return error == std::errc() && *begin != '-' && stop - begin >= 8 &&
           (suffix.empty() || is_numbered(suffix, kBeingWritten) || is_numbered(suffix, kReplaced));
}

// Newest first; of one step the complete folder before the replaced one.
static std::vector<Folder> folders_in(const std::string& out_dir) {
    std::vector<Folder> folders;
    std::error_code error;
    if (!fs::is_directory(out_dir, error)) return folders;
    for (fs::directory_iterator entry(out_dir, error), end; !error && entry != end; entry.increment(error)) {
        Folder folder;
        std::error_code ignored;
        if (parse_name(entry->path().filename(), folder.step, folder.suffix) && entry->is_directory(ignored)) {
            folder.path = out_dir + "/" + entry->path().filename().string();
            folders.push_back(folder);
        }
    }
    require(!error, "cannot read the folder %s: %s", out_dir.c_str(), error.message().c_str());
    std::sort(folders.begin(), folders.end(), [](const Folder& a, const Folder& b) {
        return a.step != b.step ? a.step > b.step : a.suffix < b.suffix;
    });
    return folders;
}

static bool exists(const std::string& path) {
    std::error_code error;
    return fs::exists(path, error);
}

static void rename_folder(const std::string& from, const std::string& to) {
    std::error_code error;
    fs::rename(from, to, error);
    require(!error, "cannot rename %s to %s: %s", from.c_str(), to.c_str(), error.message().c_str());
}

// Removes all that can be removed, and says in `error` why something is left. Returns whether anything was removed.
static bool remove_folder(const std::string& path, std::error_code& error) {
    std::vector<fs::path> entries;
    std::error_code ignored;
    if (fs::is_directory(fs::symlink_status(path, ignored)))  // of a link only the link
        for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
            entries.push_back(entry->path());
    entries.push_back(path);
    bool any = false;
    for (const fs::path& entry : entries) {
        std::error_code why;
        fs::remove_all(entry, why);
        if (!why) any = true;
        if (why && !error) error = why;
    }
    return any;
}

static void remove_folder(const std::string& path) {
    std::error_code error;
    remove_folder(path, error);
    require(!error, "cannot remove %s: %s", path.c_str(), error.message().c_str());
}

// Runs each of several pieces of work, and at the end throws the first one's Error.
namespace {
struct Attempts {
    std::string why;

    template <class Work>
    void add(Work&& work) {
        try {
            work();
        } catch (const Error& error) {
            if (why.empty()) why = error.what();
        }
    }
    void finish() const { require(why.empty(), "%s", why.c_str()); }
};
}  // namespace

void check_names_are_free(const std::string& out_dir) {
    std::error_code error;
    if (!fs::is_directory(out_dir, error)) return;
    for (fs::directory_iterator entry(out_dir, error), end; !error && entry != end; entry.increment(error)) {
        int64_t step;
        std::string suffix;
        std::error_code ignored;
        require(!parse_name(entry->path().filename(), step, suffix) || entry->is_directory(ignored),
                "%s/%s is in the way: expected a checkpoint's folder there or nothing; move it", out_dir.c_str(),
                entry->path().filename().c_str());
    }
    require(!error, "cannot read the folder %s: %s", out_dir.c_str(), error.message().c_str());
}

void mark_best(const std::string& out_dir, int64_t step) {
    const std::string target = fs::path(checkpoint_path(out_dir, step)).filename();
    ensure(exists(out_dir + "/" + target));
    if (best_step(out_dir) == step) return;
    const std::string link = out_dir + kBest, next = link + kBeingWritten;
    std::error_code error;
    fs::remove(next, error);
    fs::create_symlink(target, next, error);
    require(!error, "cannot make the link %s to %s: %s", next.c_str(), target.c_str(), error.message().c_str());
    rename_folder(next, link);
    sync_folder(out_dir);
}

int64_t best_step(const std::string& out_dir) {
    std::error_code error;
    const std::string target = fs::read_symlink(out_dir + kBest, error);
    int64_t step = -1;
    std::string suffix;
    return !error && parse_name(target, step, suffix) && suffix.empty() ? step : -1;
}

void check_best_is_free(const std::string& out_dir) {
    std::error_code ignored;
    const fs::file_status found = fs::symlink_status(out_dir + kBest, ignored);
    require(!fs::exists(found) || best_step(out_dir) >= 0,
            "%s%s is in the way: --save-best makes a link of that name to the best checkpoint; move it",
            out_dir.c_str(), kBest);
}

void remove_leftovers(const std::string& out_dir) {
    std::error_code ignored;
    fs::remove(out_dir + kBest + kBeingWritten, ignored);  // a link
    Attempts attempts;
    for (const Folder& folder : folders_in(out_dir)) {
        const std::string final_path = checkpoint_path(out_dir, folder.step);
        attempts.add([&] {
            if (folder.is_replaced() && !exists(final_path))
                rename_folder(folder.path, final_path);
            else if (!folder.suffix.empty())
                remove_folder(folder.path);
        });
    }
    attempts.finish();
}

CheckpointWriter::CheckpointWriter(const std::string& out_dir, const std::string& name) : tmp_(out_dir + "/" + name) {
    int64_t step;
    std::string suffix;
    require(parse_name(name, step, suffix) && suffix.starts_with(kBeingWritten),
            "%s is no name of a checkpoint that is being written", name.c_str());
}

std::string CheckpointWriter::name() const { return fs::path(tmp_).filename(); }

void CheckpointWriter::add_text(const std::string& name, const std::string& content) {
    FileWriter file(tmp_ + "/" + name);
    file.write(content.data(), content.size());
    file.sync_and_close();
    add_record({name, content.size(), xxh3(content.data(), content.size())});
}

void CheckpointWriter::add_tensors(const std::string& name, const std::vector<Tensor>& tensors,
                                   const Metadata& metadata, const std::function<const void*(const Tensor&)>& data) {
    SafetensorsWriter file(tmp_ + "/" + name, tensors, metadata);
    for (const Tensor& tensor : tensors) file.write(data ? data(tensor) : tensor.data, tensor.size_bytes());
    file.finish();
    add_record({name, file.size_bytes(), file.hash(), file.records()});
}

void CheckpointWriter::add_record(const FileRecord& record) {
    check_written(tmp_ + "/" + record.name, record.size_bytes, record.hash);
    records_.push_back(record);
}

ReceivedFile::ReceivedFile(const CheckpointWriter& to, const std::string& name)
    : name_(name), path_(to.path_of(name)), file_(path_) {}

void ReceivedFile::write(const void* data, size_t bytes) {
    file_.write(data, bytes);
    hasher_.update(data, bytes);
    size_bytes_ += bytes;
}

FileRecord ReceivedFile::finish() {
    file_.sync_and_close();
    check_written(path_, size_bytes_, hasher_.digest());
    return {name_, size_bytes_, hasher_.digest()};
}

CheckpointWriter::CheckpointWriter(const std::string& out_dir, int64_t step)
    : out_dir_(out_dir), final_(checkpoint_path(out_dir, step)), step_(step) {
    ensure(step >= 0);
    make_folders(out_dir);
    std::error_code error;
    bool made = false;
    for (int number = 1; !made && number < kMostNames; number++) {
        tmp_ = final_ + numbered(kBeingWritten, number);
        made = fs::create_directory(tmp_, error);
        if (error && error != std::errc::file_exists) break;
    }
    require(made, "cannot create the folder %s: %s", tmp_.c_str(),
            error ? reason_of(error.value()).c_str() : "too many of its names are taken; remove those");
}

CheckpointWriter::~CheckpointWriter() {
    if (committed_ || final_.empty()) return;
    std::error_code ignored;
    remove_folder(tmp_, ignored);
    if (!replaced_.empty() && !exists(final_)) fs::rename(replaced_, final_, ignored);
}

void CheckpointWriter::add_records(const std::vector<FileRecord>& records) {
    records_.insert(records_.end(), records.begin(), records.end());
}

std::string CheckpointWriter::commit() {
    ensure(!committed_ && !final_.empty());
    FileWriter file(tmp_ + kManifestFile);
    const std::string text = to_json(Manifest{step_, records_});
    file.write(text.data(), text.size());
    file.sync_and_close();
    check_written(tmp_ + kManifestFile, text.size(), xxh3(text.data(), text.size()));
    sync_folder(tmp_);

    if (exists(final_)) {
        std::error_code ignored;
        require(fs::is_directory(final_, ignored), "%s is in the way: expected a checkpoint's folder there; move it",
                final_.c_str());
        int number = 1;
        while (exists(final_ + numbered(kReplaced, number)) && number < kMostNames) number++;
        replaced_ = final_ + numbered(kReplaced, number);
        rename_folder(final_, replaced_);
    }
    rename_folder(tmp_, final_);
    committed_ = true;
    sync_folder(out_dir_);
    return final_;
}

static void check_step(Verified& verified, int64_t step) {
    if (verified.why.empty() && verified.step != step)
        verified.why = format("its manifest is of step %ld", verified.step);
}

FoundCheckpoint find_checkpoint(const std::string& where,
                                const std::function<Verified(const std::string& folder)>& how) {
    std::string path = where;
    while (path.size() > 1 && path.ends_with("/")) path.pop_back();
    const std::string parent = fs::path(path).parent_path(), home = parent.empty() ? "." : parent;
    if ("/" + fs::path(path).filename().string() == kBest && best_step(home) >= 0)
        path = checkpoint_path(home, best_step(home));
    const std::string name = fs::path(path).filename();
    int64_t named_step = -1;
    std::string suffix;
    const bool is_named = parse_name(name, named_step, suffix);
    std::error_code ignored;
    if (is_named || exists(path + kManifestFile)) {
        require(fs::is_directory(path, ignored), "%s: no such checkpoint folder", path.c_str());
        Verified verified = how(path);
        if (is_named) check_step(verified, named_step);
        require(verified.why.empty(), "%s: %s; use another checkpoint", path.c_str(), verified.why.c_str());
        return {path, verified.step, {}};
    }

    FoundCheckpoint found;
    for (const Folder& folder : folders_in(path)) {
        if (folder.is_being_written()) continue;
        Verified verified = how(folder.path);
        check_step(verified, folder.step);
        if (verified.why.empty()) {
            found.path = folder.path;
            found.step = folder.step;
            break;
        }
        found.passed_over.push_back({folder.path, verified.why});
    }
    return found;
}

std::vector<int64_t> checkpoint_steps(const std::string& out_dir) {
    std::vector<int64_t> steps;
    for (const Folder& folder : folders_in(out_dir))
        if (!folder.is_being_written() && (steps.empty() || steps.back() != folder.step)) steps.push_back(folder.step);
    std::reverse(steps.begin(), steps.end());
    return steps;
}

// Renamed first: a kill in the middle must not leave a checkpoint with missing files. If none of them can be removed
// (another user's), it gets its name back: it is as good as before.
static void remove_checkpoint(const std::string& path) {
    int number = 1;
    while (exists(path + numbered(kBeingWritten, number)) && number < kMostNames) number++;
    const std::string removed = path + numbered(kBeingWritten, number);
    rename_folder(path, removed);
    std::error_code error;
    if (!remove_folder(removed, error)) rename_folder(removed, path);
    require(!error, "cannot remove %s: %s", path.c_str(), error.message().c_str());
}

void prune(const std::string& out_dir, int keep, int64_t good_step, int64_t best, const std::set<int64_t>& held) {
    ensure(keep >= 1);
    const std::vector<int64_t> steps = checkpoint_steps(out_dir);
    if (steps.size() <= size_t(keep)) return;
    if (good_step < 0) good_step = find_checkpoint(out_dir).step;
    const int64_t linked = best_step(out_dir);
    Attempts attempts;
    for (size_t i = 0; i + size_t(keep) < steps.size(); i++) {
        const std::string path = checkpoint_path(out_dir, steps[i]);
        if (steps[i] == good_step || steps[i] == linked || steps[i] == best || held.contains(steps[i]) || !exists(path))
            continue;
        attempts.add([&] { remove_checkpoint(path); });
    }
    attempts.finish();
}

std::string why_not(const std::function<void()>& work) {
    try {
        work();
        return "";
    } catch (const std::exception& error) {
        return error.what();
    }
}

Untidy tidy(const std::string& out_dir, int keep, int64_t step, int64_t best, const std::set<int64_t>& held) {
    Untidy untidy;
    if (best >= 0 && exists(checkpoint_path(out_dir, best))) untidy.link = why_not([&] { mark_best(out_dir, best); });
    untidy.files = why_not([&] { remove_leftovers(out_dir); });
    const std::string others = why_not([&] { prune(out_dir, keep, step, best, held); });
    if (untidy.files.empty()) untidy.files = others;
    return untidy;
}

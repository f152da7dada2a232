// See staging.h. Every step is one rename or removal, so a kill between any two leaves a known state.
#include "llmc/data/staging.h"
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/file.h>
#include <unistd.h>
#include <cerrno>
#include <vector>
#include "llmc/base/check.h"   // require
#include "llmc/base/file.h"    // make_folders, read_file, reason_of, sync_folder, write_file_atomically
#include "llmc/base/json.h"    // OrderedJson
#include "llmc/data/shards.h"  // kUnfinishedFolder

namespace {
namespace fs = std::filesystem;

constexpr const char* kJournal = "journal.json";
// A file in DIR/unfinished/ that says: the old files are removed, and files with their names in DIR are new.
constexpr const char* kMoving = "moving";

// Names of shards, tokenizer and chat template. Other files in the folder are the user's and not changed.
bool is_ours(const std::string& name) {
    for (const char* pattern : {"train_[0-9][0-9][0-9][0-9][0-9][0-9].bin", "val_[0-9][0-9][0-9][0-9][0-9][0-9].bin",
                                "tokenizer.json", "chat_template.jinja"})
        if (fnmatch(pattern, name.c_str(), 0) == 0) return true;
    return false;
}

std::vector<fs::path> all_in(const fs::path& folder) {
    std::vector<fs::path> paths;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
        paths.push_back(at->path());
    require(!error, "cannot read the folder %s: %s", folder.c_str(), error.message().c_str());
    return paths;
}

std::vector<fs::path> ours_in(const fs::path& folder) {
    std::vector<fs::path> paths = all_in(folder);
    std::erase_if(paths, [](const fs::path& path) { return !is_ours(path.filename()); });
    return paths;
}

void delete_all(const fs::path& path) {
    std::error_code error;
    fs::remove_all(path, error);
    require(!error, "cannot remove %s: %s", path.c_str(), error.message().c_str());
}

void rename_to(const fs::path& from, const fs::path& to) {
    std::error_code error;
    fs::rename(from, to, error);
    require(!error, "cannot move %s to %s: %s", from.c_str(), to.c_str(), error.message().c_str());
}

OrderedJson to_json(const ShardMark& mark) {
    return {{"shards", mark.shards}, {"piece", mark.piece}, {"tokens", mark.tokens}, {"text_hash", mark.text_hash}};
}
ShardMark mark_of(const OrderedJson& json) {
    return {json.at("shards"), json.at("piece"), json.at("tokens"), json.at("text_hash")};
}
}  // namespace

Staging::Staging(const std::string& out)
    : out_(out), partial_(out_ / "partial"), unfinished_(out_ / kUnfinishedFolder) {
    made_out_ = !fs::exists(out_);
    make_folders(partial_);
    lock_ = open(out_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool locked = lock_ >= 0 && flock(lock_, LOCK_EX | LOCK_NB) == 0;
    const int error = errno;
    if (!locked && lock_ >= 0) close(lock_);
    require(locked, "cannot lock the folder %s: %s; is another data/tokenize writing there?", out.c_str(),
            reason_of(error).c_str());
    if (fs::exists(unfinished_ / "dataset.json") || fs::exists(unfinished_ / kMoving)) put_into_place();
}

Staging::~Staging() {
    std::error_code ignored;
    if (!done_ && !has_shards_) {
        fs::remove_all(partial_, ignored);
        if (made_out_) fs::remove(out_, ignored);
    }
    close(lock_);
}

Journal Staging::resume(const std::string& key) {
    key_ = key;
    Journal journal;
    if (fs::exists(partial_ / kJournal)) {
        const OrderedJson json = parse_ordered_json(read_file(partial_ / kJournal));
        if (json.is_object() && json.value("key", "") == key)
            journal = {mark_of(json.at("train")), mark_of(json.at("val"))};
        if (!has_all("train", journal.train.shards) || !has_all("val", journal.val.shards)) journal = {};
    }
    has_shards_ = journal.train.shards + journal.val.shards > 0;
    if (!has_shards_) start_over();
    return journal;
}

bool Staging::has_all(const char* split, int shards) const {
    for (int i = 0; i < shards; i++)
        if (!fs::exists(partial_ / format("%s_%06d.bin", split, i))) return false;
    return true;
}

void Staging::start_over() {
    delete_all(partial_ / kJournal);
    for (const fs::path& path : ours_in(partial_))
        if (path.filename() != "tokenizer.json") delete_all(path);
    has_shards_ = false;
}

void Staging::save(const Journal& journal) {
    const OrderedJson json = {{"key", key_}, {"train", to_json(journal.train)}, {"val", to_json(journal.val)}};
    write_file_atomically(partial_ / kJournal, json_text(json, 1) + "\n");
    has_shards_ = true;
}

void Staging::commit() {
    // The finished files need not be made again if one of the following steps fails.
    has_shards_ = true;
    for (const fs::path& path : all_in(partial_))
        if (!is_ours(path.filename()) && path.filename() != "dataset.json") delete_all(path);
    sync_folder(partial_);
    // A leftover DIR/unfinished/ is emptied, not removed. The rename replaces it, so that the name always exists.
    if (fs::exists(unfinished_))
        for (const fs::path& path : all_in(unfinished_)) delete_all(path);
    rename_to(partial_, unfinished_);
    put_into_place();
    done_ = true;
}

void Staging::put_into_place() {
    sync_folder(out_);
    if (!fs::exists(unfinished_ / kMoving)) {
        delete_all(out_ / "dataset.json");
        for (const fs::path& old : ours_in(out_)) delete_all(old);
        sync_folder(out_);
        write_file_atomically(unfinished_ / kMoving, "");
    }
    for (const fs::path& made : ours_in(unfinished_)) rename_to(made, out_ / made.filename());
    if (fs::exists(unfinished_ / "dataset.json")) rename_to(unfinished_ / "dataset.json", out_ / "dataset.json");
    sync_folder(out_);
    delete_all(unfinished_);
    sync_folder(out_);
}

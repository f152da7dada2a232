// See fetch.h.
#include "llmc/data/fetch.h"
#include <fcntl.h>
#include <fnmatch.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include "llmc/base/check.h"  // require, format
#include "llmc/base/file.h"   // make_folders, files_matching, reason_of
#include "llmc/base/hash.h"   // xxh3, hex64

namespace {
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kFetched = "/fetched";
constexpr std::chrono::milliseconds kTick(20);  // between two looks at what other processes do

std::string folder_of(const std::string& pattern) {
    const std::string folder = fs::path(pattern).parent_path();
    return folder.empty() ? "." : folder;
}

std::vector<ListedShard> listed_for(const std::string& pattern) {
    const std::string list = folder_of(pattern) + "/" + kShardList, wanted = fs::path(pattern).filename();
    std::vector<ListedShard> all = read_shard_list(list);
    std::erase_if(all, [&](const ListedShard& shard) {
        return shard.name != wanted && fnmatch(wanted.c_str(), shard.name.c_str(), FNM_PERIOD) != 0;
    });
    require(!all.empty(), "no shard in %s matches '%s'; give the pattern of those to train on", list.c_str(),
            wanted.c_str());
    return all;
}

// How a shard on the disk differs from the list; "": it does not. `whole`: all of it is read.
std::string difference(const TokenShard& shard, const ListedShard& listed, bool whole) {
    const auto other = [&](const char* what, const std::string& found, const std::string& expected) {
        return format("has %s %s, and %s says %s", what, found.c_str(), kShardList, expected.c_str());
    };
    if (shard.num_tokens() != listed.tokens || shard.size_bytes() != listed.bytes)
        return other("tokens and bytes", format("%ld, %lu", shard.num_tokens(), shard.size_bytes()),
                     format("%ld, %lu", listed.tokens, listed.bytes));
    if (!listed.samples.empty() && shard.samples() != listed.samples) return "holds other tokens than its list says";
    if (!whole || listed.xxh3.empty()) return "";
    const std::string found = hex64(xxh3(shard.file().data(), shard.file().size()));
    shard.file().check_uncut();
    return found == listed.xxh3 ? "" : other("the XXH3", found, listed.xxh3);
}

// Opens a shard that was brought, or tells why it is not what the list says.
std::unique_ptr<TokenShard> opened(const std::string& path, const ListedShard& listed, std::string& why) {
    try {
        auto shard = std::make_unique<TokenShard>(path);
        why = difference(*shard, listed, true);
        if (why.empty()) return shard;
        why = "brought a file that " + why;
    } catch (const Error& error) {
        why = std::string("brought no shard: ") + error.what();
    }
    return nullptr;
}

bool exists(const std::string& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}
}  // namespace

ShardFetcher::ShardFetcher(const FetchConfig& config, const std::string& folder, std::vector<ListedShard> shards,
                           bool keeps)
    : config_(config), parent_(folder), folder_(folder + kFetched), shards_(std::move(shards)), keeps_(keeps) {}

// Before the first use: until then nothing is written.
void ShardFetcher::begin() {
    make_folders(folder_);
    const std::string path = folder_ + "/lock";
    lock_file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    require(lock_file_ >= 0, "cannot write %s: %s", path.c_str(), reason_of(errno).c_str());
    require(lock("", Of::using_it, F_RDLCK), "cannot lock %s: %s; --fetch needs a folder on a disk of this host",
            path.c_str(), reason_of(errno).c_str());
    thread_ = std::thread([this] { work(); });
}

ShardFetcher::~ShardFetcher() {
    stop();
    if (thread_.joinable()) thread_.join();
    if (lock_file_ >= 0) close(lock_file_);
}

void ShardFetcher::stop() {
    const std::lock_guard guard(mutex_);
    is_ending_ = true;
    changed_.notify_all();
}

// Takes a lock, or F_UNLCK releases it. False if another process has it, or another fetcher of this one.
bool ShardFetcher::lock(const std::string& name, Of of, int type) const {
    struct flock range = {};
    range.l_type = short(type);
    range.l_whence = SEEK_SET;
    range.l_start = off_t(xxh3(name.data(), name.size()) >> 2) * 2 + (of == Of::using_it ? 1 : 0);
    range.l_len = 1;
    return fcntl(lock_file_, F_OFD_SETLK, &range) == 0;
}

bool ShardFetcher::is_wanted(size_t shard) const {
    return std::find(wanted_.begin(), wanted_.end(), shard) != wanted_.end();
}

const TokenShard& ShardFetcher::use(size_t shard) {
    if (current_ && number_ == shard) return *current_;
    if (!thread_.joinable()) begin();
    constexpr double kFirstWordS = 5, kPauseS = 60;
    std::unique_lock guard(mutex_);
    current_ = nullptr;
    wanted_ = {shard};
    if (const size_t after = next(shard); after != shard) wanted_.push_back(after);
    drop_others();
    changed_.notify_all();
    const auto began = Clock::now();
    double told_s = kFirstWordS - kPauseS;
    const char* const name = shards_[shard].name.c_str();
    while (!changed_.wait_for(guard, kTick, [&] { return there_.contains(shard); })) {
        const double waited_s = std::chrono::duration<double>(Clock::now() - began).count();
        require(!is_ending_ && !config_.is_stopped(), "--fetch: %s was waited for when the run was told to stop", name);
        require(waited_s < config_.patience_s,
                "--fetch: %s is not there after %.0f s%s%s; see that the command brings it to $ANVIL_SHARD_PATH, and "
                "resume",
                name, waited_s, why_.empty() ? "" : ": the command ", why_.c_str());
        if (is_mine_ && waited_s >= told_s + kPauseS) {
            std::fprintf(stderr, "waiting for %s (--fetch), %.0f s so far\n", name, waited_s);
            told_s = waited_s;
        }
    }
    number_ = shard;
    current_ = there_.at(shard).get();
    return *current_;
}

// Drops what is not wanted, of this process and what others have left. Call it with mutex_ held.
void ShardFetcher::drop_others() {
    for (auto one = there_.begin(); one != there_.end();) {
        if (is_wanted(one->first)) {
            one++;
            continue;
        }
        const std::string name = shards_[one->first].name;
        one = there_.erase(one);
        lock(name, Of::using_it, F_UNLCK);
    }
    if (keeps_) return;
    std::vector<std::string> mine = {"lock"};
    for (const size_t shard : wanted_) mine.push_back(shards_[shard].name);
    if (under_way_) mine.push_back(shards_[*under_way_].name);
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
        const std::string file = entry.path().filename(), name = file.substr(0, file.rfind(".part."));
        if (std::find(mine.begin(), mine.end(), name) != mine.end()) continue;
        const Of of = name == file ? Of::using_it : Of::bringing;
        if (!lock(name, of, F_WRLCK)) continue;
        fs::remove(entry.path(), ignored);
        lock(name, of, F_UNLCK);
    }
}

void ShardFetcher::work() {
    std::unique_lock guard(mutex_);
    for (;;) {
        const auto is_missing = [&](size_t shard) { return !there_.contains(shard); };
        changed_.wait(guard, [&] { return is_ending_ || std::any_of(wanted_.begin(), wanted_.end(), is_missing); });
        if (is_ending_) return;
        const size_t shard = *std::find_if(wanted_.begin(), wanted_.end(), is_missing);
        under_way_ = shard;
        guard.unlock();
        std::unique_ptr<TokenShard> found = brought(shard);
        guard.lock();
        under_way_.reset();
        if (!found) continue;
        there_[shard] = std::move(found);
        if (!is_wanted(shard)) drop_others();
        changed_.notify_all();
    }
}

// Brings a shard, unless another process does, and holds the lock of its use. Null: it is not wanted any more.
std::unique_ptr<TokenShard> ShardFetcher::brought(size_t number) {
    constexpr int kLongestPauseS = 60;
    const std::function<bool()> is_over = [&] {
        const std::lock_guard guard(mutex_);
        return is_ending_ || !is_wanted(number);
    };
    const ListedShard& listed = shards_[number];
    const std::string target = path(number);
    while (!lock(listed.name, Of::using_it, F_RDLCK)) {  // while another process removes it
        if (is_over()) return nullptr;
        std::this_thread::sleep_for(kTick);
    }
    std::unique_ptr<TokenShard> shard;
    std::string why;
    for (int pause_s = 1; !shard && !is_over();) {
        if (exists(target) && (shard = opened(target, listed, why))) break;
        if (!is_mine_) {
            const bool is_mine = lock(listed.name, Of::bringing, F_WRLCK);
            if (!is_mine) std::this_thread::sleep_for(kTick);
            const std::lock_guard guard(mutex_);
            is_mine_ = is_mine;
            continue;  // another process may have brought it just now
        }
        why = bring(number, is_over);
        if (why.empty()) continue;
        std::unique_lock guard(mutex_);
        why_ = why;
        if (is_ending_ || !is_wanted(number)) break;
        if (pause_s == 1)
            std::fprintf(stderr, "warning: --fetch of %s %s; it is tried again\n", listed.name.c_str(), why.c_str());
        changed_.wait_for(guard, std::chrono::seconds(pause_s), [&] { return is_ending_ || !is_wanted(number); });
        pause_s = std::min(2 * pause_s, kLongestPauseS);
    }
    if (is_mine_) lock(listed.name, Of::bringing, F_UNLCK);
    if (!shard) lock(listed.name, Of::using_it, F_UNLCK);
    const std::lock_guard guard(mutex_);
    is_mine_ = false;
    if (shard) why_.clear();
    return shard;
}

// One attempt. Returns why it failed.
std::string ShardFetcher::bring(size_t number, const std::function<bool()>& is_over) {
    const ListedShard& listed = shards_[number];
    std::error_code failed, ignored;
    for (const auto& entry : fs::directory_iterator(folder_, ignored))  // of a process that was killed
        if (entry.path().filename().string().starts_with(listed.name + ".part.")) fs::remove(entry.path(), ignored);
    const std::string part = format("%s/%s.part.%d", folder_.c_str(), listed.name.c_str(), int(getpid()));
    std::string why = config_.bring(listed.name, part, config_.limit_s, is_over);
    if (why.empty() && opened(part, listed, why)) {
        fs::rename(part, path(number), failed);
        if (failed) why = "brought a file that cannot be moved to " + path(number) + ": " + failed.message();
    }
    if (!why.empty()) fs::remove(part, ignored);
    return why;
}

OpenShards open_shards(const std::string& pattern, const std::optional<FetchConfig>& fetch) {
    if (!fetch) return {nullptr, open_shards(pattern)};
    check_finished(pattern);
    const std::string folder = folder_of(pattern);
    std::vector<ListedShard> listed = listed_for(pattern);
    for (const std::string& path : files_matching(pattern)) {
        const std::string name = fs::path(path).filename();
        require(std::any_of(listed.begin(), listed.end(), [&](const ListedShard& one) { return one.name == name; }),
                "%s is not in %s beside it: make the list again, with data/tokenize --list FOLDER, or move the file "
                "away",
                path.c_str(), kShardList);
    }
    OpenShards all{std::make_unique<ShardFetcher>(*fetch, folder, listed), {}};
    for (size_t i = 0; i < listed.size(); i++) {
        const std::string path = folder + "/" + listed[i].name;
        if (!exists(path)) {
            all.shards.emplace_back(*all.fetcher, i);
            continue;
        }
        const std::string why = difference(all.shards.emplace_back(path), listed[i], false);
        require(why.empty(), "%s %s: copy it again, or remove it and let --fetch bring it", path.c_str(), why.c_str());
    }
    return all;
}

void bring_missing(const std::string& pattern, const FetchConfig& fetch) {
    const std::string folder = folder_of(pattern);
    if (!exists(folder + "/" + kShardList)) return;
    std::vector<ListedShard> missing = listed_for(pattern);
    std::erase_if(missing, [&](const ListedShard& shard) { return exists(folder + "/" + shard.name); });
    if (missing.empty()) return;
    ShardFetcher fetcher(fetch, folder, missing, true);
    for (size_t i = 0; i < missing.size(); i++) fetcher.use(i);
}

/*
--fetch: training shards that are brought before they are read and dropped afterwards, for a disk without room for all.

FOLDER/shards.json lists them (llmc/data/shards.h). Those that are not in FOLDER are brought, one at a time, to
FOLDER/fetched, where the ranks of a host share them, and other runs, too:

  fetched/NAME             whole: compared with the list before it got its name
  fetched/NAME.part.PID    not yet; one that nobody is bringing is removed
  fetched/lock             locks of single bytes, two for each name: who brings it, and who uses it

The kernel releases a lock when its process ends in any way. What is in fetched/ and used by none is removed when a
shard's turn comes; what is in FOLDER itself never is.

  OpenShards data = open_shards(pattern, fetch);
  data.fetcher->next = [](size_t shard) { return ...; };      which one is read after this one
  data.shards[3].read(...)                                    waits until it is there; the one before it may go

A shard that is waited for and does not come within patience_s is an Error. Until then a command that fails, takes
longer than limit_s, or brings something else is tried again, with pauses that double up to a minute.
*/
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>
#include "llmc/data/shards.h"  // ListedShard, TokenShard

struct FetchConfig {
    // Writes the shard of this name to this path. Returns why it did not; "": it did. Gives up once is_over().
    std::function<std::string(const std::string& name, const std::string& path, double limit_s,
                              const std::function<bool()>& is_over)>
        bring;
    double limit_s = 150, patience_s = 480;
    std::function<bool()> is_stopped = [] { return false; };  // then a shard is not waited for
};

class ShardFetcher {
public:
    // `keeps`: brings shards to the folder itself, where they stay.
    ShardFetcher(const FetchConfig& config, const std::string& folder, std::vector<ListedShard> shards,
                 bool keeps = false);
    ~ShardFetcher();  // what is in use stays there
    ShardFetcher(const ShardFetcher&) = delete;
    ShardFetcher& operator=(const ShardFetcher&) = delete;

    // Of shards by their number in the list. Which one is read after this one, to be brought meanwhile; itself: none.
    std::function<size_t(size_t)> next = [](size_t shard) { return shard; };

    const ListedShard& listed(size_t shard) const { return shards_[shard]; }
    std::string path(size_t shard) const { return (keeps_ ? parent_ : folder_) + "/" + shards_[shard].name; }
    // Waits until it is there, and drops all but this one and the next. Valid until another one is used. Not for two
    // threads at once.
    const TokenShard& use(size_t shard);
    // A use() that waits throws, and so does any other from now on.
    void stop();

private:
    enum class Of { bringing, using_it };

    const FetchConfig config_;
    const std::string parent_, folder_;
    const std::vector<ListedShard> shards_;
    const bool keeps_;
    int lock_file_ = -1;
    size_t number_ = 0;  // of current_
    const TokenShard* current_ = nullptr;

    std::mutex mutex_;  // of what follows
    std::condition_variable changed_;
    std::vector<size_t> wanted_;                           // in this order
    std::map<size_t, std::unique_ptr<TokenShard>> there_;  // in use by this process
    std::optional<size_t> under_way_;
    bool is_mine_ = false;  // this process runs the command, and not another one
    bool is_ending_ = false;
    std::string why_;  // the last command failed
    std::thread thread_;

    void begin();
    void work();
    std::unique_ptr<TokenShard> brought(size_t shard);
    std::string bring(size_t shard, const std::function<bool()>& is_over);
    void drop_others();
    bool is_wanted(size_t shard) const;
    bool lock(const std::string& name, Of of, int type) const;
};

struct OpenShards {
    std::unique_ptr<ShardFetcher> fetcher;  // null: all are on the disk
    std::vector<TokenShard> shards;
};

// Like open_shards(pattern). With `fetch` the shards are those of the list that match, and may be missing.
OpenShards open_shards(const std::string& pattern, const std::optional<FetchConfig>& fetch);

// Brings those that match and are missing to the folder itself, to stay. Without a list does nothing.
void bring_missing(const std::string& pattern, const FetchConfig& fetch);

/*
The folder of a data set that is being made. A mixture of old and new files is always recognizable, and a killed run
loses at most its unfinished shards.

  DIR/partial/     finished shards, tokenizer.json, and journal.json, which describes what they were made of
  DIR/unfinished/  the same folder, renamed when it is complete, until its files have replaced those in DIR

While DIR/unfinished/ exists, loaders reject the shards beside it; the next run first finishes the replacement. Before
the rename the earlier content of DIR stays usable.
*/
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

// The part of the text that is in the finished shards of a split: all pieces before `piece` and `tokens` tokens of it.
struct ShardMark {
    int shards = 0;
    int64_t piece = 0, tokens = 0;
    uint64_t text_hash = 0;  // of all pieces up to and including `piece`
};

struct Journal {
    ShardMark train, val;
};

class Staging {
public:
    // Creates and locks DIR/partial/. Throws if another program is writing there.
    explicit Staging(const std::string& out);
    // After an error before commit(), finished shards stay; if there are none, the folder is restored.
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    std::string path(const std::string& name) const { return partial_ / name; }

    // Returns the journal of a killed run with the same key. Otherwise removes its files and returns an empty journal.
    Journal resume(const std::string& key);
    void save(const Journal& journal);
    void start_over();

    // Replaces the earlier content of DIR with DIR/partial/. dataset.json is removed first and written last.
    void commit();

private:
    bool has_all(const char* split, int shards) const;
    void put_into_place();

    std::filesystem::path out_, partial_, unfinished_;
    std::string key_;
    bool made_out_ = false, has_shards_ = false, done_ = false;
    int lock_ = -1;
};

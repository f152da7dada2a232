/*
The folder of a data set while it is made: nothing in it is half old and half new without saying so, and a run that was
killed has lost at most the shards that were not finished.

  DIR/partial/     finished shards, tokenizer.json, and journal.json, which says what they were made of
  DIR/unfinished/  the same folder, renamed once everything is in it, until its files have replaced those in DIR

As long as DIR/unfinished/ exists, no loader takes the shards beside it; the next run finishes the replacement first.
Until then what was in DIR before stays usable.
*/
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

// How much of the text is in the finished shards of a split: all pieces before `piece`, and `tokens` tokens of it.
struct ShardMark {
    int shards = 0;
    int64_t piece = 0, tokens = 0;
    uint64_t text_hash = 0;  // of all pieces up to and with `piece`
};

struct Journal {
    ShardMark train, val;
};

class Staging {
public:
    // Makes DIR/partial/, and locks it. An error if another program is writing there.
    explicit Staging(const std::string& out);
    // After an error before commit() what was finished stays if there is any; else the folder is as it was.
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    std::string path(const std::string& name) const { return partial_ / name; }

    // What is left of a run that was killed, if that had the same key; else nothing, and it is removed.
    Journal resume(const std::string& key);
    void save(const Journal& journal);
    void start_over();

    // Replaces what an earlier run left in DIR by what is in DIR/partial/. dataset.json goes first and comes last.
    void commit();

private:
    bool has_all(const char* split, int shards) const;
    void put_into_place();

    std::filesystem::path out_, partial_, unfinished_;
    std::string key_;
    bool made_out_ = false, has_shards_ = false, done_ = false;
    int lock_ = -1;
};

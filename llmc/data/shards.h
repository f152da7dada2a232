/*
Token shards: the `.bin` files a model is trained on. The format is llm.c's, byte for byte, so shards made for it (or
for modded-nanogpt) work here unchanged, and vice versa. All numbers are little-endian.

  offset   bytes  what
       0       4  magic:   20240520 (tokens are uint16)  or  20240801 (tokens are uint32)
       4       4  version: 1 for uint16                  or  7 for uint32;     2 or 8: with a mask (only in Anvil)
       8       4  n, the number of tokens, int32, at least 1
      12    1012  zero
    1024  n*2|4   the tokens; without a mask the file ends with the last one
          n/8     the mask, rounded up to whole bytes: bit i % 8 of byte i / 8 is 1 if token i is learned as a target,
                  and 0 if it is only an input, like a user's words in a conversation

A file that violates any line of this table causes an Error that says what was found and what to do.

In memory a token that is not learned is ~id, which is negative. Without a mask all tokens are learned.

  const TokenShard shard("data/x/train_000000.bin");      shard.copy(begin, count, out);
  write_shard_list("data/x");                             data/x/shards.json, for --fetch: llmc/data/fetch.h
  ShardWriter writer("data/x/train_000000.bin", V);       writer.append(ids, n);   writer.finish();
  ShardWriter writer("data/x/train_000000.bin", V, ShardMask::some_learned);
*/
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "llmc/base/file.h"  // MappedFile, FileWriter

inline constexpr int64_t kShardHeaderBytes = 1024;
inline constexpr int64_t kMaxShardTokens = INT32_MAX;

// What a list of shards says of one.
struct ListedShard {
    std::string name;  // of its file, without a folder
    int64_t tokens = 0;
    uint64_t bytes = 0;
    std::string xxh3, samples;  // of the file, and of parts of it (TokenShard::samples); empty: not known
};

class ShardFetcher;

class TokenShard {
public:
    explicit TokenShard(const std::string& path);
    // A shard that `fetcher` brings when its tokens are asked for; it must outlive this object. Then all that reads
    // tokens may wait, and throws an Error if the shard cannot be had.
    TokenShard(ShardFetcher& fetcher, size_t number);
    const std::string& path() const { return path_; }
    int64_t num_tokens() const { return num_tokens_; }
    uint64_t size_bytes() const { return size_bytes_; }
    int bytes_per_token() const { return bytes_per_token_; }  // 2 or 4
    const MappedFile& file() const { return file_ ? *file_ : fetched_file(); }
    bool is_fetched() const { return fetcher_; }
    bool has_mask() const { return has_mask_; }
    bool learns_any() const;  // whether any token is learned; of a shard that is fetched: true
    // The XXH3 of 64 parts of the file, evenly spaced, from the header to the end.
    std::string samples() const;

    // out[i] = token begin + i, for n tokens, learned or not. Ids of 2^31 and above become negative.
    void copy(int64_t begin, int64_t n, int32_t* out) const;
    // The same, but ~id for a token that is not learned. Throws if an id is outside [0, V).
    void read(int64_t begin, int64_t n, int32_t* out, int vocab_size) const;
    // Throws if one of the n tokens from `begin` on is outside [0, V), or if the file was truncated.
    void check(int64_t begin, int64_t n, int vocab_size) const;
    // Removes the full pages of these tokens from this process's resident memory. Reading the tokens loads them again.
    void forget(int64_t begin, int64_t n) const;
    // The index of the first token from `from` on with this id; num_tokens() if there is none.
    int64_t find(int32_t id, int64_t from) const;

private:
    std::string path_;
    std::optional<MappedFile> file_;
    ShardFetcher* fetcher_ = nullptr;
    size_t number_ = 0;
    int64_t num_tokens_ = 0;
    uint64_t size_bytes_ = 0;
    int bytes_per_token_ = 0;
    bool has_mask_ = false;

    const MappedFile& fetched_file() const;
    const uint8_t* mask() const;  // of all tokens
    bool is_learned(int64_t token) const { return mask()[token / 8] >> (token % 8) & 1; }
};

// The folder that data/tokenize fills before it moves the files into place. If it still exists, data/tokenize was
// interrupted, and the shards beside it may be a mixture of old and new.
inline constexpr const char* kUnfinishedFolder = "unfinished";

// Opens all shards that match a pattern, sorted by path. Throws if there are none, or if data/tokenize was interrupted
// there.
std::vector<TokenShard> open_shards(const std::string& pattern);
// Throws if data/tokenize was killed while it replaced the shards of this path's folder, which may be mixed or missing.
void check_finished(const std::string& path);

// The list of all shards in a folder, in it: {"shards": [{"name": "train_000000.bin", "tokens": 100000000, ...}, ...]}
inline constexpr const char* kShardList = "shards.json";
// Writes it for all .bin files there, which are read for it, and returns how many they are.
size_t write_shard_list(const std::string& folder);
// Those in the list at `path`, sorted by name. Throws an Error if it is missing or says something that cannot be.
std::vector<ListedShard> read_shard_list(const std::string& path);

// Writes PATH.tmp and renames it to PATH once it is complete and on disk. Until then the header is zero, so a temporary
// file cannot be mistaken for a shard. Without finish() the temporary file is removed.
enum class ShardMask { all_learned, some_learned };
class ShardWriter {
public:
    // Stores uint16 if the vocabulary allows it. With a mask, ids may be ~id: not learned.
    ShardWriter(const std::string& path, int vocab_size, ShardMask mask = ShardMask::all_learned);
    ~ShardWriter();
    ShardWriter(const ShardWriter&) = delete;
    ShardWriter& operator=(const ShardWriter&) = delete;

    void append(const int32_t* ids, int64_t n);
    int64_t num_tokens() const { return num_tokens_; }
    void finish();  // throws if no token was written: readers reject such a file

private:
    std::string path_, tmp_path_;
    int vocab_size_, bytes_per_token_;
    int64_t num_tokens_ = 0;
    std::optional<FileWriter> file_;
    std::vector<char> packed_;
    bool has_mask_;
    std::vector<uint8_t> mask_;  // of the tokens so far
};

// From text to a folder of shards, in two passes: look (sizes, symbols, hashes), then encode. One document is mapped at
// a time, and encoded in pieces, so the text may be larger than the memory.
#include "llmc/data/dataset.h"
#include <fnmatch.h>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include "llmc/base/check.h"      // require, ensure
#include "llmc/base/hash.h"       // xxh3, hex64
#include "llmc/base/file.h"       // MappedFile, xxh3, write_file_atomically
#include "llmc/data/shards.h"     // ShardWriter, kUnfinishedFolder
#include "llmc/data/stories.h"    // tell_stories
#include "llmc/data/tokenizer.h"  // Tokenizer, Symbols

namespace {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

long long ll(int64_t value) { return value; }

bool is_text_file(const fs::path& path) { return path.extension() == ".txt" || path.extension() == ".md"; }

// The text files of a folder, sorted by path; empty ones have nothing to say.
std::vector<std::string> text_files_in(const std::string& folder) {
    std::vector<std::string> paths;
    std::error_code error;
    for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
        if (at->is_regular_file(error) && is_text_file(at->path()) && at->file_size(error) > 0)
            paths.push_back(at->path().string());
    require(!error, "cannot read the folder %s: %s", folder.c_str(), error.message().c_str());
    require(!paths.empty(), "%s has no text: expected .txt or .md files that are not empty, in it or in folders below",
            folder.c_str());
    std::sort(paths.begin(), paths.end());
    return paths;
}

std::vector<std::string> documents_of(const std::vector<std::string>& inputs) {
    std::vector<std::string> paths;
    for (const std::string& input : inputs) {
        require(fs::exists(input), "%s: no such file or folder", input.c_str());
        if (fs::is_directory(input)) {
            const std::vector<std::string> inside = text_files_in(input);
            paths.insert(paths.end(), inside.begin(), inside.end());
        } else {
            require(!fs::is_regular_file(input) || fs::file_size(input) > 0, "%s is empty: expected text",
                    input.c_str());
            paths.push_back(input);
        }
    }
    return paths;
}

// Calls f(name, text) for each document in turn: the files, or the stories.
template <class F>
void for_each_document(const std::vector<std::string>& paths, const Stories& stories, F f) {
    for (const std::string& path : paths) {
        const MappedFile file(path);
        f(path, std::string_view(file.data(), file.size()));
    }
    if (paths.empty()) f("the built-in stories", std::string_view(stories.text));
}

// One split being written: PREFIX_000000.bin and so on, each full but the last.
struct SplitWriter {
    std::string prefix;
    int vocab_size;
    int64_t shard_tokens;
    int num_shards = 0;
    std::unique_ptr<ShardWriter> shard = nullptr;

    void append(const int32_t* ids, int64_t n) {
        while (n > 0) {
            if (!shard) shard = std::make_unique<ShardWriter>(prefix + format("_%06d.bin", num_shards++), vocab_size);
            const int64_t now = std::min(n, shard_tokens - shard->num_tokens());
            shard->append(ids, now);
            ids += now;
            n -= now;
            if (shard->num_tokens() == shard_tokens) finish();
        }
    }
    void finish() {
        if (shard) shard->finish();
        shard.reset();
    }
};

// DIR/unfinished/ while it is being filled.
class Staging {
public:
    explicit Staging(const std::string& out) : out_(out), folder_(fs::path(out) / kUnfinishedFolder) {
        make_folders(out);
        mixture_ = fs::exists(folder_);
        empty();
        make_folders(folder_);
    }
    // After an error before commit() the folder is as it was, marked as a mixture if it was one.
    ~Staging() {
        if (done_) return;
        empty();
        std::error_code ignored;
        if (!mixture_) fs::remove(folder_, ignored);
    }
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    std::string path(const std::string& name) const { return folder_ / name; }

    // Replaces what an earlier run left in DIR. dataset.json goes first and comes last.
    void commit() {
        mixture_ = true;
        sync_folder(folder_);
        sync_folder(out_);
        remove(out_ / "dataset.json");
        for (const fs::path& old : ours_in(out_)) remove(old);
        for (const fs::path& made : ours_in(folder_)) move(made);
        move(folder_ / "dataset.json");
        sync_folder(out_);
        remove(folder_);
        sync_folder(out_);
        done_ = true;
    }

private:
    // Shards and tokenizer, by their names; whatever else a user keeps there is not touched.
    static bool is_ours(const std::string& name) {
        for (const char* pattern :
             {"train_[0-9][0-9][0-9][0-9][0-9][0-9].bin", "val_[0-9][0-9][0-9][0-9][0-9][0-9].bin", "tokenizer.json"})
            if (fnmatch(pattern, name.c_str(), 0) == 0) return true;
        return false;
    }
    static std::vector<fs::path> ours_in(const fs::path& folder) {
        std::vector<fs::path> paths;
        std::error_code error;
        for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
            const std::string name = at->path().filename();
            if (is_ours(name)) paths.push_back(at->path());
        }
        require(!error, "cannot read the folder %s: %s", folder.c_str(), error.message().c_str());
        return paths;
    }
    static void remove(const fs::path& path) {
        std::error_code error;
        fs::remove(path, error);
        require(!error, "cannot remove %s: %s", path.c_str(), error.message().c_str());
    }
    void move(const fs::path& made) const {
        std::error_code error;
        fs::rename(made, out_ / made.filename(), error);
        require(!error, "cannot move %s to %s: %s", made.c_str(), out_.c_str(), error.message().c_str());
    }
    void empty() const {
        std::error_code error;
        for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error))
            fs::remove_all(at->path(), error);
    }

    fs::path out_, folder_;
    bool mixture_ = false, done_ = false;
};

// The end of the piece of text that starts at `at`: about a megabyte on, and not inside a UTF-8 sequence.
size_t piece_end(std::string_view text, size_t at) {
    size_t end = std::min(at + (size_t(1) << 20), text.size());
    while (end < text.size() && (text[end] & 0xC0) == 0x80) end++;
    return end;
}

void check(const DatasetConfig& config) {
    require(config.tokenizer == "char" || config.tokenizer == "byte", "--tokenizer %s: expected char or byte",
            config.tokenizer.c_str());
    require(config.val_fraction >= 0 && config.val_fraction < 1, "--val-fraction %g: expected at least 0 and below 1",
            config.val_fraction);
    require(config.shard_tokens >= 1 && config.shard_tokens <= kMaxShardTokens,
            "--shard-tokens %lld: expected 1 to %lld, the most that the format can hold", ll(config.shard_tokens),
            ll(kMaxShardTokens));
    require(!config.out.empty(), "--out is missing: expected a folder for the token shards");
    require(config.inputs.empty() != (config.stories_bytes == 0),
            "expected either text files or folders, or --stories BYTES");
    require(config.stories_bytes >= 0, "--stories %lld: expected a number of bytes above 0", ll(config.stories_bytes));
}
}  // namespace

DatasetSummary prepare_dataset(const DatasetConfig& config) {
    check(config);
    const std::vector<std::string> paths = documents_of(config.inputs);
    Stories stories;
    if (paths.empty()) stories = tell_stories(config.stories_bytes, config.seed);

    // First pass: what there is.
    Symbols symbols;
    Json sources = Json::array();
    const bool chars = config.tokenizer == "char";
    const bool separated = !chars && paths.size() > 1;
    int64_t num_tokens = 0;
    for_each_document(paths, stories, [&](const std::string& name, std::string_view text) {
        num_tokens += chars ? symbols.add(text, name) : int64_t(text.size()) + separated;
        const size_t zero = separated ? text.find('\0') : std::string_view::npos;
        require(
            zero == std::string_view::npos,
            "%s has a zero byte at offset %zu, which is what separates documents; is it UTF-16? convert it to UTF-8",
            name.c_str(), zero);
        if (!paths.empty())
            sources.push_back(
                {{"path", name}, {"bytes", text.size()}, {"xxh3", hex64(xxh3(text.data(), text.size()))}});
    });
    const Tokenizer tokenizer = chars ? char_tokenizer(symbols) : byte_tokenizer();

    DatasetSummary summary;
    summary.vocab_size = tokenizer.vocab_size();
    summary.train_tokens = int64_t(double(num_tokens) * (1 - config.val_fraction));  // as nanoGPT rounds
    summary.val_tokens = num_tokens - summary.train_tokens;
    require(summary.train_tokens > 0 && (summary.val_tokens > 0 || config.val_fraction == 0),
            "%lld tokens are too few to keep a fraction of %g for validation: expected at least one on each side; give "
            "more "
            "text, or another --val-fraction",
            ll(num_tokens), config.val_fraction);

    // Second pass: encode.
    Staging staging(config.out);
    SplitWriter train{staging.path("train"), tokenizer.vocab_size(), config.shard_tokens};
    SplitWriter val{staging.path("val"), tokenizer.vocab_size(), config.shard_tokens};
    int64_t done = 0;
    const auto append = [&](const std::vector<int32_t>& ids) {
        const int64_t n = int64_t(ids.size());
        const int64_t for_train = std::clamp<int64_t>(summary.train_tokens - done, 0, n);
        train.append(ids.data(), for_train);
        val.append(ids.data() + for_train, n - for_train);
        done += n;
    };
    for_each_document(paths, stories, [&](const std::string& name, std::string_view text) {
        if (separated) append({tokenizer.separator()});
        for (size_t at = 0; at < text.size();) {
            const size_t end = piece_end(text, at);
            append(tokenizer.encode(text.substr(at, end - at), name));
            at = end;
        }
    });
    require(done == num_tokens, "the text changed while it was read: %lld tokens, then %lld; run data/prepare again",
            ll(num_tokens), ll(done));
    train.finish();
    val.finish();
    summary.train_shards = train.num_shards;
    summary.val_shards = val.num_shards;

    save_tokenizer(tokenizer, staging.path("tokenizer.json"));
    Json json = {
        {"tokenizer", tokenizer.name()},        {"vocab_size", summary.vocab_size},
        {"train_tokens", summary.train_tokens}, {"train_shards", summary.train_shards},
        {"val_tokens", summary.val_tokens},     {"val_shards", summary.val_shards},
    };
    if (paths.empty()) {
        json["stories"] = {{"seed", config.seed}, {"stories", stories.num_stories}, {"bytes", stories.text.size()}};
        // Stories are ASCII, so a token is a byte for both tokenizers.
        json["entropy_nats_per_token"] = stories_nats_per_byte();
    } else {
        json["sources"] = sources;
    }
    write_file_atomically(staging.path("dataset.json"),
                          json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
    staging.commit();
    return summary;
}

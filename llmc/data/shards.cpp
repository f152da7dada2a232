// Reads and writes the format of llmc/data/shards.h.
#include "llmc/data/shards.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <type_traits>
#include "llmc/base/check.h"         // require, ensure
#include "llmc/base/hash.h"          // xxh3, hex64
#include "llmc/base/json.h"          // OrderedJson
#include "llmc/data/fetch.h"         // ShardFetcher
#include "llmc/platform/platform.h"  // sync_to_disk

namespace {
static_assert(std::endian::native == std::endian::little, "shards are read and written in place");

struct Kind {
    int32_t magic, version;
    int bytes_per_token;
    int32_t masked_version;
};
constexpr Kind kU16{20240520, 1, 2, 2}, kU32{20240801, 7, 4, 8};

int64_t mask_bytes(int64_t tokens) { return (tokens + 7) / 8; }
int64_t bytes_of(int64_t tokens, int bytes_per_token, bool has_mask) {
    return kShardHeaderBytes + tokens * bytes_per_token + (has_mask ? mask_bytes(tokens) : 0);
}

constexpr const char* kRemake = "make it again with data/tokenize, or copy it again from where it came";

std::string existing(const std::string& path) {
    std::error_code ignored;  // other problems are reported when it is opened
    require(std::filesystem::exists(path, ignored) || ignored, "%s: no such file; make token shards with data/tokenize",
            path.c_str());
    return path;
}
}  // namespace

TokenShard::TokenShard(const std::string& path) : path_(path) {
    const MappedFile& file = file_.emplace(existing(path), IfCut::read_zeros);
    size_bytes_ = file.size();
    const int64_t size = int64_t(size_bytes_);
    require(size > 0, "%s is empty: expected a token shard; %s", path.c_str(), kRemake);
    require(size >= kShardHeaderBytes, "%s has %ld bytes: a token shard starts with a header of %ld bytes; %s",
            path.c_str(), size, kShardHeaderBytes, kRemake);
    int32_t header[3];
    std::memcpy(header, file.data(), sizeof header);
    const auto [magic, version, tokens] = header;
    require(
        magic == kU16.magic || magic == kU32.magic,
        "%s is not a token shard: its first number is %d, expected %d (uint16) or %d (uint32); make shards from text "
        "with data/tokenize",
        path.c_str(), magic, kU16.magic, kU32.magic);
    const Kind kind = magic == kU16.magic ? kU16 : kU32;
    require(version == kind.version || version == kind.masked_version,
            "%s has version %d of the shard format: expected %d, or %d with a mask; %s", path.c_str(), version,
            kind.version, kind.masked_version, kRemake);
    has_mask_ = version == kind.masked_version;
    const char *const rest = file.data() + sizeof header, *const end = file.data() + kShardHeaderBytes;
    const char* const odd = std::find_if(rest, end, [](char byte) { return byte != 0; });
    require(odd == end, "%s: byte %td of its header is %d: expected zeros after the first three numbers; %s",
            path.c_str(), odd - file.data(), odd == end ? 0 : int(static_cast<unsigned char>(*odd)), kRemake);
    require(tokens > 0, "%s says that it holds %d tokens: expected at least 1; %s", path.c_str(), tokens, kRemake);
    const int64_t expected = bytes_of(tokens, kind.bytes_per_token, has_mask_);
    require(size == expected, "%s has %ld bytes, but its header promises %d tokens%s, which are %ld bytes (%s); %s",
            path.c_str(), size, tokens, has_mask_ ? " and a mask" : "", expected,
            size < expected ? "it was cut short" : "there are bytes after the last one", kRemake);
    num_tokens_ = tokens;
    bytes_per_token_ = kind.bytes_per_token;
}

TokenShard::TokenShard(ShardFetcher& fetcher, size_t number)
    : path_(fetcher.path(number)), fetcher_(&fetcher), number_(number) {
    const ListedShard& listed = fetcher.listed(number);
    num_tokens_ = listed.tokens;
    size_bytes_ = listed.bytes;
    for (const int bytes : {kU16.bytes_per_token, kU32.bytes_per_token})
        for (const bool masked : {false, true})
            if (uint64_t(bytes_of(num_tokens_, bytes, masked)) == size_bytes_)
                bytes_per_token_ = bytes, has_mask_ = masked;
    ensure(bytes_per_token_ > 0);  // read_shard_list() has checked it
}

const MappedFile& TokenShard::fetched_file() const { return fetcher_->use(number_).file(); }

std::string TokenShard::samples() const {
    if (fetcher_) return fetcher_->listed(number_).samples;
    constexpr int64_t kSamples = 64, kSampleBytes = 4096;
    const auto size = int64_t(size_bytes_), bytes = std::min(kSampleBytes, size), last = size - bytes;
    std::string all;
    for (int64_t i = 0; i < kSamples; i++) {
        const int64_t at = last / (kSamples - 1) * i + last % (kSamples - 1) * i / (kSamples - 1);
        all += hex64(xxh3(file_->data() + at, size_t(bytes)));
    }
    file_->check_uncut();
    return all;
}

void TokenShard::copy(int64_t begin, int64_t n, int32_t* out) const {
    ensure(begin >= 0 && n >= 0 && begin + n <= num_tokens_);
    const char* from = file().data() + kShardHeaderBytes + begin * bytes_per_token_;
    if (bytes_per_token_ == 4) {
        std::memcpy(out, from, size_t(n) * 4);
        return;
    }
    const uint16_t* tokens = reinterpret_cast<const uint16_t*>(from);
    for (int64_t i = 0; i < n; i++) out[i] = tokens[i];
}

const uint8_t* TokenShard::mask() const {
    return reinterpret_cast<const uint8_t*>(file().data()) + kShardHeaderBytes + num_tokens_ * bytes_per_token_;
}

bool TokenShard::learns_any() const {
    return !has_mask_ || fetcher_ ||
           std::any_of(mask(), mask() + mask_bytes(num_tokens_), [](uint8_t byte) { return byte != 0; });
}

// The first token in [begin, end) for which is_meant() is true; `end` if there is none.
template <class Token, class IsMeant>
static int64_t find_token(const Token* tokens, int64_t begin, int64_t end, IsMeant&& is_meant) {
    constexpr int64_t kBlock = 128;  // compared together, since most blocks have no such token
    for (; begin + kBlock <= end; begin += kBlock) {
        Token found = 0;
        for (int64_t i = 0; i < kBlock; i++) found |= Token(is_meant(tokens[begin + i]));
        if (found) break;
    }
    return std::find_if(tokens + begin, tokens + end, is_meant) - tokens;
}

static void require_known(bool is_known, const TokenShard& shard, int64_t at, uint32_t id, int vocab_size) {
    require(is_known,
            "%s: token %ld has the id %u, outside the vocabulary of %d; prepare the data again, or train with the "
            "tokenizer that made it",
            shard.path().c_str(), at, id, vocab_size);
}

void TokenShard::read(int64_t begin, int64_t n, int32_t* out, int vocab_size) const {
    copy(begin, n, out);
    file().check_uncut();
    const auto* const ids = reinterpret_cast<const uint32_t*>(out);
    const int64_t at = find_token(ids, 0, n, [=](uint32_t id) { return id >= uint32_t(vocab_size); });
    require_known(at == n, *this, begin + at, at == n ? 0 : ids[at], vocab_size);
    if (!has_mask_) return;
    for (int64_t i = 0; i < n; i++)
        if (!is_learned(begin + i)) out[i] = ~out[i];
}

void TokenShard::check(int64_t begin, int64_t n, int vocab_size) const {
    ensure(begin >= 0 && n >= 0 && begin + n <= num_tokens_);
    const char* const tokens = file().data() + kShardHeaderBytes;
    const int64_t end = begin + n;
    int64_t at = end;
    uint32_t id = 0;
    const auto look = [&](const auto* ids) {
        using Token = std::remove_cvref_t<decltype(*ids)>;
        if (int64_t(vocab_size) > int64_t(std::numeric_limits<Token>::max())) return;
        at = find_token(ids, begin, end, [=](Token one) { return one >= Token(vocab_size); });
        if (at < end) id = ids[at];
    };
    if (bytes_per_token_ == 4)
        look(reinterpret_cast<const uint32_t*>(tokens));
    else
        look(reinterpret_cast<const uint16_t*>(tokens));
    file().check_uncut();
    require_known(at == end, *this, at, id, vocab_size);
}

void TokenShard::forget(int64_t begin, int64_t n) const {
    const auto page = int64_t(sysconf(_SC_PAGESIZE)), from = kShardHeaderBytes + begin * bytes_per_token_;
    const int64_t first = (from + page - 1) / page * page, end = (from + n * bytes_per_token_) / page * page;
    if (first < end) madvise(const_cast<char*>(file().data()) + first, size_t(end - first), MADV_DONTNEED);
}

int64_t TokenShard::find(int32_t id, int64_t from) const {
    ensure(id >= 0 && from >= 0 && from <= num_tokens_);
    const char* tokens = file().data() + kShardHeaderBytes;
    if (bytes_per_token_ == 2 && id > UINT16_MAX) return num_tokens_;
    const auto is_it = [=](auto token) { return token == decltype(token)(id); };
    if (bytes_per_token_ == 4) return find_token(reinterpret_cast<const uint32_t*>(tokens), from, num_tokens_, is_it);
    return find_token(reinterpret_cast<const uint16_t*>(tokens), from, num_tokens_, is_it);
}

void check_finished(const std::string& path) {
    const std::string unfinished = std::filesystem::path(path).parent_path() / kUnfinishedFolder;
    std::error_code ignored;
    require(!std::filesystem::exists(unfinished, ignored),
            "%s exists: data/tokenize was interrupted there; run it again", unfinished.c_str());
}

std::vector<TokenShard> open_shards(const std::string& pattern) {
    check_finished(pattern);  // also if there are no shards
    std::vector<TokenShard> shards;
    std::error_code ignored;
    require(!std::filesystem::is_directory(pattern, ignored),
            "%s is a folder: give the pattern of the shards in it, in quotes: '%s/train_*.bin', say", pattern.c_str(),
            pattern.substr(0, pattern.find_last_not_of('/') + 1).c_str());
    for (const std::string& path : files_matching(pattern)) {
        check_finished(path);  // if the folder's name is a pattern, too
        shards.emplace_back(path);
    }
    require(!shards.empty(),
            "no file matches '%s': expected token shards; make them with data/tokenize or data/tinyshakespeare.sh",
            pattern.c_str());
    return shards;
}

size_t write_shard_list(const std::string& folder) {
    const std::vector<TokenShard> shards = open_shards(folder + "/*.bin");
    OrderedJson all = OrderedJson::array();
    for (const TokenShard& shard : shards) {
        const MappedFile& file = shard.file();
        all.push_back({{"name", std::filesystem::path(shard.path()).filename()},
                       {"tokens", shard.num_tokens()},
                       {"bytes", file.size()},
                       {"xxh3", hex64(xxh3(file.data(), file.size()))},
                       {"samples", shard.samples()}});
        shard.forget(0, shard.num_tokens());
    }
    write_file_atomically(folder + "/" + kShardList, json_text(OrderedJson{{"shards", all}}, 1) + "\n");
    return shards.size();
}

std::vector<ListedShard> read_shard_list(const std::string& path) {
    require(std::filesystem::exists(path),
            "%s: no such file: --fetch needs the list of the shards; make it where they all are, with data/tokenize "
            "--list FOLDER, and copy it here",
            path.c_str());
    const OrderedJson json = parse_ordered_json(read_file(path));
    const auto check = [&](bool good, const char* what) {
        require(good, "%s: %s; make it again, with data/tokenize --list FOLDER", path.c_str(), what);
    };
    check(json.is_object() && json.contains("shards") && json.at("shards").is_array() && !json.at("shards").empty(),
          "expected {\"shards\": [...]} with at least one shard");
    std::vector<ListedShard> all;
    for (const OrderedJson& one : json.at("shards")) {
        const auto is = [&](const char* key, auto&& test) { return one.contains(key) && test(one.at(key)); };
        const auto number = [](const OrderedJson& value) { return value.is_number_unsigned(); };
        const auto text = [](const OrderedJson& value) { return value.is_string(); };
        check(one.is_object() && is("name", text) && is("tokens", number) && is("bytes", number),
              "expected \"name\", \"tokens\" and \"bytes\" of each shard");
        ListedShard& shard = all.emplace_back();
        shard.name = one.at("name"), shard.tokens = one.at("tokens"), shard.bytes = one.at("bytes");
        if (is("xxh3", text)) shard.xxh3 = one.at("xxh3");
        if (is("samples", text)) shard.samples = one.at("samples");
        check(!shard.name.empty() && shard.name.find('/') == std::string::npos && shard.name[0] != '.',
              "a shard's name is that of a file, without a folder");
        bool is_size = false;
        for (const int bytes : {kU16.bytes_per_token, kU32.bytes_per_token})
            for (const bool masked : {false, true})
                is_size |= uint64_t(bytes_of(shard.tokens, bytes, masked)) == shard.bytes;
        check(shard.tokens > 0 && shard.tokens <= kMaxShardTokens && is_size,
              "a shard's bytes are not those of its tokens");
    }
    const auto by_name = [](const ListedShard& a, const ListedShard& b) { return a.name < b.name; };
    std::sort(all.begin(), all.end(), by_name);
    const auto same = [](const ListedShard& a, const ListedShard& b) { return a.name == b.name; };
    check(std::adjacent_find(all.begin(), all.end(), same) == all.end(), "a shard is there twice");
    return all;
}

ShardWriter::ShardWriter(const std::string& path, int vocab_size, ShardMask mask)
    : path_(path),
      tmp_path_(path + ".tmp"),
      vocab_size_(vocab_size),
      bytes_per_token_(vocab_size <= 65536 ? kU16.bytes_per_token : kU32.bytes_per_token),
      has_mask_(mask == ShardMask::some_learned) {
    file_.emplace(tmp_path_);
}

ShardWriter::~ShardWriter() {
    file_.reset();
    if (!tmp_path_.empty()) std::remove(tmp_path_.c_str());
}

void ShardWriter::append(const int32_t* ids, int64_t n) {
    ensure(file_ && n >= 0 && num_tokens_ + n <= kMaxShardTokens);
    if (n == 0) return;
    if (num_tokens_ == 0) {  // not in the constructor: if this throws, the destructor has to remove the file
        const std::vector<char> zeros(kShardHeaderBytes);
        file_->write(zeros.data(), zeros.size());
    }
    packed_.resize(size_t(n) * size_t(bytes_per_token_));
    if (has_mask_) mask_.resize(size_t(mask_bytes(num_tokens_ + n)));
    for (int64_t i = 0; i < n; i++) {
        const bool is_learned = ids[i] >= 0;
        ensure((is_learned || has_mask_) && (is_learned ? ids[i] : ~ids[i]) < vocab_size_);
        const uint32_t id = uint32_t(is_learned ? ids[i] : ~ids[i]);  // little-endian: the low bytes come first
        const int64_t at = num_tokens_ + i;
        if (has_mask_ && is_learned) mask_[size_t(at / 8)] |= uint8_t(1 << (at % 8));
        std::memcpy(packed_.data() + i * bytes_per_token_, &id, size_t(bytes_per_token_));
    }
    file_->write(packed_.data(), packed_.size());
    num_tokens_ += n;
}

void ShardWriter::finish() {
    ensure(file_ && num_tokens_ > 0);
    file_->write(reinterpret_cast<const char*>(mask_.data()), mask_.size());
    file_->sync_and_close();
    file_.reset();

    // The header is written last, after all tokens are on the disk.
    const Kind kind = bytes_per_token_ == 2 ? kU16 : kU32;
    const int32_t header[3] = {kind.magic, has_mask_ ? kind.masked_version : kind.version, int32_t(num_tokens_)};
    const int fd = open(tmp_path_.c_str(), O_WRONLY | O_CLOEXEC);
    require(fd >= 0, "cannot write %s: %s", tmp_path_.c_str(), reason_of(errno).c_str());
    const bool written = pwrite(fd, header, sizeof header, 0) == ssize_t(sizeof header) && sync_to_disk(fd) == 0;
    const int error = errno;
    close(fd);
    require(written, "cannot write %s: %s", tmp_path_.c_str(), reason_of(error).c_str());

    require(std::rename(tmp_path_.c_str(), path_.c_str()) == 0, "cannot rename %s to %s: %s", tmp_path_.c_str(),
            path_.c_str(), reason_of(errno).c_str());
    tmp_path_.clear();
    const std::string folder = std::filesystem::path(path_).parent_path();
    sync_folder(folder.empty() ? "." : folder);
}

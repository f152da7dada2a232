// See packing.h.
#include "llmc/data/packing.h"
#include <algorithm>
#include <charconv>
#include <iterator>
#include "llmc/base/check.h"  // require

namespace {

// nanochat's numbers: when fewer than kWaiting documents wait, kRefill more are added.
constexpr size_t kWaiting = 1000, kRefill = 128;

// LoaderState::position: the shard's turn is in the upper bits, the number of the document in the lower ones.
constexpr int kTurnShift = 32;

constexpr const char* kOtherData =
    "is this the data, the --seq-len and the --document-token that the run was started with?";

// "0:1024 0:1600": each document's shard and first token.
std::string text_of(const std::vector<Document>& documents) {
    std::string text;
    char number[16];
    const auto add = [&](auto value, char end) {
        text.append(number, std::to_chars(number, std::end(number), value).ptr);
        text += end;
    };
    for (const Document& d : documents) add(d.shard, ':'), add(d.begin, ' ');
    if (!text.empty()) text.pop_back();
    return text;
}

// The document that begins at token `begin`, which must be a separator.
Document document_at(const std::vector<TokenShard>& shards, uint32_t shard, int32_t begin, int separator) {
    const int64_t end = shards[shard].find(separator, int64_t(begin) + 1);
    return {shard, begin, int32_t(end - begin)};
}

}  // namespace

Document BestFit::take(int64_t space) {
    auto after = waiting_.upper_bound(space);
    if (after == waiting_.begin()) after = waiting_.upper_bound(int64_t(after->document.length));  // the shortest
    const auto best = std::prev(after);
    const Document document = best->document;
    waiting_.erase(best);
    return document;
}

std::vector<Document> BestFit::in_order() const {
    std::vector<Waiting> all(waiting_.begin(), waiting_.end());
    std::sort(all.begin(), all.end(), [](const Waiting& a, const Waiting& b) { return a.arrival < b.arrival; });
    std::vector<Document> documents;
    for (const Waiting& waiting : all) documents.push_back(waiting.document);
    return documents;
}

PackedRows::PackedRows(const std::vector<TokenShard>& shards, const PackingConfig& config)
    : shards_(shards), config_(config) {
    require(config.separator >= 0,
            "--packing best-fit and pad need the token that documents begin with: give --document-token or a "
            "--tokenizer that "
            "has one, or take --packing stream");
    begin_epoch(0);
    const auto is_fetched = [](const TokenShard& shard) { return shard.is_fetched(); };
    require_documents(std::any_of(shards.begin(), shards.end(), is_fetched) || next_document());
    begin_epoch(0);
}

void PackedRows::require_documents(bool has_any) const {
    require(has_any,
            "--packing best-fit and pad: no document begins in %s%s, none of its tokens is the separator %d; give the "
            "--document-token that it was made with, prepare it again from several documents, or take --packing stream",
            shards_[0].path().c_str(), shards_.size() > 1 ? " nor in the other shards" : "", config_.separator);
}

// The waiting documents of a state.
std::vector<Document> PackedRows::documents_of(const std::string& text) {
    std::vector<Document> documents;
    std::vector<const char*> places;
    const char *at = text.data(), *const end = at + text.size();
    const auto check = [](bool good, const char* place) {
        require(good, "'%.40s' in the state of the data: no document begins there; %s", place, kOtherData);
    };
    while (at != end) {
        Document& document = documents.emplace_back();
        places.push_back(at);
        auto read = std::from_chars(at, end, document.shard);
        check(read.ec == std::errc() && read.ptr != end && *read.ptr == ':' && document.shard < shards_.size(), at);
        read = std::from_chars(read.ptr + 1, end, document.begin);
        check(read.ec == std::errc() && document.begin >= 0 && document.begin < shards_[document.shard].num_tokens(),
              at);
        at = read.ptr == end ? end : read.ptr + 1;
    }
    auto kept = std::exchange(kept_, {});
    restoring_.clear();
    for (const Document& document : documents)
        if (!kept.contains({document.shard, document.begin})) restoring_.push_back(document.shard);
    for (size_t i = 0; i < documents.size(); i++) {
        Document& document = documents[i];
        if (auto node = kept.extract({document.shard, document.begin})) {
            document = node.mapped().document;
            kept_.insert(std::move(node));
            continue;
        }
        check(shards_[document.shard].find(config_.separator, document.begin) == document.begin, places[i]);
        document = document_at(shards_, document.shard, document.begin, config_.separator);
        keep(document);
    }
    restoring_.clear();
    return documents;
}

void PackedRows::keep(const Document& document) {
    const TokenShard& shard = shards_[document.shard];
    if (!shard.is_fetched()) return;
    std::vector<int32_t> tokens(size_t(std::min<int64_t>(document.length, config_.seq_len + 1)));
    shard.read(document.begin, int64_t(tokens.size()), tokens.data(), config_.vocab_size);
    kept_[{document.shard, document.begin}] = {document, std::move(tokens)};
}

size_t PackedRows::shard_after(size_t shard) const {
    if (!restoring_.empty()) {
        auto at = std::find(restoring_.begin(), restoring_.end(), uint32_t(shard));
        while (at != restoring_.end() && *at == shard) at++;
        return at != restoring_.end() ? *at : shard;
    }
    const uint64_t n = shards_.size();
    if (!config_.shuffle) return (shard + 1) % n;
    for (uint64_t turn = 0; turn + 1 < n; turn++)
        if (shard_order_(turn) == shard) return shard_order_(turn + 1);
    return Permutation(n, Rng(mix64(config_.seed) + epoch_ + 1, Stream::data).next())(0);
}

void PackedRows::skip(int64_t rows) {
    for (int64_t i = 0; i < rows; i++) pack(nullptr);
}

// Packs the next row. If `row` is null, its tokens are not read.
void PackedRows::pack(int32_t* row) {
    const int64_t capacity = config_.seq_len + 1;
    for (int64_t at = 0; at < capacity;) {
        refill();
        if (config_.pads && at > 0 && !waiting_.fits(capacity - at)) {
            if (row) std::fill(row + at, row + capacity, ~config_.separator);
            break;
        }
        const Document document = waiting_.take(capacity - at);
        const int64_t n = std::min<int64_t>(document.length, capacity - at);
        if (const auto kept = kept_.find({document.shard, document.begin}); kept != kept_.end()) {
            if (row) std::copy_n(kept->second.tokens.begin(), n, row + at);
            kept_.erase(kept);
        } else if (row) {
            shards_[document.shard].read(document.begin, n, row + at, config_.vocab_size);
        }
        cropped_ += uint64_t(document.length - n);
        at += n;
    }
    rows_++;
}

void PackedRows::refill() {
    while (waiting_.size() < kWaiting) {
        for (size_t i = 0; i < kRefill; i++) {
            std::optional<Document> document = next_document();
            if (!document && waiting_.size() > 0) return;
            if (!document) {
                begin_epoch(epoch_ + 1);
                document = next_document();
            }
            require_documents(document.has_value());
            waiting_.add(*document);
            keep(*document);
        }
    }
}

void PackedRows::begin_epoch(uint64_t number) {
    Rng rng(mix64(config_.seed) + number, Stream::data);
    epoch_ = number;
    shard_order_ = Permutation(shards_.size(), rng.next());
    epoch_seed_ = rng.next();
    turn_ = next_ = 0;
    begins_.clear();
}

// The next document of this epoch, if there is one.
std::optional<Document> PackedRows::next_document() {
    for (; turn_ < shards_.size(); turn_++, next_ = 0, begins_.clear()) {
        const auto s = uint32_t(config_.shuffle ? shard_order_(turn_) : turn_);
        const TokenShard& shard = shards_[s];
        if (begins_.empty()) {
            for (int64_t at = -1; (at = shard.find(config_.separator, at + 1)) < shard.num_tokens();)
                begins_.push_back(int32_t(at));
            shard.file().check_uncut();
            document_order_ = Permutation(begins_.size(), epoch_seed_ + s);
        }
        if (next_ >= begins_.size()) continue;
        const uint64_t i = config_.shuffle ? document_order_(next_) : next_;
        next_++;
        const int64_t end = i + 1 < begins_.size() ? begins_[i + 1] : shard.num_tokens();
        return Document{s, begins_[i], int32_t(end - begins_[i])};
    }
    return {};
}

LoaderState PackedRows::state() const {
    return {.epoch = epoch_,
            .position = turn_ << kTurnShift | next_,
            .rows = rows_,
            .cropped = cropped_,
            .waiting = text_of(waiting_.in_order())};
}

void PackedRows::restore(const LoaderState& state) {
    const uint64_t turn = state.position >> kTurnShift;
    require(turn <= shards_.size(), "the data position is in shard %lu of an epoch, and there are %zu; %s", turn,
            shards_.size(), kOtherData);
    const std::vector<Document> documents = documents_of(state.waiting);
    waiting_ = {};
    for (const Document& document : documents) waiting_.add(document);
    begin_epoch(state.epoch);
    turn_ = turn;
    next_ = state.position & ((uint64_t(1) << kTurnShift) - 1);
    rows_ = state.rows;
    cropped_ = state.cropped;
}

int64_t PackedRows::num_rows(uint64_t epoch) const {
    if (!counted_ || counted_->first != epoch) {
        PackedRows rows(shards_, config_);
        int64_t n = 0;
        for (rows.restore({.epoch = epoch});; n++) {
            rows.skip(1);
            if (rows.epoch_ != epoch) break;
        }
        counted_ = {epoch, n};
    }
    return counted_->second;
}

PackingTrial try_packing(const std::vector<TokenShard>& shards, int separator, int64_t seq_len, int64_t most_tokens) {
    ensure(separator >= 0 && seq_len >= 1);
    PackingTrial trial;
    std::vector<Document> documents;
    for (size_t s = 0; s < shards.size() && trial.tokens < most_tokens; s++) {
        const int64_t before = trial.tokens, n = shards[s].num_tokens();
        int64_t at = shards[s].find(separator, 0);
        trial.tokens = before + at;
        while (at < n && trial.tokens < most_tokens) {
            documents.push_back(document_at(shards, uint32_t(s), int32_t(at), separator));
            at += documents.back().length;
            trial.tokens = before + at;
        }
        shards[s].file().check_uncut();
    }
    trial.documents = int64_t(documents.size());
    BestFit waiting;
    int64_t space = 0;
    for (size_t next = 0; next < documents.size() || waiting.size() > 0;) {
        if (waiting.size() < kWaiting)
            for (size_t i = 0; i < kRefill && next < documents.size(); i++) waiting.add(documents[next++]);
        if (waiting.size() < kWaiting && next < documents.size()) continue;
        if (space == 0) space = seq_len + 1;
        const int64_t n = std::min<int64_t>(waiting.take(space).length, space);
        trial.packed += n, space -= n;
    }
    return trial;
}

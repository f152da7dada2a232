// Byte-pair encoding: the tables and the merging of pieces.
#include "llmc/data/bpe.h"
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <unordered_set>
#include "llmc/base/check.h"      // require, ensure
#include "llmc/data/nfc.h"        // is_surely_nfc, to_nfc
#include "llmc/data/tokenizer.h"  // Tokenizer
#include "llmc/data/utf8.h"       // code_point_at

namespace {
// Up to this many bytes, a piece is merged by searching all pairs for each merge: quadratic, but without a heap.
constexpr size_t kShortPiece = 128;

// The size of a hash table: at least twice the number of entries, so that probe sequences are short.
size_t places_for(size_t entries) { return std::bit_ceil(std::max<size_t>(entries * 2, 16)); }
}  // namespace

void PairRanks::reset(size_t pairs) {
    entries_.assign(places_for(pairs), kEmpty);
    mask_ = entries_.size() - 1;
    shift_ = 64 - std::countr_zero(entries_.size());
}

void PairRanks::add(int32_t left, int32_t right, uint32_t rank) {
    const uint64_t key = key_of(left, right);
    size_t i = place_of(key);
    while (entries_[i] != kEmpty) i = (i + 1) & mask_;
    entries_[i] = key << 24 | rank;
}

PieceIds::Key PieceIds::key_of(std::string_view piece) {
    Key key = {0, 0};
    const char* at = piece.data();
    const size_t bytes = piece.size();
    if (bytes >= 8) {
        std::memcpy(&key.low, at, 8);
        std::memcpy(&key.high, at + bytes - 8, 8);
    } else if (bytes >= 4) {
        uint32_t first, last;
        std::memcpy(&first, at, 4);
        std::memcpy(&last, at + bytes - 4, 4);
        key.low = first | uint64_t(last) << 8 * (bytes - 4);
    } else {
        for (size_t i = 0; i < bytes; i++) key.low |= uint64_t(static_cast<unsigned char>(at[i])) << 8 * i;
    }
    return key;
}

void PieceIds::reset(size_t tokens) {
    entries_.assign(places_for(tokens), {});
    mask_ = entries_.size() - 1;
    shift_ = 64 - std::countr_zero(entries_.size());
}

void PieceIds::add(std::string_view piece, int32_t id) {
    if (piece.size() > kShort) {
        long_.emplace(piece, id);
        return;
    }
    const Key key = key_of(piece);
    size_t i = place_of(key);
    while (entries_[i].bytes != 0) i = (i + 1) & mask_;
    entries_[i] = {key, id, uint32_t(piece.size())};
}

int32_t PieceIds::find_long(std::string_view piece) const {
    const auto found = long_.find(piece);
    return found == long_.end() ? -1 : found->second;
}

namespace {
size_t merge_short(const Bpe& bpe, std::string_view piece, std::vector<int32_t>& ids) {
    int32_t token[kShortPiece];
    uint32_t rank[kShortPiece];  // of the merge of token i and the next one
    size_t n = bpe.first_tokens(piece, token), steps = 0;
    for (size_t i = 0; i + 1 < n; i++) rank[i] = bpe.ranks.find(token[i], token[i + 1]);
    while (n > 1) {
        const size_t at = size_t(std::min_element(rank, rank + n - 1) - rank);
        steps += n - 1;
        if (rank[at] == PairRanks::kNone) break;
        token[at] = bpe.merges[rank[at]].result;
        n--;
        std::memmove(token + at + 1, token + at + 2, (n - at - 1) * sizeof token[0]);
        if (at + 1 < n) {
            std::memmove(rank + at, rank + at + 1, (n - at - 1) * sizeof rank[0]);
            rank[at] = bpe.ranks.find(token[at], token[at + 1]);
        }
        if (at > 0) rank[at - 1] = bpe.ranks.find(token[at - 1], token[at]);
    }
    ids.insert(ids.end(), token, token + n);
    return steps;
}

// A queue of pairs: the lowest rank first, of equal ranks the leftmost. Pairs wait in runs. All pairs of a run have one
// rank and go from left to right, and a heap holds the first pair of each run. Two tokens become adjacent when the
// later of their two merges is applied, which also goes from left to right. So if merges are in the order in which they
// were learned, each rank has one run, and most pairs are added and taken without reordering the heap, which a heap of
// all pairs would need for every pair.
template <class Index>
class WaitingPairs {
public:
    void add(uint32_t rank, Index at) {
        const auto [found, is_new] = last_run_.try_emplace(rank, runs_.size());
        if (!is_new) {
            Run& run = runs_[found->second];
            if (run.taken == run.places.size()) {
                run.places.clear();
                run.taken = 0;
                run.places.push_back(at);
                return push({rank, at, found->second});
            }
            if (run.places.back() <= at) return run.places.push_back(at);
            found->second = runs_.size();
        }
        runs_.push_back({{at}, 0});
        push({rank, at, runs_.size() - 1});
    }
    // Removes the next pair. Returns false if there is none.
    bool take(uint32_t& rank, Index& at) {
        if (heap_.empty()) return false;
        steps_++;
        First first = heap_.front();
        rank = first.rank;
        at = first.at;
        Run& run = runs_[first.run];
        run.taken++;
        if (run.taken == run.places.size()) {
            pop();
            return true;
        }
        first.at = run.places[run.taken];
        const auto children = heap_.begin() + 1, end = children + std::min<ptrdiff_t>(ptrdiff_t(heap_.size()) - 1, 2);
        if (std::any_of(children, end, [&](const First& child) { return later(first, child); })) {
            pop();
            push(first);
        } else {
            heap_.front() = first;
        }
        return true;
    }
    size_t steps() const { return steps_; }  // pairs taken plus comparisons in the heap

private:
    struct Run {
        std::vector<Index> places;
        size_t taken;  // how many of them were taken
    };
    struct First {
        uint32_t rank;
        Index at;
        size_t run;
    };
    static bool later(const First& a, const First& b) { return a.rank != b.rank ? a.rank > b.rank : a.at > b.at; }
    void push(const First& first) {
        heap_.push_back(first);
        std::push_heap(heap_.begin(), heap_.end(), counted());
    }
    void pop() {
        std::pop_heap(heap_.begin(), heap_.end(), counted());
        heap_.pop_back();
    }
    auto counted() {
        return [this](const First& a, const First& b) {
            steps_++;
            return later(a, b);
        };
    }
    std::vector<Run> runs_;
    std::vector<First> heap_;
    std::unordered_map<uint32_t, size_t> last_run_;  // the latest run of each rank
    size_t steps_ = 0;
};

// The tokens are a doubly linked list. A pair in the queue is stale if its node's rank has changed. Index is a type
// that can hold the length of the piece.
template <class Index>
size_t merge_long(const Bpe& bpe, std::string_view piece, std::vector<int32_t>& ids) {
    struct Node {
        int32_t token;
        uint32_t rank;  // of the merge of this token and the next
        Index previous, next;
    };
    std::vector<int32_t> tokens(piece.size());
    const Index n = Index(bpe.first_tokens(piece, tokens.data()));
    std::vector<Node> nodes(n);
    for (Index i = 0; i < n; i++) nodes[i] = {tokens[i], PairRanks::kNone, Index(i - 1), Index(i + 1)};
    WaitingPairs<Index> waiting;
    const auto renew = [&](Index at) {
        Node& node = nodes[at];
        node.rank = node.next == n ? PairRanks::kNone : bpe.ranks.find(node.token, nodes[node.next].token);
        if (node.rank != PairRanks::kNone) waiting.add(node.rank, at);
    };
    for (Index i = 0; i < n; i++) renew(i);
    uint32_t rank;
    Index at;
    while (waiting.take(rank, at)) {
        if (nodes[at].rank != rank) continue;
        const Index gone = nodes[at].next;
        nodes[at].token = bpe.merges[rank].result;
        nodes[at].next = nodes[gone].next;
        nodes[gone].rank = PairRanks::kNone;
        if (nodes[at].next < n) nodes[nodes[at].next].previous = at;
        if (at > 0) renew(nodes[at].previous);
        renew(at);
    }
    for (at = 0; at < n; at = nodes[at].next) ids.push_back(nodes[at].token);
    return waiting.steps();
}
}  // namespace

size_t Bpe::first_tokens(std::string_view piece, int32_t* tokens) const {
    size_t n = 0;
    if (!of_characters) {
        for (const char byte : piece) tokens[n++] = byte_ids[static_cast<unsigned char>(byte)];
        return n;
    }
    for (size_t at = 0; at < piece.size();) {
        const CodePoint c = code_point_at(piece, at);
        const int32_t id = c.bytes > 0 && c.value < char_ids.size() ? char_ids[c.value] : -1;
        if (id >= 0) tokens[n++] = id;
        for (const size_t end = at + std::max<size_t>(c.bytes, 1); at < end; at++)
            if (id < 0) tokens[n++] = byte_ids[static_cast<unsigned char>(piece[at])];
    }
    return n;
}

size_t Bpe::merge_piece(std::string_view piece, std::vector<int32_t>& ids) const {
    if (piece.size() <= kShortPiece) return merge_short(*this, piece, ids);
    if (piece.size() < UINT32_MAX) return merge_long<uint32_t>(*this, piece, ids);
    return merge_long<size_t>(*this, piece, ids);
}

namespace {
// Caches the merged tokens of pieces, since words recur. An entry is replaced by the next piece that hashes to it.
class PieceCache {
public:
    // Appends the ids of the piece to `ids`. The cache holds the pieces of one tokenizer.
    void encode(const Bpe& bpe, std::string_view piece, std::vector<int32_t>& ids) {
        if (piece.size() > sizeof Entry::text) {
            bpe.merge_piece(piece, ids);
            return;
        }
        if (serial_ != bpe.serial) {
            entries_.assign(kEntries, {});
            serial_ = bpe.serial;
        }
        Entry& entry = entries_[hash_of(piece) % kEntries];
        if (entry.bytes == piece.size() && std::memcmp(entry.text, piece.data(), piece.size()) == 0) {
            ids.insert(ids.end(), entry.ids, entry.ids + entry.num_ids);
            return;
        }
        const size_t before = ids.size();
        bpe.merge_piece(piece, ids);
        const size_t num_ids = ids.size() - before;
        if (num_ids > std::size(entry.ids)) return;
        entry.bytes = uint8_t(piece.size());
        entry.num_ids = uint8_t(num_ids);
        std::memcpy(entry.text, piece.data(), piece.size());
        std::copy(ids.end() - ptrdiff_t(num_ids), ids.end(), entry.ids);
    }

private:
    static constexpr size_t kEntries = 4096;  // half a megabyte, to fit into a core's own cache
    struct Entry {
        uint8_t bytes, num_ids;  // bytes 0: empty
        char text[46];
        int32_t ids[20];
    };
    static size_t hash_of(std::string_view piece) {
        uint64_t hash = piece.size();
        for (size_t at = 0; at < piece.size(); at += 8) {
            uint64_t word = 0;
            std::memcpy(&word, piece.data() + at, std::min<size_t>(8, piece.size() - at));
            hash = (hash ^ word) * 0x9E3779B97F4A7C15;
            hash ^= hash >> 32;
        }
        return hash;
    }
    std::vector<Entry> entries_;
    uint64_t serial_ = 0;
};

// Splits text into pieces: blanks and the characters up to the next blank.
template <class F>
void for_each_word(std::string_view text, const std::string& blanks, F f) {
    const char first = blanks.empty() ? '\0' : blanks[0], second = blanks.empty() ? '\0' : blanks.back();
    const auto is_blank = [&](char c) { return c == first || c == second; };
    if (blanks.empty()) return f(text);
    for (size_t begin = 0, end; begin < text.size(); begin = end) {
        end = begin;
        while (end < text.size() && is_blank(text[end])) end++;
        while (end < text.size() && !is_blank(text[end])) end++;
        f(text.substr(begin, end - begin));
    }
}
}  // namespace

std::string with_spaces(std::string_view text) {
    std::string result(text);
    for (size_t at = 0; (at = result.find(kSpelledSpace, at)) != std::string::npos; at++)
        result.replace(at, std::string_view(kSpelledSpace).size(), " ");
    return result;
}

std::string_view Bpe::normalize(std::string_view part, bool begins, std::string& scratch) const {
    if (normalizes && !is_surely_nfc(part)) return scratch = to_nfc(part);
    if (!of_characters || metaspace || part.empty()) return part;
    scratch = with_spaces(part);
    if (begins && first_space == FirstSpace::parts) scratch.insert(0, 1, ' ');
    return scratch;
}

void Bpe::encode(std::string_view text, std::vector<int32_t>& ids, bool is_beginning) const {
    thread_local PieceCache cache;
    PieceCache& others = cache;
    std::string normal, spaced;
    const auto encode_piece = [&](std::string_view piece) {
        const int32_t id = pieces.find(piece);
        if (id >= 0)
            ids.push_back(id);
        else
            others.encode(*this, piece, ids);
    };
    const auto encode_part = [&](std::string_view part, bool begins_text) {
        if (!of_characters) return for_each_piece(pattern, part, encode_piece);
        if (metaspace) {
            spaced = with_spaces(part);
            const bool begins =
                begins_text ? is_beginning && first_space != FirstSpace::none : first_space == FirstSpace::parts;
            if (begins && spaced[0] != ' ') spaced.insert(0, 1, ' ');
            part = spaced;
        }
        for_each_word(part, blanks, encode_piece);
    };
    in_text.split(text, [&](std::string_view part, int32_t added_id) {
        if (added_id >= 0) return ids.push_back(added_id);
        const bool begins_text = part.data() == text.data();
        const std::string_view all = normalize(part, is_beginning || !begins_text, normal);
        in_normalized.split(all, [&](std::string_view rest, int32_t id) {
            if (id >= 0) return ids.push_back(id);
            encode_part(rest, begins_text && rest.data() == all.data());
        });
    });
}

namespace {
bool is_added(const Bpe& bpe, int32_t id) {
    return std::any_of(bpe.added.begin(), bpe.added.end(), [&](const AddedToken& t) { return t.id == id; });
}

bool is_utf8(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        const CodePoint c = code_point_at(text, at);
        if (c.bytes == 0) return false;
        at += c.bytes;
    }
    return true;
}

// Finds the ids of the 256 bytes. Returns false if one of them has none.
bool find_bytes(const std::vector<std::string>& symbols, Bpe& bpe) {
    bpe.byte_ids.fill(-1);
    for (size_t id = symbols.size(); id-- > 0;)
        if (symbols[id].size() == 1 && !is_added(bpe, int32_t(id)))
            bpe.byte_ids[static_cast<unsigned char>(symbols[id][0])] = int32_t(id);
    return std::find(bpe.byte_ids.begin(), bpe.byte_ids.end(), -1) == bpe.byte_ids.end();
}

// The characters of " \n" before which text can be split without changing its tokens: no token goes from another
// character into one of them.
std::string blanks_between(const std::vector<Merge>& merges, const std::vector<std::string>& symbols) {
    std::string blanks = " \n";
    for (size_t before = 0; before != blanks.size();) {
        before = blanks.size();
        for (const Merge& merge : merges) {
            const std::string& both = symbols[size_t(merge.result)];
            for (size_t at = 1; at < both.size(); at++)
                if (blanks.find(both[at - 1]) == std::string::npos) std::erase(blanks, both[at]);
        }
    }
    return blanks;
}
}  // namespace

void Bpe::prepare(const std::vector<std::string>& symbols, const std::string& where) {
    require(symbols.size() <= size_t(kMaxBpeIds), "%s has %zu tokens: expected at most %d", where.c_str(),
            symbols.size(), kMaxBpeIds);
    require(merges.size() <= kMaxMerges, "%s has %zu merges: expected at most %zu", where.c_str(), merges.size(),
            kMaxMerges);
    std::unordered_set<std::string_view> texts;
    for (const AddedToken& token : added)
        require(is_utf8(token.text) && texts.insert(token.text).second,
                "%s: the special token %d occurs twice or is not UTF-8", where.c_str(), token.id);
    separator = separator < 0 ? separator_of(added) : separator;
    if (!encodes) return;
    prepare_added(where);
    const bool complete = of_characters || find_bytes(symbols, *this);
    require(complete, "%s lacks tokens for some of the 256 bytes: expected one for each, to encode any text",
            where.c_str());
    static std::atomic<uint64_t> made = 0;
    serial = ++made;
    ranks.reset(merges.size());
    for (size_t rank = 0; rank < merges.size(); rank++)
        ranks.add(merges[rank].left, merges[rank].right, uint32_t(rank));

    pieces.reset(symbols.size());
    std::vector<int32_t> ids;
    for (size_t id = 0; id < symbols.size(); id++) {
        if (symbols[id].empty() || is_added(*this, int32_t(id))) continue;
        if (!whole_pieces) {
            ids.clear();
            merge_piece(symbols[id], ids);
            if (ids.size() != 1 || ids[0] != int32_t(id)) continue;
        }
        pieces.add(symbols[id], int32_t(id));
    }
    if (of_characters) {
        require(!whole_pieces, "%s takes whole texts as tokens, and merges characters: expected one or the other",
                where.c_str());
        for (const Merge& merge : merges) {
            const std::string& both = symbols[size_t(merge.result)];
            may_cut = may_cut && cut_between_pieces(both, 1) == both.size();
        }
        blanks = blanks_between(merges, symbols);
        return;
    }
    // A tokenizer.json has one vocabulary for added tokens and spelled bytes.
    std::string bytes;
    for (const AddedToken& token : added)
        require(!bytes_of_gpt2_spelling(token.text, bytes) || pieces.find(bytes) < 0,
                "%s: the special token '%s' is spelled like token %d: give it another name, such as <|%s|>",
                where.c_str(), token.text.c_str(), pieces.find(bytes), token.text.c_str());
}

void Bpe::prepare_added(const std::string& where) {
    in_text = in_normalized = {};
    std::string scratch;
    const auto holds_made = [this](const std::string& text) {
        return std::any_of(added.begin(), added.end(), [&](const AddedToken& token) {
            return !token.special && text.find(token.text) != std::string::npos;
        });
    };
    for (const AddedToken& token : added) {
        const std::string text(token.normalized ? normalize(token.text, true, scratch) : token.text);
        const std::string spaced = (of_characters ? with_spaces(text) : text) + (token.rstrip ? " " : "");
        require(cut_between_pieces(spaced, 1) == spaced.size() || !holds_made(token.text),
                "%s: the added token '%s' has a blank after a letter or digit, where long texts are cut: expected no "
                "such token that is not \"special\"",
                where.c_str(), token.text.c_str());
        require(token.special || !token.normalized || !of_characters || metaspace || !(token.lstrip || token.rstrip),
                "%s: the added token '%s' takes white space along (lstrip, rstrip) in text that is normalized, which "
                "is not "
                "supported here: expected \"normalized\": false",
                where.c_str(), token.text.c_str());
        (token.normalized ? in_normalized : in_text).add(token, text);
    }
    in_text.prepare();
    in_normalized.prepare();
}

int32_t separator_of(const std::vector<AddedToken>& added) {
    for (const char* text : {"<|bos|>", "<|endoftext|>", "<|begin_of_text|>", "<s>"})
        for (const AddedToken& token : added)
            if (token.text == text) return token.id;
    const auto first = std::find_if(added.begin(), added.end(), [](const AddedToken& token) { return token.special; });
    return added.empty() ? -1 : first == added.end() ? added[0].id : first->id;
}

Tokenizer make_bpe_tokenizer(std::vector<std::string> symbols, Bpe bpe, const std::string& where) {
    Tokenizer tokenizer{TokenizerKind::bpe, std::move(symbols), {}, nullptr};
    bpe.prepare(tokenizer.symbols, where);
    tokenizer.bpe = std::make_shared<const Bpe>(std::move(bpe));
    return tokenizer;
}

size_t recover_merges(const std::vector<std::string>& symbols, Bpe& bpe) {
    bpe.merges.clear();
    if (!find_bytes(symbols, bpe)) return symbols.size();
    std::unordered_map<std::string_view, int32_t> id_of;
    for (size_t id = 0; id < symbols.size(); id++)
        if (!symbols[id].empty() && !is_added(bpe, int32_t(id))) id_of.emplace(symbols[id], int32_t(id));
    size_t lost = 0, room = symbols.size();
    bpe.ranks.reset(room);
    std::vector<int32_t> ids;
    const auto add = [&](int32_t left, int32_t right, size_t result) {
        if (bpe.merges.size() == room) {
            bpe.ranks.reset(room *= 2);
            for (size_t i = 0; i < bpe.merges.size(); i++)
                bpe.ranks.add(bpe.merges[i].left, bpe.merges[i].right, uint32_t(i));
        }
        bpe.ranks.add(left, right, uint32_t(bpe.merges.size()));
        bpe.merges.push_back({left, right, int32_t(result)});
    };
    for (size_t id = 0; id < symbols.size(); id++) {
        const std::string_view symbol = symbols[id];
        if (symbol.size() < 2 || is_added(bpe, int32_t(id))) continue;
        ids.clear();
        bpe.merge_piece(symbol, ids);
        if (ids.size() == 2) {
            add(ids[0], ids[1], id);
            continue;
        }
        lost++;
        for (size_t at = 1; at < symbol.size(); at++) {
            const auto left = id_of.find(symbol.substr(0, at)), right = id_of.find(symbol.substr(at));
            if (left != id_of.end() && right != id_of.end()) add(left->second, right->second, id);
        }
    }
    return lost;
}

const std::vector<std::string>& gpt2_byte_spellings() {
    static const std::vector<std::string> spellings = [] {
        std::vector<std::string> table;
        char32_t next_unprintable = 0x100;
        for (char32_t byte = 0; byte < 256; byte++) {
            const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
            table.push_back(utf8(printable ? byte : next_unprintable++));
        }
        return table;
    }();
    return spellings;
}

std::string spell_as_gpt2(std::string_view bytes) {
    std::string spelled;
    for (const char byte : bytes) spelled += gpt2_byte_spellings()[static_cast<unsigned char>(byte)];
    return spelled;
}

bool bytes_of_gpt2_spelling(std::string_view spelled, std::string& bytes) {
    static const std::vector<int> byte_of = [] {
        std::vector<int> table(0x100 + 68, -1);
        for (int byte = 0; byte < 256; byte++)
            table[code_point_at(gpt2_byte_spellings()[size_t(byte)], 0).value] = byte;
        return table;
    }();
    bytes.clear();
    for (size_t at = 0; at < spelled.size();) {
        const CodePoint c = code_point_at(spelled, at);
        if (c.bytes == 0 || c.value >= byte_of.size() || byte_of[c.value] < 0) return false;
        bytes += char(byte_of[c.value]);
        at += c.bytes;
    }
    return true;
}

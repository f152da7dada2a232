// Encodes and decodes. The file formats are in tokenizer_json.cpp and tokenizer_formats.cpp.
#include "llmc/data/tokenizer.h"
#include <algorithm>
#include <thread>
#include "llmc/base/check.h"        // require
#include "llmc/base/host_limits.h"  // usable_cores
#include "llmc/data/bpe.h"          // Bpe
#include "llmc/data/split.h"        // cut_between_pieces
#include "llmc/data/utf8.h"         // code_point_at, utf8

namespace {
CodePoint require_code_point(std::string_view text, size_t at, const std::string& where) {
    const CodePoint c = code_point_at(text, at);
    require(
        c.bytes > 0,
        "%s is not UTF-8: the byte at offset %zu is 0x%02x; convert it to UTF-8, or use --tokenizer byte, which takes "
        "any text",
        where.c_str(), at, static_cast<unsigned char>(text[at]));
    return c;
}

// The minimum part of a text per thread, large enough that starting a thread does not matter.
constexpr size_t kThreadBytes = 1 << 19;

// Each thread encodes one part; the parts are cut where all patterns end a piece.
std::vector<int32_t> encode_bpe(const Bpe& bpe, std::string_view text, int threads, bool is_beginning) {
    if (threads == 0) threads = usable_cores();
    const size_t parts = bpe.may_cut ? std::clamp<size_t>(text.size() / kThreadBytes, 1, size_t(threads)) : 1;
    std::vector<std::vector<int32_t>> ids(parts);
    std::vector<std::thread> helpers;
    for (size_t part = 0, begin = 0; part < parts; part++) {
        const size_t end = part + 1 == parts
                               ? text.size()
                               : cut_between_pieces(text, std::max(begin, text.size() / parts * (part + 1)));
        const auto work = [&bpe, &mine = ids[part], piece = text.substr(begin, end - begin),
                           begins = is_beginning && part == 0] {
            mine.reserve(piece.size() / 3);
            bpe.encode(piece, mine, begins);
        };
        begin = end;
        if (part + 1 < parts)
            helpers.emplace_back(work);
        else
            work();
    }
    for (std::thread& helper : helpers) helper.join();
    for (size_t part = 1; part < parts; part++) ids[0].insert(ids[0].end(), ids[part].begin(), ids[part].end());
    return std::move(ids[0]);
}
}  // namespace

int Tokenizer::separator() const {
    if (kind == TokenizerKind::bpe) return bpe->separator;
    return kind == TokenizerKind::bytes ? 0 : -1;
}

const char* Tokenizer::name() const {
    return kind == TokenizerKind::bpe ? "bpe" : kind == TokenizerKind::bytes ? "byte" : "char";
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const std::string& where, int threads,
                                       bool is_beginning) const {
    if (kind == TokenizerKind::bpe) {
        require(
            bpe->encodes,
            "%s cannot be encoded: the file of the tokenizer does not say which tokens to merge, so it can only turn "
            "ids to text; give the vocab.bpe or tokenizer.json that it was made from",
            where.c_str());
        return encode_bpe(*bpe, text, threads, is_beginning);
    }
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    if (kind == TokenizerKind::bytes) {
        for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
        return ids;
    }
    for (size_t at = 0; at < text.size();) {
        const CodePoint c = require_code_point(text, at, where);
        const int32_t id = c.value < id_of_code_point.size() ? id_of_code_point[c.value] : -1;
        require(
            id >= 0,
            "%s: '%s' (U+%04X) at byte %zu is not among the %d symbols of the char tokenizer, which knows only those "
            "of its training text; leave it out, or prepare the data with --tokenizer byte",
            where.c_str(), c.value < ' ' ? "?" : utf8(c.value).c_str(), unsigned(c.value), at, vocab_size());
        ids.push_back(id);
        at += c.bytes;
    }
    return ids;
}

size_t Tokenizer::cut(std::string_view text, size_t at) const {
    if (kind == TokenizerKind::bpe) return bpe->may_cut ? cut_between_pieces(text, at) : text.size();
    // Not inside a code point, which may be one symbol.
    while (at < text.size() && (text[at] & 0xC0) == 0x80) at++;
    return std::min(at, text.size());
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids) const {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
        require(id >= 0 && id < vocab_size(),
                "token id %d is outside the vocabulary of %d; is this tokenizer.json that of "
                "the data?",
                id, vocab_size());
        text += symbols[size_t(id)];
    }
    return text;
}

std::vector<int32_t> Tokenizer::token_bytes() const {
    std::vector<int32_t> bytes;
    for (const std::string& symbol : symbols) bytes.push_back(int32_t(symbol.size()));
    if (separator() >= 0) bytes[size_t(separator())] = 0;
    if (bpe)
        for (const AddedToken& token : bpe->added)
            if (token.special) bytes[size_t(token.id)] = 0;
    return bytes;
}

Tokenizer byte_tokenizer() {
    Tokenizer tokenizer;
    for (int byte = 0; byte < 256; byte++) tokenizer.symbols.push_back(std::string(1, char(byte)));
    return tokenizer;
}

int64_t Symbols::add(std::string_view text, const std::string& where) {
    seen.resize(kCodePoints);
    int64_t code_points = 0;
    for (size_t at = 0; at < text.size(); code_points++) {
        const CodePoint c = require_code_point(text, at, where);
        seen[c.value] = true;
        at += c.bytes;
    }
    return code_points;
}

Tokenizer char_tokenizer(const Symbols& symbols) {
    Tokenizer tokenizer{TokenizerKind::chars, {}, {}, nullptr};
    for (char32_t c = 0; c < symbols.seen.size(); c++) {
        if (!symbols.seen[c]) continue;
        tokenizer.id_of_code_point.resize(c + 1, -1);
        tokenizer.id_of_code_point[c] = tokenizer.vocab_size();
        tokenizer.symbols.push_back(utf8(c));
    }
    return tokenizer;
}

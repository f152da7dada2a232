// Training, encoding and decoding. The file format is in tokenizer_json.cpp.
#include "llmc/data/tokenizer.h"
#include "llmc/base/check.h"  // require, ensure
#include "llmc/data/utf8.h"   // code_point_at, utf8

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
}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, const std::string& where) const {
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
    Tokenizer tokenizer{TokenizerKind::chars, {}, {}};
    for (char32_t c = 0; c < symbols.seen.size(); c++) {
        if (!symbols.seen[c]) continue;
        tokenizer.id_of_code_point.resize(c + 1, -1);
        tokenizer.id_of_code_point[c] = tokenizer.vocab_size();
        tokenizer.symbols.push_back(utf8(c));
    }
    return tokenizer;
}

// See added_tokens.h.
#include "llmc/data/added_tokens.h"
#include <algorithm>
#include "llmc/data/split.h"  // char_classes, CharClass
#include "llmc/data/utf8.h"   // code_point_at

namespace {
size_t byte_of(char c) { return static_cast<unsigned char>(c); }

bool is_space(const CodePoint& c) { return c.bytes > 0 && char_classes()[c.value] == CharClass::space; }
}  // namespace

void AddedTokens::add(const AddedToken& token, std::string spelled) {
    finds_any_ = finds_any_ || !token.special;
    entries_.push_back({token, std::move(spelled)});
}

void AddedTokens::prepare() {
    std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
        return a.text[0] != b.text[0] ? byte_of(a.text[0]) < byte_of(b.text[0]) : a.text.size() > b.text.size();
    });
    for (const Entry& entry : entries_) {
        first_[byte_of(entry.text[0]) + 1]++;
        for (int second = 0; second < 256; second++)
            if (entry.text.size() == 1 || entry.text[1] == char(second))
                begins_.set(pair_of(entry.text[0], char(second)));
    }
    for (size_t byte = 0; byte < 256; byte++) first_[byte + 1] += first_[byte];
}

const AddedTokens::Entry* AddedTokens::longest_entry(std::string_view rest) const {
    const size_t byte = byte_of(rest[0]);
    for (size_t i = first_[byte]; i < first_[byte + 1]; i++)
        if (rest.starts_with(entries_[i].text)) return &entries_[i];
    return nullptr;
}

size_t AddedTokens::begin_of_space(std::string_view text, size_t at) {
    while (at > 0) {
        size_t before = at - 1;
        while (before > 0 && at - before < 4 && (text[before] & 0xC0) == 0x80) before--;
        if (!is_space(code_point_at(text.substr(0, at), before))) return at;
        at = before;
    }
    return at;
}

size_t AddedTokens::end_of_space(std::string_view text, size_t at) {
    while (at < text.size()) {
        const CodePoint c = code_point_at(text, at);
        if (!is_space(c)) return at;
        at += c.bytes;
    }
    return at;
}

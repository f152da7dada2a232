// See nfc.h.
#include "llmc/data/nfc.h"
#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>
#include "llmc/data/unicode_table.h"  // unpacked, kCombiningClasses, kDecompositions
#include "llmc/data/utf8.h"           // code_point_at, utf8

namespace {

// Hangul syllables are computed from their letters: leading consonant, vowel and optional trailing consonant.
constexpr char32_t kSyllables = 0xAC00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7;
constexpr char32_t kNumLeading = 19, kNumVowels = 21, kNumTrailing = 28;
constexpr char32_t kNumSyllables = kNumLeading * kNumVowels * kNumTrailing;

// Whether c is one of the n code points from `first` on.
bool among(char32_t c, char32_t first, char32_t n) { return c >= first && c < first + n; }

struct Tables {
    std::vector<uint8_t> classes = std::vector<uint8_t>(kCodePoints, 0);
    std::vector<bool> may_change = std::vector<bool>(kCodePoints, false);
    std::unordered_map<char32_t, std::pair<char32_t, char32_t>> parts;
    std::unordered_map<uint64_t, char32_t> composed;

    static uint64_t pair(char32_t first, char32_t second) { return uint64_t(first) << 32 | second; }

    Tables() {
        for (const auto& [first, last, kind] : unpacked<3>(kCombiningClasses))
            for (char32_t c = first; c <= last; c++) classes[c] = uint8_t(kind), may_change[c] = true;
        for (const auto& [c, first, second, comes_back] : unpacked<4>(kDecompositions)) {
            parts[c] = {first, second};
            if (comes_back)
                composed[pair(first, second)] = c, may_change[second] = true;
            else
                may_change[c] = true;
        }
        for (char32_t c = kVowels; c < kVowels + kNumVowels; c++) may_change[c] = true;
        for (char32_t c = kTrailing + 1; c < kTrailing + kNumTrailing; c++) may_change[c] = true;
    }

    void decompose(char32_t c, std::vector<char32_t>& to) const {
        if (among(c, kSyllables, kNumSyllables)) {
            const char32_t i = c - kSyllables, trailing = i % kNumTrailing;
            to.push_back(kLeading + i / (kNumVowels * kNumTrailing));
            to.push_back(kVowels + i / kNumTrailing % kNumVowels);
            if (trailing > 0) to.push_back(kTrailing + trailing);
            return;
        }
        const auto found = parts.find(c);
        if (found == parts.end()) return to.push_back(c);
        decompose(found->second.first, to);
        if (found->second.second > 0) decompose(found->second.second, to);
    }
    // The composition of two code points; 0: there is none.
    char32_t compose(char32_t first, char32_t second) const {
        if (among(first, kLeading, kNumLeading) && among(second, kVowels, kNumVowels))
            return kSyllables + ((first - kLeading) * kNumVowels + second - kVowels) * kNumTrailing;
        const bool is_open = among(first, kSyllables, kNumSyllables) && (first - kSyllables) % kNumTrailing == 0;
        if (is_open && among(second, kTrailing + 1, kNumTrailing - 1)) return first + second - kTrailing;
        const auto found = composed.find(pair(first, second));
        return found == composed.end() ? 0 : found->second;
    }
};

const Tables& tables() {
    static const Tables all;
    return all;
}

// Appends the NFC of `text`.
void append_nfc(std::string& to, const std::vector<char32_t>& text) {
    const Tables& t = tables();
    std::vector<char32_t> all;
    for (const char32_t c : text) t.decompose(c, all);
    const auto is_mark = [&](char32_t c) { return t.classes[c] > 0; };
    for (auto begin = all.begin(); begin != all.end();) {
        begin = std::find_if(begin, all.end(), is_mark);
        const auto end = std::find_if_not(begin, all.end(), is_mark);
        std::stable_sort(begin, end, [&](char32_t a, char32_t b) { return t.classes[a] < t.classes[b]; });
        begin = end;
    }
    // A mark is combined with the last starter, unless another starter or a mark of the same or a higher class is in
    // between.
    std::vector<char32_t> result;
    size_t starter = 0;
    bool has_starter = false;
    for (const char32_t c : all) {
        const int kind = t.classes[c], before = result.empty() ? 0 : t.classes[result.back()];
        const bool adjacent = has_starter && starter + 1 == result.size();
        if (has_starter && (adjacent || (before < kind && before > 0))) {
            if (const char32_t one = t.compose(result[starter], c); one > 0) {
                result[starter] = one;
                continue;
            }
        }
        if (kind == 0) starter = result.size(), has_starter = true;
        result.push_back(c);
    }
    for (const char32_t c : result) to += utf8(c);
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
    // U+0300 is the first code point that may change; its first byte is 0xCC.
    const auto is_far = [](char c) { return static_cast<unsigned char>(c) >= 0xCC; };
    const auto first = std::find_if(text.begin(), text.end(), is_far);
    for (size_t at = size_t(first - text.begin()); at < text.size();) {
        const CodePoint c = code_point_at(text, at);
        if (c.bytes > 0 && tables().may_change[c.value]) return false;
        at += std::max<size_t>(c.bytes, 1);
    }
    return true;
}

std::string to_nfc(std::string_view text) {
    std::string result;
    std::vector<char32_t> run;
    const auto end_run = [&] {
        append_nfc(result, run);
        run.clear();
    };
    for (size_t at = 0; at < text.size();) {
        const CodePoint c = code_point_at(text, at);
        if (c.bytes == 0) {
            end_run();
            result += text[at++];
            continue;
        }
        run.push_back(c.value);
        at += c.bytes;
    }
    end_run();
    return result;
}

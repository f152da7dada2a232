// The names of the patterns, and the classes of all code points.
#include "llmc/data/split.h"
#include <iterator>
#include <vector>
#include "llmc/base/check.h"          // require
#include "llmc/data/unicode_table.h"  // unpacked, kLetters, kNumbers, kMarks, kUppercase, ...

constexpr const char* kNames[] = {"gpt2", "gpt4", "llama3", "nanochat", "qwen2", "smollm", "o200k"};  // as SplitPattern
static_assert(std::size(kNames) == size_t(SplitPattern::o200k) + 1);

const char* name_of(SplitPattern pattern) { return kNames[size_t(pattern)]; }

SplitPattern split_pattern(const std::string& name) {
    std::string names;
    for (size_t i = 0; i < std::size(kNames); i++) {
        if (name == kNames[i]) return SplitPattern(i);
        names += (i == 0 ? "" : ", ") + std::string(kNames[i]);
    }
    require(false, "the split pattern '%s' is not known: expected one of %s", name.c_str(), names.c_str());
    return {};
}

const CharClass* char_classes() {
    static const std::vector<CharClass> classes = [] {
        std::vector<CharClass> table(kCodePoints, CharClass::other);
        const auto fill = [&](char32_t first, char32_t last, CharClass kind) {
            for (char32_t c = first; c <= last; c++) table[c] = kind;
        };
        for (const auto& [first, last] : unpacked<2>(kLetters)) fill(first, last, CharClass::letter);
        for (const auto& [first, last] : unpacked<2>(kNumbers)) fill(first, last, CharClass::number);
        // Unicode's property White_Space, which has long been unchanged.
        fill('\t', '\r', CharClass::space);
        fill(0x2000, 0x200A, CharClass::space);
        for (const char32_t c : {0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000})
            table[c] = CharClass::space;
        return table;
    }();
    return classes.data();
}

const uint8_t* case_sets() {
    static const std::vector<uint8_t> sets = [] {
        std::vector<uint8_t> table(kCodePoints, kNoWord);
        const auto fill = [&](std::string_view ranges, uint8_t value) {
            for (const auto& [first, last] : unpacked<2>(ranges))
                for (char32_t c = first; c <= last; c++) table[c] = value;
        };
        fill(kLetters, kCaseless), fill(kMarks, kCaseless);
        fill(kUppercase, kUpper), fill(kLowercase, kLower);
        return table;
    }();
    return sets.data();
}

size_t cut_between_pieces(std::string_view text, size_t at) {
    const auto is_word = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    };
    if (at == 0) return 0;
    for (; at < text.size(); at++)
        if ((text[at] == ' ' || text[at] == '\n') && is_word(text[at - 1])) return at;
    return text.size();
}

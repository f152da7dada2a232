/*
How text is cut into pieces before its bytes are merged: no token crosses from one piece into the next. Each pattern is
a regular expression, matched here by hand (a regex engine is several times slower), always from where the last match
ended; the first alternative that matches counts. L letters, N numbers, \s white space: those of Unicode
(llmc/data/unicode_table.h).

  gpt2      '(?:[sdmt]|ll|ve|re)| ?L+| ?N+| ?[^\sLN]+|\s+(?!\S)|\s+                 Radford et al., 2019, encoder.py
  gpt4      '(?i:[sdmt]|ll|ve|re)|[^\r\nLN]?L+|N{1,3}| ?[^\sLN]+[\r\n]*|\s+$|\s*[\r\n]|\s+(?!\S)|\s+
            tiktoken's cl100k_base; $ is the end of the text
  llama3    gpt4 without \s+$: Llama 3, and GPT-4 in a tokenizer.json
  nanochat  llama3 with N{1,2}

Bytes that are not UTF-8 count as one symbol each that is neither letter, number nor space.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include "llmc/data/utf8.h"  // code_point_at

enum class SplitPattern { gpt2, gpt4, llama3, nanochat };

inline constexpr SplitPattern kSplitPatterns[] = {SplitPattern::gpt2, SplitPattern::gpt4, SplitPattern::llama3,
                                                  SplitPattern::nanochat};

const char* name_of(SplitPattern pattern);

// An error that lists the names, if it is none of them.
SplitPattern split_pattern(const std::string& name);

enum class CharClass : uint8_t { other, letter, number, space };

// The class of every code point. Made once, at the first call.
const CharClass* char_classes();

class Splitter {
public:
    Splitter(std::string_view text) : text_(text), classes_(char_classes()) {}

    // Where the piece that starts at `at` ends.
    template <SplitPattern pattern>
    size_t end_of_piece(size_t at) const {
        constexpr bool gpt2 = pattern == SplitPattern::gpt2;
        if (text_[at] == '\'')
            if (const size_t bytes = contraction_bytes<!gpt2>(at)) return at + bytes;
        const Char first = char_at(at);
        size_t end = at + first.bytes;
        const Char second = end < text_.size() ? char_at(end) : Char{CharClass::space, 0};
        if constexpr (gpt2) {
            const bool with_space = text_[at] == ' ' && second.kind != CharClass::space;
            if (with_space) return end_of_run(second.kind, end + second.bytes);
            if (first.kind != CharClass::space) return end_of_run(first.kind, end);
        } else {
            if (first.kind == CharClass::letter) return end_of_run(CharClass::letter, end);
            if (first.kind == CharClass::number) return end_of_numbers(end, pattern == SplitPattern::nanochat ? 1 : 2);
            if (second.kind == CharClass::letter && !is_newline(at))
                return end_of_run(CharClass::letter, end + second.bytes);
            const bool with_space = text_[at] == ' ' && second.kind == CharClass::other;
            if (with_space || first.kind == CharClass::other) {
                end = end_of_run(CharClass::other, end);
                while (end < text_.size() && is_newline(end)) end++;
                return end;
            }
        }
        return end_of_space<pattern>(at);
    }

private:
    struct Char {
        CharClass kind;
        uint8_t bytes;
    };
    Char char_at(size_t at) const {
        const unsigned char lead = static_cast<unsigned char>(text_[at]);
        if (lead < 0x80) return {classes_[lead], 1};
        const CodePoint c = code_point_at(text_, at);
        return c.bytes == 0 ? Char{CharClass::other, 1} : Char{classes_[c.value], uint8_t(c.bytes)};
    }
    bool is_newline(size_t at) const { return text_[at] == '\n' || text_[at] == '\r'; }

    // What follows the apostrophe at `at`, if it is one of the patterns' endings of words.
    template <bool any_case>
    size_t contraction_bytes(size_t at) const {
        const auto letter = [&](size_t i) {
            const char c = i < text_.size() ? text_[i] : '\0';
            return any_case && c >= 'A' && c <= 'Z' ? char(c + 32) : c;
        };
        const char a = letter(at + 1), b = letter(at + 2);
        if (a == 's' || a == 'd' || a == 'm' || a == 't') return 2;
        if ((a == 'l' && b == 'l') || (a == 'v' && b == 'e') || (a == 'r' && b == 'e')) return 3;
        // The long s, U+017F, is an s of another case.
        return any_case && text_.substr(at + 1, 2) == "\xc5\xbf" ? 3 : 0;
    }
    size_t end_of_run(CharClass kind, size_t at) const {
        while (at < text_.size()) {
            const Char c = char_at(at);
            if (c.kind != kind) break;
            at += c.bytes;
        }
        return at;
    }
    size_t end_of_numbers(size_t at, int at_most) const {
        for (; at_most > 0 && at < text_.size(); at_most--) {
            const Char c = char_at(at);
            if (c.kind != CharClass::number) break;
            at += c.bytes;
        }
        return at;
    }
    // Of white space that something follows, the last symbol is left over for what follows.
    template <SplitPattern pattern>
    size_t end_of_space(size_t at) const {
        size_t end = at, last = at, after_newline = at;
        while (end < text_.size()) {
            const Char c = char_at(end);
            if (c.kind != CharClass::space) break;
            last = end;
            end += c.bytes;
            if (is_newline(last)) after_newline = end;
        }
        if (pattern == SplitPattern::gpt4 && end == text_.size()) return end;
        if (pattern != SplitPattern::gpt2 && after_newline > at) return after_newline;
        return end == text_.size() || last == at ? end : last;
    }

    std::string_view text_;
    const CharClass* classes_;
};

// Calls f(piece) for each piece of the text in turn.
template <SplitPattern pattern, class F>
void for_each_piece(std::string_view text, F f) {
    const Splitter splitter(text);
    for (size_t at = 0; at < text.size();) {
        const size_t end = splitter.end_of_piece<pattern>(at);
        f(text.substr(at, end - at));
        at = end;
    }
}

template <class F>
void for_each_piece(SplitPattern pattern, std::string_view text, F f) {
    switch (pattern) {
        case SplitPattern::gpt2:
            return for_each_piece<SplitPattern::gpt2>(text, f);
        case SplitPattern::gpt4:
            return for_each_piece<SplitPattern::gpt4>(text, f);
        case SplitPattern::llama3:
            return for_each_piece<SplitPattern::llama3>(text, f);
        case SplitPattern::nanochat:
            return for_each_piece<SplitPattern::nanochat>(text, f);
    }
}

// The first place from `at` on where every pattern ends a piece, whatever else there is: after an ASCII letter or
// digit, before an ASCII space or newline. The end of the text if there is none.
size_t cut_between_pieces(std::string_view text, size_t at);

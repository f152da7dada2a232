/*
How text is split into pieces before bytes are merged: no token spans two pieces. Each pattern is a regular expression,
matched by handwritten code (a regex engine is several times slower). A match begins where the last one ended, and the
first alternative that matches is taken. L letters, N numbers, \s white space, all as defined by Unicode
(llmc/data/unicode_table.h).

  gpt2      '(?:[sdmt]|ll|ve|re)| ?L+| ?N+| ?[^\sLN]+|\s+(?!\S)|\s+                 Radford et al., 2019, encoder.py
  gpt4      '(?i:[sdmt]|ll|ve|re)|[^\r\nLN]?L+|N{1,3}| ?[^\sLN]+[\r\n]*|\s+$|\s*[\r\n]|\s+(?!\S)|\s+
            tiktoken's cl100k_base; $ is the end of the text
  llama3    gpt4 without \s+$: Llama 3, and GPT-4 as a tokenizer.json
  nanochat  llama3 with N{1,2}
  qwen2     llama3 with N
  smollm    each N alone, and the text between them as with gpt2: `tokenizers`' Digits, as in SmolLM and StarCoder
  o200k     [^\r\nLN]?[UB]*[WB]+(?i:'[sdmt]|'ll|'ve|'re)?|[^\r\nLN]?[UB]+[WB]*(?i:...)?|N{1,3}| ?[^\sLN]+[\r\n/]*|
            \s*[\r\n]+|\s+(?!\S)|\s+       tiktoken's o200k_base: U upper and title case, W lower case, B other letters
            and marks; a word ends where lower case is followed by upper case

Each byte that is not part of valid UTF-8 is a symbol that is neither letter, number nor space.
*/
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include "llmc/data/utf8.h"  // code_point_at

enum class SplitPattern { gpt2, gpt4, llama3, nanochat, qwen2, smollm, o200k };

// The pattern's name: "gpt2", "gpt4", ...
const char* name_of(SplitPattern pattern);

// The pattern with this name. Throws an Error that lists the names if there is none.
SplitPattern split_pattern(const std::string& name);

enum class CharClass : uint8_t { other, letter, number, space };

// The class of every code point. The table is made at the first call.
const CharClass* char_classes();

// For o200k: the sets [UB] and [WB] to which a code point belongs; caseless letters and marks belong to both.
enum CaseSets : uint8_t { kNoWord = 0, kUpper = 1, kLower = 2, kCaseless = kUpper | kLower };
const uint8_t* case_sets();

class Splitter {
public:
    Splitter(std::string_view text) : text_(text), classes_(char_classes()), cases_(case_sets()) {}

    // The end of the piece that begins at `at`.
    template <SplitPattern pattern>
    size_t end_of_piece(size_t at) const {
        constexpr bool gpt2 = pattern == SplitPattern::gpt2;
        if constexpr (pattern == SplitPattern::o200k) {
            if (const size_t end = end_of_cased_word(at); end > at) return end;
        } else if (text_[at] == '\'')
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
            if (first.kind == CharClass::number) return end_of_numbers(end, kMoreNumbers<pattern>);
            if (second.kind == CharClass::letter && !is_newline(at))
                return end_of_run(CharClass::letter, end + second.bytes);
            const bool with_space = text_[at] == ' ' && second.kind == CharClass::other;
            if (with_space || first.kind == CharClass::other) {
                end = end_of_run(CharClass::other, end);
                constexpr bool slashes = pattern == SplitPattern::o200k;
                while (end < text_.size() && (is_newline(end) || (slashes && text_[end] == '/'))) end++;
                return end;
            }
        }
        return end_of_space<pattern>(at);
    }

    // The beginning and the end of the first number from `at` on; both are the end of the text if there is none.
    std::pair<size_t, size_t> next_number(size_t at) const {
        while (at < text_.size()) {
            const Char c = char_at(at);
            if (c.kind == CharClass::number || is_newer_number(at, c.bytes)) return {at, at + c.bytes};
            at += c.bytes;
        }
        return {at, at};
    }

private:
    // The maximum number of further numbers in a piece after the first.
    template <SplitPattern pattern>
    static constexpr int kMoreNumbers = pattern == SplitPattern::qwen2      ? 0
                                        : pattern == SplitPattern::nanochat ? 1
                                                                            : 2;

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

    // The bytes of the contraction that begins with the apostrophe at `at`, such as 's; 0: there is none.
    template <bool any_case>
    size_t contraction_bytes(size_t at) const {
        const auto letter = [&](size_t i) {
            const char c = i < text_.size() ? text_[i] : '\0';
            return any_case && c >= 'A' && c <= 'Z' ? char(c + 32) : c;
        };
        const char a = letter(at + 1), b = letter(at + 2);
        if (a == 's' || a == 'd' || a == 'm' || a == 't') return 2;
        if ((a == 'l' && b == 'l') || (a == 'v' && b == 'e') || (a == 'r' && b == 'e')) return 3;
        // The long s, U+017F, equals s if case is ignored.
        return any_case && text_.substr(at + 1, 2) == "\xc5\xbf" ? 3 : 0;
    }
    // `tokenizers` finds digits by Rust's tables of Unicode 17, which added these.
    bool is_newer_number(size_t at, size_t bytes) const {
        if (bytes != 4) return false;
        const char32_t c = code_point_at(text_, at).value;
        return (c >= 0x11DE0 && c <= 0x11DE9) || (c >= 0x16FF4 && c <= 0x16FF6);
    }
    uint8_t case_at(size_t at) const {
        const CodePoint c = code_point_at(text_, at);
        return c.bytes == 0 ? uint8_t(kNoWord) : cases_[c.value];
    }
    // The end of the run of code points in `set` from `at` on. `last_caseless`: the last one in both sets.
    size_t end_of_case(uint8_t set, size_t at, std::pair<size_t, size_t>* last_caseless = nullptr) const {
        while (at < text_.size()) {
            const uint8_t sets = case_at(at);
            if (!(sets & set)) break;
            const size_t bytes = char_at(at).bytes;
            if (last_caseless && sets == kCaseless) *last_caseless = {at, at + bytes};
            at += bytes;
        }
        return at;
    }
    // Matches [UB]*[WB]+ or else [UB]+[WB]*, each with an optional leading symbol that is not a letter or number and an
    // optional contraction. Returns the end; `at`: no match.
    size_t end_of_cased_word(size_t at) const {
        const Char first = char_at(at);
        const bool may_lead = first.kind != CharClass::letter && first.kind != CharClass::number && !is_newline(at);
        const size_t starts[] = {at + (may_lead ? first.bytes : 0), at};
        size_t upper_ends[2];
        for (const int i : {0, 1}) {
            if (i == 1 && !may_lead) break;
            // The longest [UB]* that leaves a symbol for [WB]+: all of them if one follows, else up to the last B.
            std::pair<size_t, size_t> last_caseless = {0, 0};
            upper_ends[i] = end_of_case(kUpper, starts[i], &last_caseless);
            const size_t end = end_of_case(kLower, upper_ends[i]);
            if (end > upper_ends[i]) return with_ending(end);
            if (last_caseless.second > 0) return with_ending(last_caseless.second);
        }
        for (const int i : {0, 1}) {
            if (i == 1 && !may_lead) break;
            if (upper_ends[i] > starts[i]) return with_ending(upper_ends[i]);
        }
        return at;
    }
    size_t with_ending(size_t end) const {
        return end < text_.size() && text_[end] == '\'' ? end + contraction_bytes<true>(end) : end;
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
    // If text follows the white space, the last white-space symbol is left for the next piece.
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
    const uint8_t* cases_;
};

// Calls f(piece) for each piece of the text in order.
template <SplitPattern pattern, class F>
void for_each_piece(std::string_view text, F f) {
    const Splitter splitter(text);
    if constexpr (pattern == SplitPattern::smollm) {
        for (size_t at = 0; at < text.size();) {
            const auto [number, end] = splitter.next_number(at);
            for_each_piece<SplitPattern::gpt2>(text.substr(at, number - at), f);
            if (end > number) f(text.substr(number, end - number));
            at = end;
        }
        return;
    }
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
        case SplitPattern::qwen2:
            return for_each_piece<SplitPattern::qwen2>(text, f);
        case SplitPattern::smollm:
            return for_each_piece<SplitPattern::smollm>(text, f);
        case SplitPattern::o200k:
            return for_each_piece<SplitPattern::o200k>(text, f);
    }
}

// The first position from `at` on where every pattern ends a piece, whatever the rest of the text: after an ASCII
// letter or digit, before a space or line feed. The end of the text if there is none.
size_t cut_between_pieces(std::string_view text, size_t at);

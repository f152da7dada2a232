/*
Added tokens: those that a tokenizer.json lists as `added_tokens`, beside its BPE. They are found in text before it is
split, as `tokenizers` does: of several at the leftmost place the longest. One that is special (<|endoftext|>) is never
made from text: its spelling is passed over as a whole. Others (<think>, runs of spaces) become their ids, with the
white space before or after them if the file says so.

  AddedTokens tokens;  tokens.add({"<think>", 7, false}, "<think>");  tokens.prepare();
  tokens.split("a<think>b", f);          f("a", -1)  f("<think>", 7)  f("b", -1)
*/
#pragma once
#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

struct AddedToken {
    std::string text;
    int32_t id;
    bool special = true;
    bool normalized = false;              // found in the normalized text, where its own text is normalized, too
    bool lstrip = false, rstrip = false;  // takes the white space before or after it along
};

class AddedTokens {
public:
    // `spelled`: its text where it is searched. May be followed by more; prepare() comes last.
    void add(const AddedToken& token, std::string spelled);
    void prepare();

    // Calls f(part, id) for all parts of the text in order; id -1: text without these tokens.
    template <class F>
    void split(std::string_view text, F f) const {
        size_t begin = 0;
        for (size_t at = 0; finds_any_ && at < text.size();) {
            const Entry* found = longest_at(text, at);
            if (!found) {
                at++;
                continue;
            }
            size_t start = at, stop = at + found->text.size();
            at = stop;
            if (found->token.special) continue;
            if (found->token.lstrip) start = std::max(begin, begin_of_space(text, start));
            if (found->token.rstrip) stop = end_of_space(text, stop);
            if (begin < start) f(text.substr(begin, start - begin), int32_t(-1));
            f(text.substr(start, stop - start), found->token.id);
            begin = stop;
        }
        if (begin < text.size()) f(text.substr(begin), int32_t(-1));
    }

private:
    struct Entry {
        AddedToken token;
        std::string text;
    };
    static uint16_t pair_of(char first, char second) {
        return uint16_t(static_cast<unsigned char>(first) << 8 | static_cast<unsigned char>(second));
    }
    const Entry* longest_at(std::string_view text, size_t at) const {
        if (!begins_.test(pair_of(text[at], at + 1 < text.size() ? text[at + 1] : '\0'))) return nullptr;
        return longest_entry(text.substr(at));
    }
    const Entry* longest_entry(std::string_view rest) const;
    static size_t begin_of_space(std::string_view text, size_t at);
    static size_t end_of_space(std::string_view text, size_t at);

    std::vector<Entry> entries_;       // by first byte, of one byte the longest first
    std::array<size_t, 257> first_{};  // of each first byte, in entries_
    std::bitset<1 << 16> begins_;      // the first two bytes of any entry
    bool finds_any_ = false;           // whether one of them is not special
};

// See python_json.h.
#include "llmc/base/python_json.h"
#include <algorithm>

namespace {

// The length of the number at `at`; 0: there is none.
size_t number_at(std::string_view text, size_t at) {
    const size_t begin = at;
    const auto is = [&](std::string_view characters) {
        return at < text.size() && characters.find(text[at]) != std::string_view::npos;
    };
    const auto digits = [&] {
        const size_t first = at;
        while (is("0123456789")) at++;
        return at > first;
    };
    if (is("-")) at++;
    if (is("0"))
        at++;
    else if (!digits())
        return 0;
    size_t end = at;
    if (is(".") && (at++, digits())) end = at;
    at = end;
    if (is("eE")) {
        at++;
        if (is("+-")) at++;
        if (digits()) end = at;
    }
    return end - begin;
}

// The number of the escape \uXXXX at `at`; -1: there is none.
int escape_at(std::string_view text, size_t at) {
    if (text.substr(at, 2) != "\\u" || at + 6 > text.size()) return -1;
    int value = 0;
    for (const char c : text.substr(at + 2, 4)) {
        const int digit = c >= '0' && c <= '9'                 ? c - '0'
                          : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                               : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

}  // namespace

std::string from_python_json(std::string_view text) {
    std::string json(text);
    bool in_string = false;
    for (size_t at = 0; at < text.size();) {
        if (text[at] == '"') {
            in_string = !in_string;
            at++;
        } else if (in_string) {
            const int value = escape_at(text, at), next = escape_at(text, std::min(at + 6, text.size()));
            const bool high = value >= 0xD800 && value < 0xDC00, low = value >= 0xDC00 && value < 0xE000;
            const bool pair = high && next >= 0xDC00 && next < 0xE000;
            if ((high && !pair) || low) json.replace(at, 6, "\\ufffd");
            at += pair ? 12 : value >= 0 ? 6 : text[at] == '\\' ? 2 : 1;
        } else {
            size_t length = number_at(text, at);
            for (const std::string_view word : {"NaN", "Infinity", "-Infinity"})
                if (text.substr(at).starts_with(word)) length = word.size();
            if (length > 0) json.replace(at, length, "0" + std::string(length - 1, ' '));
            at += std::max<size_t>(length, 1);
        }
    }
    return json;
}

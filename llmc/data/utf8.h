/*
Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF (RFC 3629).

  for (size_t at = 0; at < text.size();) { const CodePoint c = code_point_at(text, at); ...; at += c.bytes; }
*/
#pragma once
#include <unistd.h>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

inline constexpr char32_t kCodePoints = 0x110000;

struct CodePoint {
    char32_t value;
    size_t bytes;  // 1 to 4; 0: not UTF-8
};

// The code point that begins at `at`, which must be below text.size(). bytes is 0 if none does.
inline CodePoint code_point_at(std::string_view text, size_t at) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return {lead, 1};
    const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || at + bytes > text.size()) return {0, 0};
    char32_t value = lead & (0xFF >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if ((byte(i) & 0xC0) != 0x80) return {0, 0};
        value = value << 6 | (byte(i) & 0x3F);
    }
    const bool overlong = (bytes == 3 && value < 0x800) || (bytes == 4 && value < 0x10000);
    const bool surrogate = value >= 0xD800 && value < 0xE000;
    if (overlong || surrogate || value >= kCodePoints) return {0, 0};
    return {value, bytes};
}

// The number of bytes (0 to 3) at the end of the text that begin a code point whose other bytes are missing.
inline size_t unfinished_bytes(std::string_view text) {
    for (size_t n = 1; n <= 3 && n <= text.size(); n++) {
        const unsigned char lead = static_cast<unsigned char>(text[text.size() - n]);
        if ((lead & 0xC0) == 0x80) continue;
        const size_t bytes = lead > 0xF4 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 1;
        return bytes > n ? n : 0;
    }
    return 0;
}

// Text for messages: control characters and bytes that are not UTF-8 become \xNN. Newlines and tabs stay.
inline std::string printable(std::string_view text) {
    std::string shown;
    for (size_t at = 0; at < text.size();) {
        const CodePoint c = code_point_at(text, at);
        const bool stays = c.bytes > 0 && (c.value == '\n' || c.value == '\t' || (c.value >= 0x20 && c.value < 0x7F) ||
                                           c.value >= 0xA0);
        const size_t bytes = stays ? c.bytes : 1;
        if (stays) {
            shown += text.substr(at, bytes);
        } else {
            const auto byte = static_cast<unsigned char>(text[at]);
            for (const char part : {'\\', 'x', "0123456789ABCDEF"[byte >> 4], "0123456789ABCDEF"[byte & 15]})
                shown += part;
        }
        at += bytes;
    }
    return shown;
}

// Replaces what is not UTF-8 with U+FFFD, one per maximal prefix of a code point, like Python's errors="replace".
inline std::string replace_invalid(std::string_view text) {
    std::string valid;
    for (size_t at = 0; at < text.size();) {
        size_t bytes = code_point_at(text, at).bytes;
        if (bytes > 0) {
            valid += text.substr(at, bytes);
        } else {
            const auto begins_one = [&](size_t n) {
                return at + n <= text.size() &&
                       code_point_at(std::string(text.substr(at, n)) + "\x80\x80", 0).bytes > n;
            };
            bytes = begins_one(3) ? 3 : begins_one(2) ? 2 : 1;
            valid += "\xEF\xBF\xBD";
        }
        at += bytes;
    }
    return valid;
}

// What a model wrote, in UTF-8. A terminal obeys control characters, so it gets their codes; files and pipes get them.
inline std::string generated_text(std::string_view text, std::FILE* stream) {
    const std::string valid = replace_invalid(text);
    return isatty(fileno(stream)) ? printable(valid) : valid;
}

// The encoding of one code point.
inline std::string utf8(char32_t c) {
    if (c < 0x80) return {char(c)};
    if (c < 0x800) return {char(0xC0 | c >> 6), char(0x80 | (c & 0x3F))};
    if (c < 0x10000) return {char(0xE0 | c >> 12), char(0x80 | (c >> 6 & 0x3F)), char(0x80 | (c & 0x3F))};
    return {char(0xF0 | c >> 18), char(0x80 | (c >> 12 & 0x3F)), char(0x80 | (c >> 6 & 0x3F)), char(0x80 | (c & 0x3F))};
}

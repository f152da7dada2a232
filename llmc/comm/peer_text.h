/*
What another process has written, made fit for a terminal: control bytes become spaces (a terminal obeys them), and of a
long text the beginning is enough.
*/
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>

inline constexpr size_t kMostPeerText = 4096;  // bytes

// Bytes from 128 on stay, since names of files may be UTF-8, but for U+0080 to U+009F: control characters as well.
inline std::string peer_text(std::string text) {
    text.resize(std::min(text.size(), kMostPeerText));
    for (size_t i = 0; i < text.size(); i++) {
        const auto byte = static_cast<unsigned char>(text[i]);
        const bool is_c1 = i > 0 && text[i - 1] == '\xc2' && byte >= 0x80 && byte < 0xa0;
        if (is_c1) text[i - 1] = ' ';
        if (is_c1 || byte < ' ' || byte == 0x7f) text[i] = ' ';
    }
    return text;
}

/*
Makes text from another process safe to print: control bytes, which a terminal would interpret, become spaces, and long
text is cut off.
*/
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>

inline constexpr size_t kMostPeerText = 4096;  // bytes

// Bytes >= 128 are kept, because file names may be UTF-8, except U+0080 to U+009F, which are control characters, too.
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

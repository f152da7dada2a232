// See terminal.h.
#include "llmc/base/terminal.h"
#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>

static std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

// The first of the locale variables that is set counts.
static bool locale_is_utf8() {
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
        if (const std::string value = variable(name); !value.empty())
            return strcasestr(value.c_str(), "utf-8") || strcasestr(value.c_str(), "utf8");
    return false;
}

// Open MPI gives each process a pseudo-terminal, wherever its own output goes.
static bool is_under_mpirun() { return std::getenv("OMPI_COMM_WORLD_RANK") || std::getenv("PMIX_RANK"); }

Terminal terminal_of(FILE* stream) {
    const std::string kind = variable("TERM");
    if (is_under_mpirun() || !isatty(fileno(stream))) return {};
    winsize size = {};
    const bool has_size = ioctl(fileno(stream), TIOCGWINSZ, &size) == 0;
    const bool has_color = !kind.empty() && kind != "dumb" && variable("NO_COLOR").empty();
    return {.color = has_color, .utf8 = has_color && locale_is_utf8(), .columns = has_size ? size.ws_col : 0};
}

std::string fitted_lines(const Terminal& terminal, const std::string& text) {
    constexpr size_t kIndent = 4;
    const auto width = size_t(std::max(0, terminal.columns));
    if (width < 4 * kIndent) return text;
    std::string all;
    for (size_t begin = 0; begin < text.size();) {
        const size_t newline = std::min(text.find('\n', begin), text.size());
        std::string rest = text.substr(begin, newline - begin);
        while (rest.size() > width) {
            const size_t space = rest.rfind(' ', width);
            if (space == std::string::npos || space <= kIndent) break;  // a single long word
            all += rest.substr(0, space) + "\n";
            rest = std::string(kIndent, ' ') + rest.substr(space + 1);
        }
        all += rest + (newline < text.size() ? "\n" : "");
        begin = newline + 1;
    }
    return all;
}

static constexpr int kCells = 12;

static std::string bar(double done, bool utf8) {
    const int full = std::clamp(int(done * kCells), 0, kCells);
    std::string text = "\033[36m";
    for (int cell = 0; cell < kCells; cell++) {
        if (cell == full) text += "\033[2m";
        text += utf8 ? "━" : cell < full ? "=" : "-";
    }
    return text + "\033[0m";
}

std::string colored_line(const Terminal& terminal, const std::string& line, double done) {
    if (!terminal.color) return line;
    const size_t after_word = line.find(' '), after_step = line.find(" | ");
    if (after_step == std::string::npos || after_word > after_step) return line;
    // A step's first word is cyan, like its bar; that of a validation is green.
    const bool is_step = line.compare(0, after_word, "step") == 0;
    std::string text = (is_step ? "\033[36m" : "\033[1;32m") + line.substr(0, after_word) + "\033[0m";
    text += line.substr(after_word, after_step - after_word);
    const bool has_room = terminal.columns == 0 || line.size() + 1 + kCells <= size_t(terminal.columns);
    if (is_step && has_room) text += " " + bar(done, terminal.utf8);
    const size_t loss = after_step + 3, after_loss = std::min(line.find(" | ", loss), line.size());
    return text + " | \033[1m" + line.substr(loss, after_loss - loss) + "\033[0m" + line.substr(after_loss);
}

// Bytes >= 128 are kept, because file names may be UTF-8, except U+0080 to U+009F, which are control characters, too.
std::string peer_text(std::string text) {
    text.resize(std::min(text.size(), kMostPeerText));
    for (size_t i = 0; i < text.size(); i++) {
        const auto byte = static_cast<unsigned char>(text[i]);
        const bool is_c1 = i > 0 && text[i - 1] == '\xc2' && byte >= 0x80 && byte < 0xa0;
        if (is_c1) text[i - 1] = ' ';
        if (is_c1 || byte < ' ' || byte == 0x7f) text[i] = ' ';
    }
    return text;
}

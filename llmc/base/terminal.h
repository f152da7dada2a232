/*
Color, a progress bar and the width of lines on a terminal. Output to a file or a pipe stays plain text. And text from
another process, made safe to print.
*/
#pragma once
#include <cstddef>
#include <cstdio>
#include <string>

struct Terminal {
    bool color = false;  // escape sequences may be printed
    bool utf8 = false;   // line-drawing characters may be printed
    int columns = 0;     // of the window; 0: not known
};

// The properties of the terminal that this stream writes to; all unset if it is none. No color unless TERM names one
// with color, and NO_COLOR (no-color.org) is unset or empty.
Terminal terminal_of(FILE* stream);

// Colors the line of a step or a validation, "step   120/2000 | loss 3.2841 | ...": highlights its first word and the
// loss, and adds a progress bar (`done`: from 0 to 1) after the step if the window is wide enough. Unchanged if the
// terminal has no color.
std::string colored_line(const Terminal& terminal, const std::string& line, double done);

// Breaks lines that are wider than the terminal at spaces; the rest of a line is indented.
std::string fitted_lines(const Terminal& terminal, const std::string& text);

// Text of another process, safe to print: control bytes, which a terminal would interpret, become spaces, and long text
// is cut off.
inline constexpr size_t kMostPeerText = 4096;  // bytes
std::string peer_text(std::string text);

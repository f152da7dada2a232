/*
Color and a progress bar for lines on a terminal. Output to a file or a pipe stays plain text.
*/
#pragma once
#include <cstdio>
#include <string>

struct Terminal {
    bool color = false;  // escape sequences may be printed
    bool utf8 = false;   // so may line-drawing characters
    int columns = 0;     // of the window; 0: not known
};

// What this stream goes to. No color unless it is a terminal, TERM names one that has it, and NO_COLOR (no-color.org)
// is unset or empty.
Terminal terminal_of(FILE* stream);

// The line of a step or of a validation, "step   120/2000 | loss 3.2841 | ...": its first word and the loss stand out,
// and after the step is a bar of the part that is done, where the window has room for it. Unchanged without color.
std::string colored_line(const Terminal& terminal, const std::string& line, double done);

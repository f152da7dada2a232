// See progress.h.
#include "llmc/data/progress.h"
#include <unistd.h>
#include <cstdio>
#include "llmc/base/check.h"        // format
#include "llmc/base/number_text.h"  // count_text, duration_text

std::string progress_line(const std::string& verb, const ProgressState& now, const ProgressState& before,
                          double seconds) {
    std::string line = verb + format("  %.1f MB of text | %.1f%%", double(now.text_bytes) / 1e6, 100 * now.fraction);
    const double done = now.fraction - before.fraction;
    if (seconds > 0) line += format(" | %.1f MB/s", double(now.text_bytes - before.text_bytes) / 1e6 / seconds);
    if (now.tokens > 0) line += " | " + count_text(double(now.tokens)) + " tokens";
    if (done > 0) line += " | ETA " + duration_text(seconds * (1 - now.fraction) / done);
    return line;
}

Progress::Progress(const char* verb) : verb_(verb), terminal_(isatty(STDERR_FILENO)), start_(Clock::now()) {
    next_ = start_ + (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10'000));
}

Progress::~Progress() {
    if (terminal_ && shown_) std::fputs("\r\033[K", stderr);
}

void Progress::restart(const ProgressState& now) {
    before_ = now;
    start_ = Clock::now();
}

void Progress::show(const ProgressState& now) {
    const Clock::time_point time = Clock::now();
    if (time < next_) return;
    const double seconds = std::chrono::duration<double>(time - start_).count();
    const std::string line = progress_line(verb_, now, before_, seconds);
    std::fprintf(stderr, terminal_ ? "\r%s\033[K" : "%s\n", line.c_str());
    shown_ = true;
    next_ = time + (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(60'000));
}

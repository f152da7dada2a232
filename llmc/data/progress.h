/*
The progress of a long job over text, on stderr. On a terminal one line is rewritten five times per second. Elsewhere a
line is printed after ten seconds and then every minute, so a short job prints nothing and a log stays short.

  tokenizing  1234.5 MB of text | 41.2% | 38.1 MB/s | 289M tokens | ETA 0:45
*/
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

struct ProgressState {
    double fraction = 0;  // of the input
    int64_t text_bytes = 0, tokens = 0;
};

// Formats the line. `before`: the state `seconds` ago; the speed and the remaining time are computed from it.
std::string progress_line(const std::string& verb, const ProgressState& now, const ProgressState& before,
                          double seconds);

class Progress {
public:
    explicit Progress(const char* verb);
    ~Progress();  // clears the terminal's line
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void show(const ProgressState& now);  // call as often as you like
    // Excludes all progress so far from the speed, because an earlier run did that work.
    void restart(const ProgressState& now);

private:
    using Clock = std::chrono::steady_clock;
    std::string verb_;
    bool terminal_, shown_ = false;
    ProgressState before_;
    Clock::time_point start_, next_;
};

/*
Errors say what was expected, what was found and what to do. There are two kinds:

  require(steps > 0, "--steps %d: expected at least 1", steps)   the user's mistake: one line, exit code 2
  ensure(offset % 64 == 0)                                       ours: the expression with file and line, exit code 1

Both throw Error, as does code that builds its message in steps. main() prints `error: ...` and returns the exit code.
Other code catches an Error only to add context, to hand it to another thread or rank, or to fall back. Neither macro
may be used inside an OpenMP region.
*/
#pragma once
#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

// The exit codes of the program. doc/flags.md repeats this table.
enum ExitCode {
    kExitOk = 0,        // finished, or stopped by --time-budget, SIGTERM or Ctrl-C after a checkpoint
    kExitInternal = 1,  // a bug in the program
    kExitUsage = 2,     // bad flags, bad input files, no space, a missing device or library
    kExitRank = 3,      // another rank died or did not answer in time
    kExitDiverged = 4,  // the loss or the gradients stopped being finite
    kExitReplicas = 5,  // the ranks' weights are no longer the same
};

struct Error : std::runtime_error {
    int exit_code;
    Error(int exit_code, const std::string& what) : std::runtime_error(what), exit_code(exit_code) {}
};

__attribute__((format(printf, 1, 2))) inline std::string format(const char* fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    std::string text(size_t(std::vsnprintf(nullptr, 0, fmt, args)), '\0');
    std::vsnprintf(text.data(), text.size() + 1, fmt, again);
    va_end(again);
    va_end(args);
    return text;
}

#define require(cond, ...)                                \
    do {                                                  \
        if (!(cond)) [[unlikely]]                         \
            throw Error(kExitUsage, format(__VA_ARGS__)); \
    } while (0)

#define ensure(cond)                                                                                           \
    do {                                                                                                       \
        if (!(cond)) [[unlikely]]                                                                              \
            throw Error(kExitInternal,                                                                         \
                        format("internal: %s is false (%s:%d); please report it", #cond, __FILE__, __LINE__)); \
    } while (0)

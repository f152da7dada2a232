/*
Signals that ask a run to end early: SIGTERM (a scheduler), SIGINT (Ctrl-C), SIGHUP (the terminal is closed; not under
nohup), SIGUSR1 (a scheduler through mpirun or srun, which forward it to all ranks without ending them). The run
finishes the current step, or leaves a validation, and saves a checkpoint. A second signal ends the program at once,
unless it comes with the first. Also here: SIGPIPE, which must not end a run, and SIGXFSZ.
*/
#pragma once
#include <unistd.h>
#include <csignal>
#include <ctime>

namespace stop_detail {
inline volatile std::sig_atomic_t received = 0;
inline timespec first = {};
constexpr double kOneRequestS = 0.2;  // coreutils' timeout and some launchers send each signal twice

inline void receive(int number) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!received) {
        received = number;
        first = now;
    } else if (double(now.tv_sec - first.tv_sec) + double(now.tv_nsec - first.tv_nsec) * 1e-9 > kOneRequestS) {
        std::signal(number, SIG_DFL);
        raise(number);                           // once this handler has returned
        if (getpid() == 1) _exit(128 + number);  // of a container: the kernel does not let a signal end it
    }
}
}  // namespace stop_detail

inline void catch_stop_signals() {
    struct sigaction action = {};
    action.sa_handler = stop_detail::receive;
    sigfillset(&action.sa_mask);
    sigaction(SIGTERM, &action, nullptr);
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGUSR1, &action, nullptr);
    struct sigaction before = {};
    if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

// A file above the shell's limit (ulimit -f) must not kill the program silently: the write fails and names the file.
inline void outlive_file_limits() { std::signal(SIGXFSZ, SIG_IGN); }

// A training run continues when the reader of its standard output is gone (`| head -1`, a tee that died): log.jsonl is
// the record. This takes a handler that does nothing, not SIG_IGN, which child processes would inherit.
inline void outlive_broken_pipes() {
    struct sigaction action = {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;
    sigaction(SIGPIPE, &action, nullptr);
}

// The signal that arrived: "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"; null: none.
inline const char* stop_signal() {
    const int number = stop_detail::received;
    return number == SIGTERM   ? "SIGTERM"
           : number == SIGINT  ? "SIGINT"
           : number == SIGHUP  ? "SIGHUP"
           : number == SIGUSR1 ? "SIGUSR1"
                               : nullptr;
}

// See child_process.h.
#include "llmc/run/child_process.h"
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include "llmc/base/check.h"        // require, format, kExitRank
#include "llmc/base/host_limits.h"  // use_given_cores

sigset_t watched_signals() {
    sigset_t all;
    sigemptyset(&all);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
        struct sigaction before = {};
        sigaction(signal, nullptr, &before);
        if (before.sa_handler != SIG_IGN) sigaddset(&all, signal);
    }
    for (const int signal : {SIGCHLD, SIGTSTP, SIGCONT}) sigaddset(&all, signal);
    return all;
}

pid_t start_child(char* const* arguments, const sigset_t& mask, const char* flag,
                  const std::function<void()>& prepare) {
    const pid_t parent = getpid();
    std::fflush(nullptr);
    const pid_t child = fork();
    require(child >= 0, "%s: no process can be started: %s", flag, std::strerror(errno));
    if (child > 0) return child;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(kExitRank);  // the parent died before prctl()
    signal(SIGTTOU, SIG_IGN);                   // the child may write to the terminal from the background
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    use_given_cores();
    prepare();
    execv("/proc/self/exe", arguments);
    std::fprintf(stderr, "error: %s: the program cannot be started again: %s\n", flag, std::strerror(errno));
    _exit(kExitUsage);
}

bool forward(int signal, const std::vector<pid_t>& children) {
    for (const pid_t child : children) kill(child, signal == SIGTSTP ? SIGSTOP : signal);
    if (signal == SIGTSTP) raise(SIGSTOP);
    return signal != SIGTSTP && signal != SIGCONT;
}

std::string ending_of(int status) {
    return WIFSIGNALED(status) ? format("was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)))
                               : format("ended with exit code %d", WEXITSTATUS(status));
}

int end_as(int status) {
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    // By the same signal, but without a core dump.
    const int signal = WTERMSIG(status);
    std::fflush(nullptr);
    prctl(PR_SET_DUMPABLE, 0);
    ::signal(signal, SIG_DFL);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    raise(signal);
    sigprocmask(SIG_UNBLOCK, &one, nullptr);
    return 128 + signal;
}

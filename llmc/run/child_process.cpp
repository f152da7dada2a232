// See child_process.h.
#include "llmc/run/child_process.h"
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include "llmc/base/check.h"         // require, format, kExitRank
#include "llmc/platform/platform.h"  // end_with_parent, execute_again, use_given_cores

extern char** environ;

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
    end_with_parent();
    if (getppid() != parent) _exit(kExitRank);  // the parent died before that
    signal(SIGTTOU, SIG_IGN);                   // the child may write to the terminal from the background
    sigprocmask(SIG_SETMASK, &mask, nullptr);
    use_given_cores();
    prepare();
    execute_again(arguments);
    std::fprintf(stderr, "error: %s: the program cannot be started again: %s\n", flag, std::strerror(errno));
    _exit(kExitUsage);
}

int start_beside(pid_t& pid, const std::vector<std::string>& words, int input,
                 const std::vector<std::string>& variables) {
    std::vector<const char*> arguments, environment;
    for (const std::string& word : words) arguments.push_back(word.c_str());
    // The first of two variables of a name counts.
    for (const std::string& variable : variables) environment.push_back(variable.c_str());
    for (char** variable = environ; *variable; variable++) environment.push_back(*variable);
    arguments.push_back(nullptr), environment.push_back(nullptr);

    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (input >= 0) posix_spawn_file_actions_adddup2(&files, input, 0);
    // If nobody reads stderr any more, what a command prints must not end it.
    pollfd stderr_now = {2, 0, 0};
    if (poll(&stderr_now, 1, 0) > 0) posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, 2, 1);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none, all;
    sigemptyset(&none), sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    const int error = posix_spawnp(&pid, arguments[0], &files, &attributes, const_cast<char**>(arguments.data()),
                                   const_cast<char**>(environment.data()));
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

std::string why_not_run(const std::string& command, const std::vector<std::string>& variables, double timeout_s,
                        const std::function<bool()>& is_over) {
    constexpr double kToEndS = 2;
    using Clock = std::chrono::steady_clock;
    pid_t pid = -1;
    if (const int error = start_beside(pid, {"sh", "-c", command}, -1, variables))
        return std::string("cannot be started: ") + std::strerror(error);
    // Whether it ends within that time; it remains a zombie, so that its number stays that of its group.
    const auto ends = [&](double seconds, const std::function<bool()>& gives_up) {
        const auto limit = Clock::now() + std::chrono::duration<double>(seconds);
        for (siginfo_t info = {};; usleep(20000)) {
            if (waitid(P_PID, id_t(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0) return true;
            if (Clock::now() > limit || gives_up()) return false;
        }
    };
    const bool ended = ends(timeout_s, is_over);
    if (!ended) {
        kill(-pid, SIGTERM);
        ends(kToEndS, [] { return false; });
        kill(-pid, SIGKILL);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (!ended) return is_over() ? "was stopped" : format("took longer than %g s and was stopped", timeout_s);
    return status == 0 ? "" : ending_of(status);
}

bool forward(int signal, const std::vector<pid_t>& children) {
    for (const pid_t child : children) kill(child, signal);
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
    disable_core_dumps();
    ::signal(signal, SIG_DFL);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    raise(signal);
    sigprocmask(SIG_UNBLOCK, &one, nullptr);
    return 128 + signal;
}

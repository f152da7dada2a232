// See log_follower.h.
#include "llmc/run/log_follower.h"
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include "llmc/base/script.h"  // find_script

extern char** environ;

namespace {

constexpr int kPatienceS = 60;

void warn(const std::string& log_to, const std::string& what) {
    std::fprintf(stderr, "warning: --log-to %s: %s; training goes on without\n", log_to.c_str(), what.c_str());
}

}  // namespace

LogFollower::LogFollower(const std::string& log_to, const std::string& out_dir) {
    if (log_to == "none") return;
    const std::string name = "scripts/log_to.py", script = find_script(name);
    int ends[2];
    if (script.empty() || pipe2(ends, O_CLOEXEC) != 0) {
        warn(log_to,
             script.empty() ? name + " is neither beside this program nor installed with it" : std::strerror(errno));
        return;
    }

    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, ends[0], 0);
    posix_spawn_file_actions_adddup2(&files, 2, 1);  // its stdout goes to stderr: stdout is the run's
    // Its own process group, so that Ctrl-C does not reach it, and default signal handling.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none, all;
    sigemptyset(&none), sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    const char* const words[] = {"python3", "-B", script.c_str(), log_to.c_str(), out_dir.c_str(), "--until-stdin-ends",
                                 nullptr};
    const int error = posix_spawnp(&pid_, words[0], &files, &attributes, const_cast<char**>(words), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    close(ends[0]);
    pipe_ = ends[1];
    if (error == 0) return;
    pid_ = -1;
    warn(log_to, std::string("cannot start python3: ") + std::strerror(error));
}

LogFollower::~LogFollower() {
    if (pipe_ >= 0) close(pipe_);
    if (pid_ < 0) return;
    for (int tenths = 0; tenths < 10 * kPatienceS; tenths++) {
        if (waitpid(pid_, nullptr, WNOHANG) != 0) return;
        usleep(100000);
    }
    std::fprintf(stderr, "warning: process %d has not sent all of the log after %d s, and is left to itself\n",
                 int(pid_), kPatienceS);
}

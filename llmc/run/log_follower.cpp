// See log_follower.h.
#include "llmc/run/log_follower.h"
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include "llmc/base/script.h"        // find_script
#include "llmc/platform/sockets.h"   // new_pipe
#include "llmc/run/child_process.h"  // start_beside

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
    if (script.empty() || new_pipe(ends) != 0) {
        warn(log_to,
             script.empty() ? name + " is neither beside this program nor installed with it" : std::strerror(errno));
        return;
    }

    const int error =
        start_beside(pid_, {"python3", "-B", script, "--until-stdin-ends", "--", log_to, out_dir}, ends[0]);
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

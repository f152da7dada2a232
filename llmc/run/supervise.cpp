// See supervise.h.
#include "llmc/run/supervise.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include "llmc/base/check.h"          // require, format, kExitRank
#include "llmc/comm/launch/launch.h"  // detect_launch
#include "llmc/platform/platform.h"   // next_signal
#include "llmc/platform/sockets.h"    // new_pipe
#include "llmc/run/child_process.h"   // start_child, forward, ending_of, end_as

namespace {

constexpr const char* kVariable =
    "ANVIL_SUPERVISED";        // "7 1 0": the pipe to the supervisor, has_saved(), is_restarted()
constexpr int kFruitless = 4;  // ends in a row without a new checkpoint: no more restarts
constexpr double kFirstPauseS = 0.5, kLongestPauseS = 60;

class Supervisor {
public:
    Supervisor(const RunFlags& flags, char** argv)
        : flags_(flags), argv_(argv), who_(format("rank %d", std::max(0, flags.launch.rank))) {
        signals_ = watched_signals();
        require(new_pipe(saved_) == 0, "--supervise: no pipe can be made: %s", std::strerror(errno));
        for (const int end : saved_) fcntl(end, F_SETFL, fcntl(end, F_GETFL) | O_NONBLOCK);
        sigprocmask(SIG_BLOCK, &signals_, &mask_before_);
    }

    int run() {
        int fruitless = 0;
        for (int restarts = 0;; restarts++) {
            start(restarts > 0);
            const int status = await_end();
            const bool is_lost = WIFSIGNALED(status) || WEXITSTATUS(status) == kExitRank;
            if (stop_ || !is_lost) return end_as(status);
            fruitless = count_saved() ? 0 : fruitless + 1;
            const std::string ending = ending_of(status);
            const bool in_vain = fruitless == kFruitless;
            if (in_vain || restarts == flags_.launch.max_restarts) {
                const char* const why = in_vain ? "the %dth time in a row before a checkpoint: not started again"
                                                : "and was started again %d times (max-restarts)";
                std::fprintf(stderr, "error: --supervise: %s %s, %s\n", who_.c_str(), ending.c_str(),
                             format(why, in_vain ? kFruitless : restarts).c_str());
                return end_as(status);
            }
            const double pause_s = std::min(kLongestPauseS, kFirstPauseS * (1 << fruitless));
            std::fprintf(stderr, "warning: --supervise: %s %s: it starts again in %g s, from the newest checkpoint\n",
                         who_.c_str(), ending.c_str(), pause_s);
            pause(pause_s);
            if (stop_) return end_as(status);
        }
    }

private:
    const RunFlags& flags_;
    char** argv_;
    const std::string who_;
    sigset_t signals_, mask_before_;
    int saved_[2] = {-1, -1};
    bool has_saved_ = false, stop_ = false;
    pid_t child_ = -1;

    void start(bool again) {
        child_ = start_child(argv_, mask_before_, "--supervise", [&] {
            fcntl(saved_[1], F_SETFD, 0);
            setenv(kVariable, format("%d %d %d", saved_[1], int(has_saved_), int(again)).c_str(), 1);
        });
    }

    void take(int signal) {
        if (signal <= 0 || signal == SIGCHLD) return;
        stop_ |= forward(signal, child_ > 0 ? std::vector{child_} : std::vector<pid_t>());
    }

    int await_end() {
        int status = 0;
        while (waitpid(child_, &status, WNOHANG) != child_) take(next_signal(signals_));
        child_ = -1;
        return status;
    }

    void pause(double seconds) {
        using Seconds = std::chrono::duration<double>;
        const auto end = std::chrono::steady_clock::now() + Seconds(seconds);
        while (!stop_) {
            const double left_s = Seconds(end - std::chrono::steady_clock::now()).count();
            if (left_s <= 0) return;
            take(next_signal(signals_, left_s));
        }
    }

    // Whether the child has completed a checkpoint.
    bool count_saved() {
        char bytes[4096];
        bool any = false;
        while (read(saved_[0], bytes, sizeof(bytes)) > 0) any = true;
        has_saved_ |= any;
        return any;
    }
};

}  // namespace

int supervise(const RunFlags& flags, char** argv) {
    require(flags.resume.empty() || flags.resume == "auto",
            "--supervise continues from the newest checkpoint in --out-dir, and --resume %s is another: leave --resume "
            "out, and give that run's folder as --out-dir",
            flags.resume.c_str());
    const Launch launch = detect_launch(flags.launch);
    require(launch.meet == Launch::Meet::nobody || flags.launch.rank >= 0,
            "--supervise is for one process, or for ranks that are started one by one with --rank; ranks of %s must be "
            "started again by it: torchrun --max-restarts, scripts/cluster/slurm.sh (doc/distributed/failures.md)",
            launch.source.c_str());
    return Supervisor(flags, argv).run();
}

Supervised::State::State() {
    const char* text = std::getenv(kVariable);
    int saved = 0, again = 0;
    if (!text || std::sscanf(text, "%d %d %d", &pipe, &saved, &again) != 3) return;
    is_child = true, has_saved = saved != 0, is_restarted = again != 0;
    unsetenv(kVariable);  // programs started from here are not supervised
    fcntl(pipe, F_SETFD, FD_CLOEXEC);
}

void Supervised::say_saved() {
    if (state().pipe >= 0) [[maybe_unused]]
        const ssize_t written = write(state().pipe, "s", 1);
}

/*
Runs several processes at once, as ranks of a run.

  const std::vector<Finished> ended = in_processes(3, [](int rank) { ... });    forks of this process, without mpirun
  const Finished ended = mpirun(2, program("train_gpt") + " --steps 3");        a program under MPI's launcher
  const Finished ended = mpirun(2, this_test("each rank: sums"));               a test of this program on each rank

Tests that run as ranks are tagged [.rank], which hides them from a normal run. All processes have a time limit.
*/
#pragma once
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>
#include "llmc/base/check.h"             // ensure
#include "llmc/base/file.h"              // read_file
#include "llmc/comm/launch/mpi_ranks.h"  // mpi_is_built_in
#include "test/testing.h"                // run, this_test, Finished, ScratchFolder

// Like train_gpt, a process prints an Error and ends with its exit code. Catch2's checks have no effect inside `body`:
// throw instead.
inline std::vector<Finished> in_processes(int n, const std::function<void(int rank)>& body, unsigned limit_s = 60) {
    const ScratchFolder scratch;
    std::vector<pid_t> pids;
    std::fflush(nullptr);
    for (int rank = 0; rank < n; rank++) {
        const pid_t pid = fork();
        if (pid == 0) {
            const std::string prefix = scratch / std::to_string(rank);
            dup2(open((prefix + ".out").c_str(), O_CREAT | O_WRONLY, 0666), 1);
            dup2(open((prefix + ".err").c_str(), O_CREAT | O_WRONLY, 0666), 2);
            alarm(limit_s);
            int code = 0;
            try {
                body(rank);
            } catch (const Error& error) {
                std::fprintf(stderr, "error: %s\n", error.what());
                code = error.exit_code;
            } catch (...) {
                std::fprintf(stderr, "error: something else was thrown\n");
                code = 99;
            }
            std::fflush(nullptr);
            _exit(code);
        }
        REQUIRE(pid > 0);
        pids.push_back(pid);
    }
    std::vector<Finished> ended;
    for (int rank = 0; rank < n; rank++) {
        int status = 0;
        while (waitpid(pids[size_t(rank)], &status, 0) < 0) REQUIRE(errno == EINTR);
        const std::string prefix = scratch / std::to_string(rank);
        ended.push_back({WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(prefix + ".out"),
                         read_file(prefix + ".err")});
    }
    return ended;
}

// Lets one process of a test wait until another has reached a point.
struct Signal {
    int ends[2];
    Signal() { REQUIRE(pipe2(ends, O_CLOEXEC) == 0); }
    ~Signal() { close(ends[0]), close(ends[1]); }
    void give() const { ensure(write(ends[1], "x", 1) == 1); }
    void await() const {
        char byte;
        ensure(read(ends[0], &byte, 1) == 1);
    }
};

// A port that no other process gets while this one runs: a bound socket that does not listen reserves it. To listen on
// it requires SO_REUSEADDR.
inline int free_port() {
    const int kept = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    REQUIRE(setsockopt(kept, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    REQUIRE(bind(kept, reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(getsockname(kept, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    return ntohs(address.sin_port);
}

// Whether tests under mpirun can run. In a build with MPI a missing mpirun fails the test; without MPI, the reason for
// skipping it is printed.
inline bool has_mpi() {
    if (!mpi_is_built_in()) {
        WARN("skipped: this build has no MPI (`make info` tells why)");
        return false;
    }
    INFO("MPI is built in, and there is no mpirun: scripts/setup.sh --tests installs it");
    REQUIRE(run("command -v mpirun").exit_code == 0);
    return true;
}

// Allows root and more ranks than cores, and binds no rank to a core. The variables are those of Open MPI 4 and 5;
// other MPIs need none. Ranks with different commands: mpirun(1, one + " : -np 1 " + other).
// Each mpirun gets a session folder of its own. By default all of a user's mpiruns share a parent folder. Open MPI 4
// removes it at the end of a run if it is empty; then the next mpirun may fail to create its own folder in it.
inline std::string mpirun_command(int n, const std::string& command, int limit_s = 60) {
    static const ScratchFolder sessions;
    static int started = 0;
    const std::string session = sessions / std::to_string(started++);
    return "env OMPI_MCA_orte_tmpdir_base=" + session + " PRTE_MCA_prte_tmpdir_base=" + session +
           " OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
           "OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe "
           "PRTE_MCA_hwloc_default_binding_policy=none OMPI_MCA_btl_vader_single_copy_mechanism=none "
           "timeout --kill-after=5 " +
           std::to_string(limit_s) + " mpirun -np " + std::to_string(n) + " " + command;
}
inline Finished mpirun(int n, const std::string& command, int limit_s = 60) {
    return run(mpirun_command(n, command, limit_s));
}

// See local_ranks.h.
#include "llmc/run/local_ranks.h"
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>
#include "llmc/base/check.h"          // require, format
#include "llmc/comm/launch/launch.h"  // detect_launch
#include "llmc/comm/tcp/hmac.h"       // random_bytes
#include "llmc/platform/platform.h"   // next_signal
#include "llmc/platform/sockets.h"    // new_tcp_socket
#include "llmc/run/child_process.h"   // start_child, forward, ending_of, end_as

namespace {

constexpr const char* kPerHost = "PET_NPROC_PER_NODE";
constexpr double kOwnEndS = 20;  // for ranks to end by themselves after one has failed, and again after SIGTERM

// Where the ranks of a run on this host alone meet: a port that nobody listens at.
std::string local_master() {
    sockaddr_in address = {};
    address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const int listener = new_tcp_socket(AF_INET);
    const bool found = listener >= 0 && bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                       getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    const int why = errno;
    if (listener >= 0) close(listener);
    require(found, "--nproc-per-node: no port of 127.0.0.1 is free: %s", std::strerror(why));
    return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

// The hosts of the run as a launch of one process each: which this one is, and where they meet.
Launch hosts_of(const LaunchFlags& flags, int n) {
    LaunchFlags hosts = flags;
    if (flags.nnodes > 0) {
        require(flags.node_rank >= 0 && flags.node_rank < flags.nnodes,
                "--node-rank %d: expected the number of this host, from 0 to %d (--nnodes %d)", flags.node_rank,
                flags.nnodes - 1, flags.nnodes);
        require(flags.nnodes == 1 || !flags.master.empty(), "--nnodes %d needs --master HOST:PORT, where host 0 is",
                flags.nnodes);
        hosts.rank = flags.node_rank, hosts.world_size = flags.nnodes;
    }
    const Launch launch = detect_launch(
        hosts, [](const char* name) { return std::strcmp(name, kPerHost) == 0 ? nullptr : std::getenv(name); });
    require(launch.meet != Launch::Meet::by_mpi && launch.local_rank <= 0,
            "--nproc-per-node %d starts the ranks of a host, and %s has started them: leave it out", n,
            launch.source.c_str());
    return launch;
}

class RanksOfHost {
public:
    RanksOfHost(const RunFlags& flags, int n, char** argv) : flags_(flags), n_(n), argv_(argv) {
        Launch hosts = hosts_of(flags.launch, n);
        first_rank_ = hosts.rank * n, world_size_ = hosts.world_size * n;
        if (hosts.world_size == 1) {
            hosts.master = local_master();
            // So that no other user of the host is taken for a rank.
            std::string key;
            for (const char byte : random_bytes(16)) key += format("%02x", int(static_cast<unsigned char>(byte)));
            if (!std::getenv("ANVIL_KEY_FILE")) setenv("ANVIL_KEY", key.c_str(), 0);
        }
        master_ = hosts.master;
        signals_ = watched_signals();
        sigprocmask(SIG_BLOCK, &signals_, &mask_before_);
    }

    int run() {
        for (int i = 0; i < n_; i++) start(i);
        int first_failure = 0;
        bool is_told = false;
        while (!ranks_.empty()) {
            int status = 0;
            if (const pid_t ended = waitpid(-1, &status, WNOHANG); ended > 0) {
                const auto rank = ranks_.extract(ended);  // none: process 1 of a container gets the orphans, too
                // A signal comes first: ranks that lose another end by themselves, and may be seen before it.
                const bool is_cause = WIFSIGNALED(status) && !WIFSIGNALED(first_failure) && !is_told;
                if (rank.empty() || status == 0 || (first_failure && !is_cause)) continue;
                first_failure = status;
                if (WIFSIGNALED(status))
                    std::fprintf(stderr, "error: rank %d %s\n", rank.mapped(), ending_of(status).c_str());
                continue;
            }
            // Supervised ranks may go on without the one that failed.
            if (!first_failure || flags_.launch.supervise) {
                take(next_signal(signals_));
                continue;
            }
            if (const int signal = next_signal(signals_, kOwnEndS); signal != 0) {
                take(signal);
            } else {
                forward(is_told ? SIGKILL : SIGTERM, pids());
                is_told = true;
            }
        }
        return first_failure ? end_as(first_failure) : kExitOk;
    }

private:
    const RunFlags& flags_;
    const int n_;
    char** const argv_;
    int first_rank_ = 0, world_size_ = 0;
    std::string master_;
    sigset_t signals_, mask_before_;
    std::map<pid_t, int> ranks_;  // those that run

    void start(int i) {
        std::vector<std::string> added = {format("--rank=%d", first_rank_ + i), format("--world-size=%d", world_size_),
                                          format("--local-rank=%d", i)};
        if (world_size_ > 1) added.push_back("--master=" + master_);
        std::vector<char*> arguments;
        for (char** argument = argv_; *argument; argument++) arguments.push_back(*argument);
        for (std::string& argument : added) arguments.push_back(argument.data());
        arguments.push_back(nullptr);
        const pid_t pid = start_child(arguments.data(), mask_before_, "--nproc-per-node", [] {});
        ranks_[pid] = first_rank_ + i;
    }
    std::vector<pid_t> pids() const {
        std::vector<pid_t> all;
        for (const auto& [pid, rank] : ranks_) all.push_back(pid);
        return all;
    }
    void take(int signal) {
        if (signal > 0 && signal != SIGCHLD) forward(signal, pids());
    }
};

}  // namespace

int local_ranks(const CommandLine& line) {
    const LaunchFlags& flags = line.run.launch;
    if (flags.rank >= 0 || line.error) return 0;  // a rank that was started here
    const char* const per_host = std::getenv("TORCHELASTIC_RUN_ID") ? nullptr : std::getenv(kPerHost);
    char* end = nullptr;
    long n = flags.nproc_per_node;
    if (n == 0 && per_host) n = std::strtol(per_host, &end, 10);
    if (end && (*end || n <= 1 || n >= (1 << 16))) n = 0;
    // Else each host would train alone.
    require(flags.nnodes > 0 ? n > 0 : flags.node_rank < 0,
            "--nnodes %d --node-rank %d: expected both, and with them --nproc-per-node, the number of ranks on a host",
            flags.nnodes, flags.node_rank);
    return int(n);
}

int run_local_ranks(const RunFlags& flags, int n, char** argv) { return RanksOfHost(flags, n, argv).run(); }

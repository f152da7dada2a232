/*
Ranks that are processes, for tests. Each runs this test program again, with one hidden test case, and has a socket to
every other rank.

  TEST_CASE("rank: adds up", "[.rank]") {                   the body: a hidden test case
      RankProcess self;
      HostComm comm(self.ranks, cpu);                       self.ranks: Ranks; self.network(): HostNetwork
      REQUIRE(...);
  }
  RankProcesses processes(4, "rank: adds up", {"SIZE=3"});  variables for getenv()
  for (const Finished& rank : processes.finish()) CHECK(rank.exit_code == 0);

The program is executed again, not only forked as in test/processes.h, because a forked process lacks OpenMP's threads.
Unlike ranks under MPI and TCP, these do not notice when one of them dies: the code under test must.
*/
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "llmc/base/check.h"     // ensure, format
#include "llmc/base/file.h"      // read_file
#include "llmc/comm/ranks.h"     // Ranks, HostNetwork
#include "llmc/comm/watchdog.h"  // Watchdog
#include "test/testing.h"        // Finished, ScratchFolder

// One socket to each of the other ranks.
class SocketRanks : public Ranks {
public:
    std::vector<int> sockets;
    std::unique_ptr<Watchdog> watching;

    Watchdog* watchdog() override { return watching.get(); }

    std::vector<std::string> all_gather(const std::string& record) override {
        const uint64_t size = record.size();
        const std::string message = std::string(reinterpret_cast<const char*>(&size), sizeof size) + record;
        std::vector<std::string> records(size_t(world_size), record);
        for (int r = 0; r < world_size; r++)
            if (r != rank) {
                // A single send: a rank may end as soon as it has the whole record.
                const ssize_t sent = send(sockets[size_t(r)], message.data(), message.size(), MSG_NOSIGNAL);
                ensure(sent == ssize_t(message.size()));
            }
        for (int r = 0; r < world_size; r++)
            if (r != rank) {
                uint64_t bytes = 0;
                receive(r, &bytes, sizeof bytes);
                records[size_t(r)].resize(bytes);
                receive(r, records[size_t(r)].data(), bytes);
            }
        return records;
    }

private:
    void receive(int r, void* to, size_t bytes) {
        if (bytes) ensure(recv(sockets[size_t(r)], to, bytes, MSG_WAITALL) == ssize_t(bytes));
    }
};

class SocketNetwork : public HostNetwork {
public:
    explicit SocketNetwork(const SocketRanks& ranks) : ranks_(ranks) {}
    double sent_bytes = 0;
    const char* name() const override { return "sockets"; }

    void exchange(const void* out, size_t out_bytes, int to, void* in, size_t in_bytes, int from,
                  const Look& look) override {
        const char* next_out = static_cast<const char*>(out);
        char* next_in = static_cast<char*>(in);
        sent_bytes += double(out_bytes);
        while (out_bytes + in_bytes > 0) {
            pollfd sockets[2] = {{out_bytes ? ranks_.sockets[size_t(to)] : -1, POLLOUT, 0},
                                 {in_bytes ? ranks_.sockets[size_t(from)] : -1, POLLIN, 0}};
            poll(sockets, 2, 20);
            look(in_bytes ? from : to);
            if (sockets[0].revents) advance(next_out, out_bytes, send(sockets[0].fd, next_out, out_bytes, kFlags));
            if (sockets[1].revents) advance(next_in, in_bytes, recv(sockets[1].fd, next_in, in_bytes, kFlags));
        }
    }

private:
    static constexpr int kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
    const SocketRanks& ranks_;

    // Like MPI, this does not report that the peer is gone.
    template <class P>
    static void advance(P& next, size_t& left, ssize_t done) {
        if (done <= 0) {
            usleep(1000);
        } else {
            next += done;
            left -= size_t(done);
        }
    }
};

// A rank's own number and sockets, from the environment.
struct RankProcess {
    SocketRanks ranks;

    explicit RankProcess(double timeout_s = 60) {
        const char* text = std::getenv("ANVIL_TEST_RANK");
        if (!text) FAIL("this test case is the body of a rank: another one starts it");
        std::vector<int> numbers;
        for (char* next = const_cast<char*>(text); *next;) numbers.push_back(int(std::strtol(next, &next, 10)));
        ranks.rank = numbers[0];
        ranks.sockets.assign(numbers.begin() + 1, numbers.end());
        ranks.world_size = int(ranks.sockets.size());
        ranks.watching = std::make_unique<Watchdog>(ranks.rank, timeout_s);
    }
    std::unique_ptr<HostNetwork> network() const { return std::make_unique<SocketNetwork>(ranks); }
};

class RankProcesses {
public:
    std::vector<pid_t> pids;

    RankProcesses(int n, const std::string& test_case, const std::vector<std::string>& variables = {}) {
        std::vector<std::vector<int>> sockets(size_t(n), std::vector<int>(size_t(n), -1));
        for (int a = 0; a < n; a++)
            for (int b = 0; b < a; b++) {
                int pair[2];
                ensure(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
                sockets[size_t(a)][size_t(b)] = pair[0];
                sockets[size_t(b)][size_t(a)] = pair[1];
            }
        for (int rank = 0; rank < n; rank++) {
            std::string who = std::to_string(rank);
            for (const int socket : sockets[size_t(rank)]) who += " " + std::to_string(socket);
            const pid_t pid = fork();
            ensure(pid >= 0);
            if (pid == 0) start(rank, who, sockets[size_t(rank)], test_case, variables);
            pids.push_back(pid);
        }
        for (const std::vector<int>& of_rank : sockets)
            for (const int socket : of_rank)
                if (socket >= 0) close(socket);
    }
    ~RankProcesses() {
        for (const pid_t pid : pids) kill(pid, SIGKILL);
        for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
    }

    // Waits for the ranks in order, so that a rank that died stays a zombie until those before it have ended. Kills
    // ranks that have not ended after limit_s, and the rank `sleeper` once all others have ended: exit code 137.
    std::vector<Finished> finish(double limit_s = 60, int sleeper = -1) {
        const auto start = std::chrono::steady_clock::now();
        std::vector<Finished> finished(pids.size());
        const auto wait_for = [&](size_t rank, double limit) {
            int status = 0;
            while (waitpid(pids[rank], &status, WNOHANG) == 0) {
                if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > limit)
                    kill(pids[rank], SIGKILL);
                usleep(2000);
            }
            const std::string name = std::to_string(rank);
            finished[rank] = {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                              read_file(folder_ / ("out" + name)), read_file(folder_ / ("err" + name))};
        };
        for (size_t rank = 0; rank < pids.size(); rank++)
            if (int(rank) != sleeper) wait_for(rank, limit_s);
        if (sleeper >= 0) wait_for(size_t(sleeper), 0);
        pids.clear();
        return finished;
    }

private:
    ScratchFolder folder_;

    [[noreturn]] void start(int rank, const std::string& who, const std::vector<int>& sockets,
                            const std::string& test_case, const std::vector<std::string>& variables) {
        for (const int socket : sockets)
            if (socket >= 0) fcntl(socket, F_SETFD, 0);
        const std::string name = std::to_string(rank);
        const int out = open((folder_ / ("out" + name)).c_str(), O_WRONLY | O_CREAT, 0600);
        const int err = open((folder_ / ("err" + name)).c_str(), O_WRONLY | O_CREAT, 0600);
        dup2(out, 1);
        dup2(err, 2);
        setenv("ANVIL_TEST_RANK", who.c_str(), 1);
        for (const std::string& variable : variables) putenv(const_cast<char*>(variable.c_str()));
        execl("/proc/self/exe", "tests", test_case.c_str(), static_cast<char*>(nullptr));
        _exit(127);
    }
};

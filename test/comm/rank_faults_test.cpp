/*
Faults between connected ranks over TCP, on hosts of their own: lost packets, connections that are reset, half closed,
or known to one end only, processes that stop, slow disks. Each fault ends all ranks as documented
(doc/distributed/failures.md, "Faults"), with exit code 3, the rank's name and in time; or all continue. Whole runs:
test/train/run_faults_test.cpp.
*/
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <atomic>
#include <cerrno>
#include <functional>
#include <string>
#include <thread>
#include <vector>
#include "llmc/comm/host/host_comm.h"   // HostComm
#include "llmc/comm/launch/islands.h"   // IslandRanks
#include "llmc/comm/launch/launch.h"    // join
#include "llmc/comm/tcp/tcp_network.h"  // kTcpLanes
#include "test/comm/broken_network.h"   // lose_packets, data_sockets, ...
#include "test/processes.h"             // in_processes, free_port, Signal
#include "test/test_clock.h"            // sleep_s

namespace {

constexpr double kNever = 600;  // seconds: what ends a rank before is not the watchdog

std::unique_ptr<Ranks> met(int rank, int world_size, int port, double timeout_s) {
    Launch launch;
    launch.meet = Launch::Meet::at_address;
    launch.rank = rank, launch.world_size = world_size;
    launch.master = "localhost:" + std::to_string(port);
    return join(launch, timeout_s);
}

// Processes that call themselves hosts exchange without end, and beside that each does `fault`, once all have begun.
using Fault = std::function<void(const Ranks& ranks, int port)>;
std::vector<Finished> exchange(int hosts, double timeout_s, const Fault& fault) {
    const int port = free_port();
    return in_processes(hosts, [&](int rank) {
        const std::unique_ptr<Ranks> ranks = met(rank, hosts, port, timeout_s);
        ranks->watchdog()->set_step(17);
        Cpu cpu(1);
        HostComm comm(*ranks, cpu, {.host = std::to_string(rank)});
        float* const data = static_cast<float*>(comm.allocate(4 << 20));
        comm.all_reduce(data, 1 << 20);
        const std::thread beside([&] { fault(*ranks, port); });
        while (true) comm.all_reduce(data, 1 << 20);
    });
}

// All end by themselves with exit code 3, and say this.
void check_ended(const std::vector<Finished>& ended, const std::string& part) {
    for (size_t rank = 0; rank < ended.size(); rank++) {
        INFO("rank " << rank << ": " << ended[rank].err);
        CHECK(ended[rank].exit_code == kExitRank);
        CHECK(contains(ended[rank].err, part));
    }
}

// Returns no sooner than after that time.
void stop_for(double seconds) {
    const pid_t stopped = getpid();
    if (fork() == 0) {
        // More than once: on a busy machine it may not have stopped by then.
        for (sleep_s(seconds); getppid() == stopped; sleep_s(0.2)) kill(stopped, SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
}

void await_end_of(pid_t pid) {
    pollfd process{int(syscall(SYS_pidfd_open, pid, 0)), POLLIN, 0};
    if (process.fd < 0 && errno == ESRCH) return;  // it has ended, and its parent knows
    ensure(process.fd >= 0 && poll(&process, 1, 30'000) == 1);
    close(process.fd);
}

}  // namespace

// ---- packets that no longer arrive -------------------------------------------------------------------------------

TEST_CASE("hosts that a network no longer connects end when the time is over, each naming the other",
          "[rank_faults][plain]") {
    const std::vector<Finished> ended = exchange(2, 4, [](const Ranks&, int port) {
        for (const int fd : all_sockets(port)) lose_packets(fd);
    });
    for (size_t rank = 0; rank < 2; rank++) {
        INFO(ended[rank].err);
        CHECK(ended[rank].exit_code == kExitRank);
        CHECK(ended[rank].err == "error: rank " + std::to_string(rank) +
                                     ": the all-reduce in step 17 was not over after 4 s; not there yet: rank " +
                                     std::to_string(1 - rank) + " on another host\n");
    }
}

TEST_CASE("ranks that a network no longer connects miss each other's records, too", "[rank_faults][plain]") {
    const int port = free_port();
    const Signal deaf;
    const std::vector<Finished> ended = in_processes(2, [&](int rank) {
        const std::unique_ptr<Ranks> ranks = met(rank, 2, port, 2);
        ranks->barrier();
        for (const int fd : record_sockets(port)) lose_packets(fd);
        rank == 0 ? deaf.give() : deaf.await();  // else rank 0 may have the next record already
        ranks->barrier();
    });
    const std::string late = "the exchange of records was not over after 2 s; not there yet: rank ";
    CHECK(ended[0].err == "error: rank 0: " + late + "1\n");
    CHECK(ended[1].err == "error: rank 1: " + late + "0, or whom it waits for\n");
    check_ended(ended, late);
}

TEST_CASE("a host that hears nothing and is heard ends the others by name", "[rank_faults][plain]") {
    check_ended(exchange(2, 4,
                         [](const Ranks& ranks, int port) {
                             if (ranks.rank == 1)
                                 for (const int fd : all_sockets(port)) lose_packets(fd);
                         }),
                "rank 1");
}

TEST_CASE("a lost network is noticed by the kernel in a minute, whatever --comm-timeout is", "[rank_faults][plain]") {
    const std::vector<Finished> ended = exchange(2, kNever, [](const Ranks&, int port) {
        for (const int fd : record_sockets(port)) {
            const auto tcp = [&](int name) { return tcp_option(fd, IPPROTO_TCP, name); };
            ensure(tcp(TCP_KEEPIDLE) + tcp(TCP_KEEPINTVL) * tcp(TCP_KEEPCNT) == 60);
            ensure(tcp(TCP_USER_TIMEOUT) == 60'000 && tcp_option(fd, SOL_SOCKET, SO_KEEPALIVE) == 1);
            ask_soon(fd);
            set_tcp(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 3000);
        }
        for (const int fd : all_sockets(port)) lose_packets(fd);
    });
    for (size_t rank = 0; rank < 2; rank++) {
        const std::string other = std::to_string(1 - rank);
        INFO(ended[rank].err);
        CHECK(ended[rank].exit_code == kExitRank);
        CHECK(contains(ended[rank].err, "error: rank " + std::to_string(rank) + ": rank " + other +
                                            " is gone: its connection is closed ("));
    }
}

// ---- connections -------------------------------------------------------------------------------------------------

// A host loses power and is up again: what it had of a connection is gone, and the other end learns of it when it asks.
TEST_CASE("a connection that only one end knows of ends that one, by name", "[rank_faults][plain]") {
    const auto die_unheard = [](size_t dying) {
        const Signal has_all, deaf;
        const int port = free_port();
        return in_processes(2, [&](int rank) {
            const std::unique_ptr<Ranks> ranks = met(rank, 2, port, kNever);
            const std::vector<std::string> pids = ranks->all_gather(std::to_string(getpid()));
            Cpu cpu(1);
            HostComm comm(*ranks, cpu, {.host = std::to_string(rank)});
            float* const data = static_cast<float*>(comm.allocate(4 << 20));
            comm.all_reduce(data, 1 << 20);
            const std::thread beside([&] {
                const std::vector<int> sockets = all_sockets(port);
                if (rank == int(dying)) {
                    has_all.give();
                    deaf.await();
                    for (const int fd : sockets) reset_when_closed(fd);
                    raise(SIGKILL);
                }
                has_all.await();  // who hears no acknowledgment sends no more
                for (const int fd : sockets) ask_soon(fd), lose_packets(fd);
                deaf.give();
                await_end_of(std::stoi(pids[dying]));
                for (const int fd : sockets) find_packets(fd);
            });
            while (true) comm.all_reduce(data, 1 << 20);
        });
    };
    for (const size_t dying : {size_t(0), size_t(1)}) {
        const std::vector<Finished> ended = die_unheard(dying);
        INFO(ended[1 - dying].err);
        CHECK(ended[dying].exit_code == 128 + SIGKILL);
        CHECK(ended[1 - dying].exit_code == kExitRank);
        const std::string name = "error: rank " + std::to_string(1 - dying) + ": rank " + std::to_string(dying);
        CHECK(ended[1 - dying].err.starts_with(name));
        CHECK(contains(ended[1 - dying].err, " is gone: its connection is closed"));
    }
}

TEST_CASE("connections that break between two hosts alone end all, by name", "[rank_faults]") {
    struct Case {
        const char* says;
        void (*break_one)(int fd);
    };
    const Case cases[] = {
        {"closed", [](int fd) { shutdown(fd, SHUT_RDWR); }},
        {"half closed", [](int fd) { shutdown(fd, SHUT_WR); }},
        {"reset", reset_now},
    };
    for (const bool of_records : {false, true})
        for (const Case& each : cases) {
            INFO(each.says << (of_records ? ", records" : ", data"));
            const std::vector<Finished> ended = exchange(3, kNever, [&](const Ranks& ranks, int port) {
                if (ranks.rank != 2) return;
                const std::vector<int> sockets = sockets_of(port, of_records);
                ensure(sockets.size() == size_t(of_records ? 1 : 2 * kTcpLanes));
                for (const int fd : sockets) each.break_one(fd);
            });
            check_ended(ended, " is gone: its connection is closed");
            // Either end may be the first to notice: "rank 2 is gone", or "rank 2: rank 0 is gone".
            check_ended(ended, "rank 2");
        }
}

// ---- processes ---------------------------------------------------------------------------------------------------

TEST_CASE("a host that dies ends the others at once, by name", "[rank_faults]") {
    std::vector<Finished> ended = exchange(3, kNever, [](const Ranks& ranks, int) {
        if (ranks.rank == 2) raise(SIGKILL);
    });
    CHECK(ended[2].exit_code == 128 + SIGKILL);
    ended.pop_back();
    check_ended(ended, "rank 2 is gone: its connection is closed");
    check_ended(ended, "in step 17)");
}

TEST_CASE("a process that is stopped ends the others when the time is over, by name", "[rank_faults]") {
    std::vector<Finished> ended = exchange(3, 4, [](const Ranks& ranks, int) {
        if (ranks.rank == 2) stop_for(6);
    });
    check_ended(ended, "rank ");  // the last wakes up, and finds the others gone
    CHECK((contains(ended[2].err, "error: rank 2: ended by rank ") || contains(ended[2].err, " is gone: its ")));
    ended.pop_back();
    // One of them waits for rank 2 itself; the other may have waited for that one.
    CHECK(contains(ended[0].err + ended[1].err,
                   "the all-reduce in step 17 was not over after 4 s; not there yet: rank 2 on another host"));
}

TEST_CASE("a process that is stopped for less than that holds the others up, and no more", "[rank_faults][plain]") {
    const int port = free_port();
    const std::vector<Finished> ended = in_processes(2, [&](int rank) {
        const std::unique_ptr<Ranks> ranks = met(rank, 2, port, 30);
        Cpu cpu(1);
        HostComm comm(*ranks, cpu, {.host = std::to_string(rank)});
        float* const data = static_cast<float*>(comm.allocate(4 << 20));
        const double begin_s = now_s();
        if (rank == 1) stop_for(1.5);
        const double woken_s = now_s();
        ensure(rank == 0 || woken_s - begin_s >= 1.5);
        std::fill_n(data, 1 << 20, 1.f);
        comm.all_reduce(data, 1 << 20);
        const double over_s = now_s();
        ensure(data[0] == 2 && data[(1 << 20) - 1] == 2);
        ensure(over_s >= ranks->all_gather_values(woken_s, "when it woke up")[1]);  // one clock for all
    });
    for (const Finished& rank : ended) {
        INFO(rank.err);
        CHECK(rank.exit_code == 0);
    }
}

TEST_CASE("ranks of an island are missed by their numbers in the run", "[rank_faults][plain]") {
    const int port = free_port();
    const std::vector<Finished> ended = in_processes(4, [&](int rank) {
        const std::unique_ptr<Ranks> ranks = met(rank, 4, port, 3);
        ranks->watchdog()->set_step(17);
        IslandRanks island(*ranks, 2);
        Cpu cpu(1);
        HostComm comm(island, cpu);
        float* const data = static_cast<float*>(comm.allocate(256));
        if (rank == 2) comm.all_reduce(data, 64);
        sleep_s(50);  // ended meanwhile
    });
    check_ended(ended, "the all-reduce in step 17 was not over after 3 s; not there yet: rank 3 (pid ");
    CHECK(ended[2].err.starts_with("error: rank 2: the "));
}

// ---- disks -------------------------------------------------------------------------------------------------------

TEST_CASE("a disk slower than --comm-timeout is waited for, and one slower than io-timeout is not",
          "[rank_faults][plain]") {
    for (const double disk_s : {4., 30.}) {
        const int port = free_port();
        const std::vector<Finished> ended = in_processes(3, [&](int rank) {
            const std::unique_ptr<Ranks> ranks = met(rank, 3, port, 2);
            ranks->watchdog()->disk_timeout_s = disk_s < 10 ? 60 : 3;
            share_errors(*ranks, [&] {
                if (rank == 1) sleep_s(disk_s);
            });
        });
        for (const Finished& rank : ended) {
            INFO(disk_s << " s: " << rank.err);
            CHECK(rank.exit_code == (disk_s < 10 ? 0 : kExitRank));
        }
        if (disk_s < 10) continue;
        const std::string late = "the exchange of records was not over after 3 s (io-timeout); not there yet: rank ";
        CHECK((contains(ended[0].err, late + "1\n") || contains(ended[0].err, "ended by rank 2: " + late + "0, or")));
        CHECK(contains(ended[1].err, "rank 1: ended by rank "));
        CHECK(contains(ended[2].err, late));
    }
}

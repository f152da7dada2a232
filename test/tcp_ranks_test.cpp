/*
Ranks over TCP, as processes of this machine: what they exchange, and how each kind of trouble ends.
*/
#include "llmc/comm/tcp_ranks.h"
#include <signal.h>
#include <sys/resource.h>
#include <algorithm>
#include "llmc/comm/handshake.h"  // check_alike, check_connected
#include "test/processes.h"
#include "test/test_clock.h"  // now_s, sleep_s

namespace {

Launch at(int rank, int world_size, int port, const std::string& host = "localhost") {
    Launch launch;
    launch.meet = Launch::Meet::at_address;
    launch.rank = rank, launch.world_size = world_size;
    launch.master = host + ":" + std::to_string(port);
    return launch;
}

// Every rank joins and does body(ranks).
std::vector<Finished> ranks_do(int world_size, const std::function<void(Ranks&)>& body, double timeout_s = 20) {
    const int port = free_port();
    return in_processes(world_size, [&](int rank) { body(*join(at(rank, world_size, port), timeout_s)); });
}

void must_all_succeed(const std::vector<Finished>& ended) {
    for (const Finished& rank : ended) {
        CHECK(rank.err == "");
        CHECK(rank.exit_code == 0);
    }
}

int connect_to(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(uint16_t(port));
    for (int tries = 0; tries < 500; tries++, sleep_s(0.02)) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
        close(fd);
    }
    return -1;
}

// Somebody else who listens: its port, and what it does with the first who connects.
struct Stranger {
    int port = free_port(), listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    std::thread thread;
    explicit Stranger(const std::string& answer) {
        const int yes = 1;
        REQUIRE(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
        sockaddr_in address = {};
        address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port = htons(uint16_t(port));
        REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
        REQUIRE(listen(listener, 5) == 0);
        thread = std::thread([this, answer] {
            const int fd = accept(listener, nullptr, nullptr);
            if (fd < 0) return;
            [[maybe_unused]] const ssize_t sent = send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
            char bytes[100];
            while (recv(fd, bytes, sizeof(bytes), 0) > 0) continue;
            close(fd);
        });
    }
    ~Stranger() {
        shutdown(listener, SHUT_RDWR);
        thread.join();
        close(listener);
    }
};

}  // namespace

TEST_CASE("ranks over TCP exchange records", "[tcp_ranks]") {
    for (const int world_size : {2, 3, 4})
        must_all_succeed(ranks_do(world_size, [&](Ranks& ranks) {
            check_connected(ranks);
            // From nothing to more than a socket takes at once
            for (const size_t bytes : {size_t(0), size_t(1), size_t(3'000'000)}) {
                const auto record = [&](int r) { return std::string(bytes * size_t(r + 1), char('a' + r)); };
                const std::vector<std::string> records = ranks.all_gather(record(ranks.rank));
                for (int r = 0; r < world_size; r++) ensure(records[size_t(r)] == record(r));
            }
            for (int i = 0; i < 200; i++)
                ensure(ranks.broadcast(std::to_string(ranks.rank * 1000 + i), i % world_size) ==
                       std::to_string(i % world_size * 1000 + i));
            ensure(int(ranks.host_ranks.size()) == world_size && ranks.local_size == world_size);
            ensure(ranks.local_rank == ranks.rank && ranks.device == ranks.rank && ranks.num_hosts == 1);
        }));
}

TEST_CASE("a rank that dies while others wait for its disk is noticed at once", "[tcp_ranks]") {
    const double begin_s = now_s();
    const std::vector<Finished> ended = ranks_do(2, [](Ranks& ranks) {
        ranks.watchdog()->disk_timeout_s = 600;
        share_errors(ranks, [&] {
            if (ranks.rank == 1) kill(getpid(), SIGKILL);
        });
    });
    CHECK(now_s() - begin_s < 60);
    CHECK(ended[0].exit_code == kExitRank);
    CHECK(ended[0].err == "error: rank 0: rank 1 is gone: its connection is closed (during the exchange of records)\n");
}

TEST_CASE("a barrier over TCP waits for the last", "[tcp_ranks]") {
    const double begin_s = now_s();
    must_all_succeed(ranks_do(3, [&](Ranks& ranks) {
        if (ranks.rank == 1) sleep_s(1);
        ranks.barrier();
        ensure(now_s() - begin_s >= 1);
    }));
}

TEST_CASE("ranks over TCP come in any order, at any address of this host", "[tcp_ranks]") {
    for (const char* host : {"localhost", "127.0.0.1", "[::1]"}) {
        if (std::string(host) == "[::1]" &&
            run("grep -q 00000000000000000000000000000001 /proc/net/if_inet6").exit_code) {
            WARN("[::1]: skipped: this machine has no IPv6");
            continue;
        }
        const int port = free_port();
        must_all_succeed(in_processes(3, [&](int rank) {
            sleep_s(0.3 * (2 - rank));  // rank 0 last
            check_connected(*join(at(rank, 3, port, host), 20));
        }));
    }
    char name[256] = "";
    REQUIRE(gethostname(name, sizeof(name) - 1) == 0);
    if (run("getent hosts '" + std::string(name) + "'").exit_code) return;  // a host that does not know its own name
    const int port = free_port();
    must_all_succeed(in_processes(2, [&](int rank) { check_connected(*join(at(rank, 2, port, name), 20)); }));
}

TEST_CASE("a local rank that the launcher gives is the GPU's number", "[tcp_ranks]") {
    const int port = free_port();
    must_all_succeed(in_processes(2, [&](int rank) {
        Launch launch = at(rank, 2, port);
        launch.local_rank = 5 - rank;
        const std::unique_ptr<Ranks> ranks = join(launch, 20);
        ensure(ranks->device == 5 - rank && ranks->local_rank == rank);
    }));
}

TEST_CASE("over TCP, a rank that dies ends all others, who name it", "[tcp_ranks]") {
    for (const bool busy : {false, true})
        for (int dying = 0; dying < 3; dying++) {
            const double begin_s = now_s();
            const std::vector<Finished> ended = ranks_do(3, [&](Ranks& ranks) {
                ranks.watchdog()->set_step(7);
                ranks.barrier();
                if (ranks.rank == dying) {
                    sleep_s(0.2);
                    raise(SIGKILL);
                }
                if (busy) sleep_s(30);  // with something else than the others
                ranks.barrier();
            });
            CHECK(now_s() - begin_s < 15);
            for (int rank = 0; rank < 3; rank++) {
                INFO("rank " << dying << " dies, rank " << rank << ": " << ended[size_t(rank)].err);
                CHECK(ended[size_t(rank)].exit_code == (rank == dying ? 128 + SIGKILL : kExitRank));
                if (rank == dying) continue;
                const std::string gone = "rank " + std::to_string(dying) + " is gone: its connection is closed";
                CHECK(contains(ended[size_t(rank)].err, gone));
                CHECK(contains(ended[size_t(rank)].err, "in step 7"));
            }
        }
}

TEST_CASE("over TCP, an error of one rank is its own, and ends all others", "[tcp_ranks]") {
    for (int failing = 0; failing < 3; failing++) {
        const std::vector<Finished> ended = ranks_do(3, [&](Ranks& ranks) {
            if (ranks.rank == failing) throw Error(kExitUsage, "no space");
            ranks.barrier();
        });
        for (int rank = 0; rank < 3; rank++) {
            INFO("rank " << failing << " fails, rank " << rank << ": " << ended[size_t(rank)].err);
            if (rank == failing) {
                CHECK(ended[size_t(rank)].exit_code == kExitUsage);
                CHECK(ended[size_t(rank)].err == "error: no space\n");
            } else {
                CHECK(ended[size_t(rank)].exit_code == kExitRank);
                CHECK(
                    contains(ended[size_t(rank)].err, "rank " + std::to_string(failing) + " has ended with an error"));
            }
        }
    }
}

TEST_CASE("over TCP, what is wrong with all ranks is said by each of them", "[tcp_ranks]") {
    const std::vector<Finished> ended = ranks_do(4, [](Ranks& ranks) {
        try {
            check_alike(ranks, {{"seed", ranks.rank == 2 ? "7" : "8"}});
        } catch (const Error&) {
            sleep_s(0.1 * ranks.rank);  // one after the other
            throw;
        }
    });
    for (const Finished& rank : ended) {
        CHECK(rank.exit_code == kExitUsage);
        CHECK(contains(rank.err, "error: the ranks differ in seed: it is 7 on rank 2, and 8 on rank 0"));
    }
}

TEST_CASE("over TCP, a rank that has finished is missed only by those who need it", "[tcp_ranks]") {
    for (int first = 0; first < 3; first++) {
        must_all_succeed(ranks_do(3, [&](Ranks& ranks) {
            if (ranks.rank != first) sleep_s(0.5);
        }));
        const std::vector<Finished> ended = ranks_do(3, [&](Ranks& ranks) {
            if (ranks.rank == first) return;
            sleep_s(0.3);
            ranks.barrier();
        });
        for (int rank = 0; rank < 3; rank++) {
            INFO("rank " << first << " finishes, rank " << rank << ": " << ended[size_t(rank)].err);
            CHECK(ended[size_t(rank)].exit_code == (rank == first ? 0 : kExitRank));
            if (rank != first)
                CHECK(contains(ended[size_t(rank)].err, "rank " + std::to_string(first) + " has finished, and this"));
        }
    }
}

TEST_CASE("over TCP, a rank that hangs is named by all others", "[tcp_ranks]") {
    for (const int hanging : {1, 2}) {
        const std::vector<Finished> ended = ranks_do(
            3,
            [&](Ranks& ranks) {
                ranks.watchdog()->set_step(3);
                if (ranks.rank == hanging) {
                    if (fork() == 0) {  // goes on with it when all is over
                        const pid_t parent = getppid();
                        sleep_s(3);
                        kill(parent, SIGCONT);
                        _exit(0);
                    }
                    raise(SIGSTOP);
                } else {
                    if (ranks.rank != 0) sleep_s(0.5);  // so that rank 0 waits longest
                    ranks.barrier();
                }
            },
            1);
        const std::string why =
            "the exchange of records in step 3 was not over after 1 s; not there yet: rank " + std::to_string(hanging);
        CHECK(ended[0].exit_code == kExitRank);
        CHECK(ended[0].err == "error: rank 0: " + why + "\n");
        const Finished& other = ended[size_t(3 - hanging)];
        CHECK(other.exit_code == kExitRank);
        CHECK(contains(other.err, "ended by rank 0: " + why));
    }
}

TEST_CASE("over TCP, a watch that runs out on any rank is heard by all", "[tcp_ranks]") {
    const std::vector<Finished> ended = ranks_do(
        3,
        [](Ranks& ranks) {
            if (ranks.rank == 2) {
                const Watchdog::Watch watch(ranks.watchdog(), "all-gather of bucket", 4);
                sleep_s(30);
            }
            sleep_s(30);
        },
        1);
    for (const Finished& rank : ended) {
        CHECK(rank.exit_code == kExitRank);
        CHECK(contains(rank.err, "rank 2: the all-gather of bucket 4 was not over after 1 s"));
    }
    CHECK(ended[1].err == "error: rank 1: ended by rank 2: the all-gather of bucket 4 was not over after 1 s\n");
}

TEST_CASE("strangers at the port are refused, and the run goes on", "[tcp_ranks]") {
    const int port = free_port();
    const std::vector<Finished> ended = in_processes(4, [&](int process) {
        if (process < 2) {
            if (process == 1) sleep_s(1);
            check_connected(*join(at(process, 2, port), 20));
        } else if (process == 2) {  // asks for a page
            const int fd = connect_to(port);
            ensure(fd >= 0);
            const std::string request = "GET / HTTP/1.0\r\n\r\n";
            ensure(send(fd, request.data(), request.size(), MSG_NOSIGNAL) == ssize_t(request.size()));
            char byte;
            ensure(recv(fd, &byte, 1, 0) <= 0);
        } else {  // says nothing for long, and less than a word
            const int fd = connect_to(port), other = connect_to(port);
            ensure(fd >= 0 && other >= 0);
            ensure(send(other, "a", 1, MSG_NOSIGNAL) == 1);
            sleep_s(1.5);
        }
    });
    for (const Finished& process : ended) CHECK(process.exit_code == 0);
    CHECK(contains(ended[0].err, "warning: rank 0: 127.0.0.1:"));
    CHECK(contains(ended[0].err, "is no rank of Anvil's: ignored"));
    CHECK(ended[1].err == "");
}

TEST_CASE("ranks of other runs are refused and told why", "[tcp_ranks]") {
    const int port = free_port();
    // Ranks 0 and 2 of three belong together; rank 1 comes last, after the wrong ones.
    const std::vector<Finished> ended = in_processes(6, [&](int process) {
        Launch launch = at(process < 3 ? process : 2, 3, port);
        if (process == 1) sleep_s(2);
        if (process >= 3) sleep_s(1);
        if (process == 3) launch.run_key = "another";
        if (process == 4) launch.world_size = 4;
        check_connected(*join(launch, 20));
    });
    for (int process = 0; process < 3; process++) CHECK(ended[size_t(process)].exit_code == 0);
    const std::string refused = "error: rank 0 at localhost:" + std::to_string(port) + " refused rank 2: ";
    const auto says = [&](int process, const std::string& why) {
        CHECK(ended[size_t(process)].exit_code == kExitUsage);
        CHECK(contains(ended[size_t(process)].err, refused + why));
        CHECK(contains(ended[0].err, "warning: rank 0: refused a rank 2 from 127.0.0.1:"));
        CHECK(contains(ended[0].err, why));
    };
    says(3, "port " + std::to_string(port) + " belongs to another run: give each run a port of its own");
    says(4, "it was told that there are 4 ranks, and rank 0 that there are 3: start all alike");
    says(5, "another process is rank 2 already");
}

TEST_CASE("a rank that cannot be is refused", "[tcp_ranks]") {
    const int port = free_port();
    const std::vector<Finished> ended = in_processes(3, [&](int process) {
        if (process == 2) return check_connected(*join(at(7, 2, port), 20));
        if (process == 1) sleep_s(1);
        check_connected(*join(at(process, 2, port), 20));
    });
    CHECK(ended[0].exit_code == 0);
    CHECK(ended[1].exit_code == 0);
    CHECK(ended[2].exit_code == kExitUsage);
    CHECK(contains(ended[2].err, "its rank is 7, and those to come are 1 to 1"));
}

TEST_CASE("a port that is in use, or somebody else's, is an error at once", "[tcp_ranks]") {
    const Stranger stranger("SSH-2.0-OpenSSH_9.2\r\n");
    const std::vector<Finished> ended = in_processes(2, [&](int rank) { join(at(rank, 2, stranger.port), 20); });
    const std::string where = "localhost:" + std::to_string(stranger.port);
    CHECK(ended[0].exit_code == kExitUsage);
    CHECK(contains(ended[0].err, "error: --master " + where + ": port " + std::to_string(stranger.port) +
                                     " is in use on this host, perhaps by another run: give another port"));
    CHECK(ended[1].exit_code == kExitUsage);
    CHECK(contains(ended[1].err, "error: --master " + where + ": whoever listens there is no rank 0 of Anvil's"));
}

TEST_CASE("over TCP, those who do not come are named", "[tcp_ranks]") {
    const double begin_s = now_s();
    const int port = free_port();
    const std::vector<Finished> ended =
        in_processes(2, [&](int process) { join(at(process ? 2 : 0, 4, port), process ? 20 : 1.5); });
    CHECK(now_s() - begin_s < 15);
    const std::string missing = "ranks 1 and 3 did not come to localhost:" + std::to_string(port) + " within 1.5 s";
    CHECK(ended[0].exit_code == kExitRank);
    CHECK(contains(ended[0].err, "error: " + missing));
    CHECK(ended[1].exit_code == kExitRank);
    CHECK(contains(ended[1].err, "error: rank 2: ended by rank 0: " + missing));
}

TEST_CASE("over TCP, a rank 0 that does not come is an error, and waiting is said", "[tcp_ranks]") {
    const int port = free_port();
    const Stranger silent("");
    const std::vector<Finished> ended = in_processes(3, [&](int process) {
        if (process == 0) join(at(1, 2, port), 1);
        if (process == 1) join(at(1, 2, port), 6);
        if (process == 2) join(at(1, 2, silent.port), 1);
    });
    const std::string where = "localhost:" + std::to_string(port);
    for (const Finished& process : ended) CHECK(process.exit_code == kExitRank);
    CHECK(contains(ended[0].err,
                   "error: rank 0 was not at " + where + " within 1 s (--comm-timeout; Connection refused)"));
    CHECK(!contains(ended[0].err, "waiting"));
    CHECK(
        contains(ended[1].err, "rank 1: waiting for rank 0 at " + where + " (Connection refused)\nerror: rank 0 was"));
    CHECK(contains(ended[2].err, "(--comm-timeout; it does not answer)"));
}

TEST_CASE("over TCP, a host that nobody knows is an error at once", "[tcp_ranks]") {
    const double begin_s = now_s();
    const std::vector<Finished> ended = in_processes(2, [](int rank) { join(at(rank, 2, 29500, "no such host"), 20); });
    for (const Finished& rank : ended) {
        CHECK(rank.exit_code == kExitUsage);
        CHECK(contains(rank.err, "--master no such host: no such host is known here"));
    }
    CHECK(now_s() - begin_s < 10);
}

TEST_CASE("hosts that this one has no way to are an error", "[tcp_ranks]") {
    // A host of a network that is kept for examples: where there is a default route it times out, else it is no way.
    const int port = free_port();
    const std::vector<Finished> ended = in_processes(2, [&](int process) {
        join(at(process, 2, port, "192.0.2.1"), 1);  // rank 0 listens anywhere and waits
    });
    CHECK(ended[0].exit_code == kExitRank);
    CHECK((ended[1].exit_code == kExitRank || contains(ended[1].err, "no way leads there from this host")));
}

TEST_CASE("too few open files for the ranks are named, and nobody waits for the timeout", "[tcp_ranks]") {
    const int port = free_port();
    const double begin_s = now_s();
    const std::vector<Finished> ended = in_processes(5, [&](int rank) {
        if (rank == 0) {
            // As many as are open, the listener (of IPv4 and of IPv6), and two connections at most.
            rlimit files = {};
            const int next = dup(0);
            ensure(getrlimit(RLIMIT_NOFILE, &files) == 0 && next > 0);
            close(next);
            files.rlim_cur = files.rlim_max = rlim_t(next) + 4;
            ensure(setrlimit(RLIMIT_NOFILE, &files) == 0);
        }
        try {
            join(at(rank, 5, port), rank == 0 ? 600 : 3);
        } catch (const Error& error) {
            std::fprintf(stderr, "%s\n", error.what());
            _exit(error.exit_code);
        }
    });
    CHECK(ended[0].exit_code == kExitUsage);
    CHECK(contains(ended[0].err, "connections and needs 4, one for each other rank: a process here may open "));
    CHECK(contains(ended[0].err, "Start it where the hard limit is higher (ulimit -Hn;"));
    for (int rank = 1; rank < 5; rank++) CHECK(ended[size_t(rank)].exit_code == kExitRank);
    CHECK(now_s() - begin_s < 300);
}

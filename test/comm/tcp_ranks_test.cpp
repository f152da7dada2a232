/*
Ranks over TCP, as processes of this machine: what they exchange, and how each kind of trouble ends.
*/
#include "llmc/comm/tcp_ranks.h"
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <thread>
#include "llmc/base/hmac.h"         // sha256, hmac_sha256
#include "llmc/comm/handshake.h"    // check_alike, check_connected
#include "llmc/comm/host.h"         // host_identity
#include "llmc/comm/host_comm.h"    // HostComm
#include "llmc/comm/launch.h"       // join
#include "llmc/train/parts.h"       // PartSender, PartReader, receive_parts
#include "llmc/train/rank_watch.h"  // report_of_all
#include "llmc/train/stop.h"        // catch_stop_signals, stop_signal
#include "test/processes.h"
#include "test/test_clock.h"  // now_s, sleep_s, wait_until

namespace {

const std::string kSecret = "correct horse battery staple";

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

// They meet, compare what ranks compare at the start and while they train, and part. Rank 0 prints what that took.
static std::vector<Finished> many_meet(int world_size) {
    const std::string flags(4000, 'f');
    const double begin_s = now_s();
    return ranks_do(
        world_size,
        [&](Ranks& ranks) {
            const double met_s = now_s();
            check_connected(ranks);
            share_errors(ranks, [] {});
            check_alike(ranks, {{"the flags", flags}});
            ensure(report_of_all(ranks, 7, 1. + ranks.rank).slowest == ranks.world_size - 1);
            ensure(ranks.joined_value(ranks.rank, "its number", std::plus<int>()) ==
                   ranks.world_size * (ranks.world_size - 1) / 2);
            ensure(ranks.broadcast(std::to_string(ranks.rank), ranks.world_size / 2) ==
                   std::to_string(ranks.world_size / 2));
            ranks.barrier();
            if (ranks.rank > 0) return;
            rusage used = {};
            getrusage(RUSAGE_SELF, &used);
            const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
            std::printf("%llu bytes sent, met after %.2f s, compared after %.2f s, %.2f s of CPU\n",
                        static_cast<unsigned long long>(dynamic_cast<TcpRanks&>(ranks).sent_bytes()), met_s - begin_s,
                        now_s() - begin_s, seconds(used.ru_utime) + seconds(used.ru_stime));
        },
        50);
}

TEST_CASE("256 ranks meet and compare in less than a kilobyte each", "[tcp_ranks][plain]") {
    constexpr int W = 256;
    const std::vector<Finished> ended = many_meet(W);
    must_all_succeed(ended);
    const int64_t bytes = std::stoll(ended[0].out);
    CHECK(bytes > W * 8 * 24);  // a header for each rank and exchange
    CHECK(bytes < W * 1000);
}

// By hand: build/.../tcp_ranks_test "1024 ranks meet" prints what it takes.
TEST_CASE("1024 ranks meet", "[.][many_ranks]") {
    const std::vector<Finished> ended = many_meet(1024);
    must_all_succeed(ended);
    std::printf("%s", ended[0].out.c_str());
}

TEST_CASE("equal records travel once, and every rank has its own", "[tcp_ranks]") {
    constexpr int W = 5;
    must_all_succeed(ranks_do(W, [](Ranks& ranks) {
        // All ways to be equal or not: bit i of a number says whether rank i + 1 differs from rank i.
        for (int ways = 0; ways < 1 << (W - 1); ways++) {
            const auto record = [&](int rank) {
                return std::string(size_t(std::popcount(unsigned(ways & ((1 << rank) - 1)))) % 3, 'x');
            };
            const std::vector<std::string> all = ranks.all_gather(record(ranks.rank));
            for (int r = 0; r < W; r++) ensure(all.size() == W && all[size_t(r)] == record(r));
        }
        // Sums in the order of ranks
        struct Text {
            char at[W + 1] = {};
        } mine;
        mine.at[0] = char('a' + ranks.rank);
        const Text joined = ranks.joined_value(mine, "its letter", [](Text all, const Text& next) {
            all.at[std::strlen(all.at)] = next.at[0];
            return all;
        });
        ensure(std::string(joined.at) == "abcde");
        const std::vector<std::string> gathered = ranks.gather(std::string(1, mine.at[0]));
        for (int r = 0; r < W && ranks.rank == 0; r++) ensure(gathered[size_t(r)] == std::string(1, char('a' + r)));
    }));
}

TEST_CASE("ranks that differ in what must be alike are told in what", "[tcp_ranks]") {
    const std::vector<Finished> ended =
        ranks_do(3, [](Ranks& ranks) { check_alike(ranks, {{"--seed", ranks.rank == 1 ? "8" : "7"}}); });
    for (const Finished& rank : ended) {
        CHECK(rank.exit_code == kExitUsage);
        CHECK(contains(rank.err, "the ranks differ in --seed: it is 8 on rank 1, and 7 on rank 0;"));
    }
}

TEST_CASE("pieces of files go beside the records, in order and with bounded memory", "[tcp_ranks]") {
    constexpr int W = 4, kPieces = 40;
    const auto bytes_of = [](int from, int to, int i) {
        return std::string(size_t(i) * size_t(i) * 600 + 1, char('a' + (from * 7 + to * 3 + i) % 26));
    };
    must_all_succeed(ranks_do(W, [&](Ranks& ranks) {
        const int rank = ranks.rank;
        ensure(ranks.most_piece_bytes() == 1 << 20);
        // Both ways at once: a thread sends, another takes, and the main one exchanges records.
        std::thread sends([&] {
            for (int i = 0; i < kPieces; i++)
                for (int to = rank == 0 ? 1 : 0; to < (rank == 0 ? W : 1); to++)
                    ranks.send_piece(to, bytes_of(rank, to, i));
        });
        int wrong = 0;
        std::thread takes([&] {
            std::vector<int> next(W);
            for (int n = 0; n < kPieces * (rank == 0 ? W - 1 : 1); n++) {
                const Ranks::Piece piece = ranks.next_piece();
                wrong += piece.bytes != bytes_of(piece.from, rank, next[size_t(piece.from)]++);
            }
        });
        for (int i = 0; i < 100; i++) ensure(ranks.broadcast(std::to_string(i + rank), 2) == std::to_string(i + 2));
        sends.join();
        takes.join();
        ensure(wrong == 0);
    }));
    // Who is not taken from waits, and does not fill the other's memory.
    must_all_succeed(ranks_do(2, [&](Ranks& ranks) {
        std::atomic<int> sent = 0;
        std::thread sends([&] {
            for (; ranks.rank == 1 && sent < 6; sent++) ranks.send_piece(0, "x");
        });
        ranks.barrier();
        if (ranks.rank == 1) sleep_s(0.3);
        ensure(sent <= 2);
        ranks.barrier();
        for (int i = 0; ranks.rank == 0 && i < 6; i++) ensure(ranks.next_piece().bytes == "x");
        sends.join();
    }));
}

TEST_CASE("parts that cannot be sent or written whole are errors, and nobody waits in vain", "[tcp_ranks]") {
    const std::string part(5'000'000, 'p');
    must_all_succeed(ranks_do(3, [&](Ranks& ranks) {
        const auto refused = [&](const std::string& why, const std::function<void()>& body) {
            std::string said;
            try {
                share_errors(ranks, body);
            } catch (const SharedError& error) {
                said = error.what();
            }
            ensure(said.find(why) != std::string::npos);
        };
        const auto send = [&](bool whole) {
            PartSender to_first(ranks, 0);
            to_first.write(part.data(), part.size());
            if (!whole) throw Error(kExitUsage, "no more of it");
            to_first.finish();
        };
        // One of two senders fails, and then the receiver.
        refused(") could not send its part of the checkpoint", [&] {
            if (ranks.rank > 0) return send(ranks.rank == 1);
            receive_parts(ranks, {1, 2}, [](int, const char*, size_t) {});
        });
        refused("a full disk", [&] {
            if (ranks.rank > 0) return send(true);
            receive_parts(ranks, {1, 2}, [](int, const char*, size_t) { throw Error(kExitUsage, "a full disk"); });
        });
        // The other way around.
        const auto read = [&](size_t bytes) {
            PartReader from_first(ranks);
            std::string got(bytes, '\0');
            from_first.read(got.data(), bytes);
            if (bytes < part.size()) throw Error(kExitUsage, "no room");
            from_first.finish();
            ensure(got == part);
        };
        refused("no room", [&] {
            if (ranks.rank == 1) return read(7);
            if (ranks.rank == 2) return;
            PartSender to_second(ranks, 1);
            to_second.write(part.data(), part.size());
            to_second.finish();
        });
        refused("could not send its part", [&] {
            if (ranks.rank == 1) return read(part.size());
            if (ranks.rank == 2) return;
            const PartSender nothing(ranks, 1);
        });
        // After all that they still go on.
        std::string got;
        if (ranks.rank == 1) send(true);
        if (ranks.rank == 0)
            receive_parts(ranks, {1}, [&](int, const char* data, size_t bytes) { got.append(data, bytes); });
        ensure(ranks.rank != 0 || got == part);
        ranks.barrier();
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
    CHECK(ended[0].err.starts_with("error: rank 0: rank 1 is gone: its connection is closed"));
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
    for (const bool has_key : {true, false}) {
        const int port = free_port();
        const std::vector<Finished> ended = in_processes(2, [&](int rank) {
            Launch launch = at(rank, 2, port, name);
            if (has_key) launch.secret = kSecret;
            check_connected(*join(launch, 20));
        });
        for (const Finished& rank : ended) CHECK(rank.exit_code == 0);
        // Then rank 0 listens on every network.
        CHECK(ended[0].err == (has_key ? ""
                                       : "warning: rank 0: any host that reaches port " + std::to_string(port) +
                                             " can join this run: give all ranks the same ANVIL_KEY "
                                             "(doc/security.md)\n"));
        CHECK(ended[1].err == "");
    }
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
    CHECK(contains(ended[2].err, "its rank is 7, and those to come are rank 1"));
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

TEST_CASE("over TCP, a name that nobody knows is waited for, and waiting is said", "[tcp_ranks]") {
    const std::vector<Finished> ended =
        in_processes(2, [](int rank) { join(at(rank, 2, 29500, "nobody.invalid"), 6); });
    for (const Finished& rank : ended) {
        INFO(rank.err);
        CHECK(rank.exit_code == kExitRank);
    }
    CHECK(contains(ended[0].err, "rank 0: waiting for the name of its host, nobody.invalid (no such host is known"));
    CHECK(contains(ended[0].err, "error: --master nobody.invalid:29500: no such host is known here: "));
    CHECK(contains(ended[1].err, "rank 1: waiting for rank 0 at nobody.invalid:29500 (no such host is known here: "));
    CHECK(contains(ended[1].err, "error: rank 0 was not at nobody.invalid:29500 within 6 s (--comm-timeout; no such"));
}

TEST_CASE("over TCP, a name may become known later", "[tcp_ranks]") {
    const ScratchFolder scratch;
    const std::string hosts = scratch / "hosts";
    std::ofstream(hosts) << "127.0.0.1 localhost\n";
    const int port = free_port();
    const std::vector<Finished> ended = in_processes(2, [&](int rank) {
        // A table of names of these processes' own
        if (unshare(CLONE_NEWNS) || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) ||
            mount(hosts.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr))
            _exit(77);
        if (rank == 0) {
            sleep_s(1);
            std::ofstream(hosts, std::ios::app) << "127.0.0.1 born-later.invalid\n";
        }
        check_connected(*join(at(rank, 2, port, "born-later.invalid"), 60));
    });
    if (ended[0].exit_code == 77 && ended[1].exit_code == 77) {
        WARN("skipped: only root can have a table of names of its own");
        return;
    }
    INFO(ended[0].err << ended[1].err);
    CHECK(ended[0].exit_code == 0);
    CHECK(ended[1].exit_code == 0);
}

TEST_CASE("hosts that this one has no way to may come up, and are waited for", "[tcp_ranks]") {
    // A host of a network that is kept for examples: where there is a default route it times out, else it is no way.
    const int port = free_port();
    const std::vector<Finished> ended = in_processes(2, [&](int process) {
        join(at(process, 2, port, "192.0.2.1"), 1);  // rank 0 listens anywhere and waits
    });
    CHECK(ended[0].exit_code == kExitRank);
    CHECK(ended[1].exit_code == kExitRank);
    CHECK(contains(ended[1].err, "error: rank 0 was not at 192.0.2.1:" + std::to_string(port) + " within 1 s"));
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

// ---- who is let in -------------------------------------------------------------------------------------------------

namespace {

std::string hex(const Digest& digest) {
    std::string text;
    for (const uint8_t byte : digest) text += format("%02x", byte);
    return text;
}

// TcpRanks with other limits than those of a run.
TcpRanks ranks_at(int rank, int world_size, int port, Meeting meeting) {
    return TcpRanks(rank, world_size, {{"localhost", port}}, meeting);
}

Meeting impatient() {
    Meeting meeting;
    meeting.timeout_s = 20, meeting.greeting_s = 0.3, meeting.most_guests = 4;
    return meeting;
}

bool is_closed_by_peer(int fd, double limit_s) {
    pollfd waiting{fd, POLLIN, 0};
    char byte;
    return poll(&waiting, 1, int(limit_s * 1000)) > 0 && recv(fd, &byte, 1, 0) <= 0;
}

void become_nobody() { ensure(setgid(65534) == 0 && setuid(65534) == 0); }
bool can_become_nobody() {
    if (geteuid() == 0) return true;
    WARN("skipped: only root can become another user");
    return false;
}

bool has_control_bytes(const std::string& text) {
    return std::any_of(text.begin(), text.end(), [](char c) { return (c >= 0 && c < ' ' && c != '\n') || c == 0x7f; });
}

}  // namespace

TEST_CASE("HMAC-SHA-256 is that of the standards", "[tcp_ranks]") {
    CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hex(sha256(std::string(1'000'000, 'a'))) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    // RFC 4231, test cases 1, 2 and 6 (a key of more than a block)
    CHECK(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    CHECK(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    Digest a = sha256("a"), b = a;
    CHECK(equal_digests(a, b));
    b[31] ^= 1;
    CHECK_FALSE(equal_digests(a, b));
}

TEST_CASE("ranks that know the key meet, others are refused, and the run goes on", "[tcp_ranks]") {
    const int port = free_port();
    const Signal refused;
    const std::vector<Finished> ended = in_processes(5, [&](int process) {
        Launch launch = at(process == 0 ? 0 : 1, 2, port);
        if (process != 3) launch.secret = kSecret;
        if (process == 2) launch.secret += " no";
        if (process == 4) launch.run_key = "torchrun another";
        if (process == 1)
            for (int others = 0; others < 3; others++) refused.await();
        try {
            check_connected(*join(launch, 20));
        } catch (const Error&) {
            refused.give();
            throw;
        }
    });
    CHECK(ended[0].exit_code == 0);
    CHECK(ended[1].exit_code == 0);
    const std::string prefix = "error: rank 0 at localhost:" + std::to_string(port) + " refused rank 1: ";
    for (int process = 2; process < 5; process++) CHECK(ended[size_t(process)].exit_code == kExitUsage);
    CHECK(contains(ended[2].err, prefix + "its key is not that of rank 0: give all ranks the same ANVIL_KEY"));
    CHECK(
        contains(ended[3].err, prefix + "rank 0 has a key, and this rank has not: give all ranks the same ANVIL_KEY"));
    CHECK(contains(ended[4].err, prefix + "port " + std::to_string(port) + " belongs to another run"));
    CHECK(contains(ended[0].err, "warning: rank 0: refused a rank 1 from 127.0.0.1:"));
    // The other way around
    const int second = free_port();
    const std::vector<Finished> keyless = in_processes(2, [&](int rank) {
        Launch launch = at(rank, 2, second);
        if (rank == 1) launch.secret = kSecret;
        join(launch, rank == 0 ? 1.5 : 20);
    });
    CHECK(keyless[1].exit_code == kExitUsage);
    CHECK(contains(keyless[1].err, "rank 0 has not a key, and this rank has"));
}

TEST_CASE("whoever listens must know the key as well, and never sees it", "[tcp_ranks]") {
    const int port = free_port(), listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    REQUIRE(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(uint16_t(port));
    REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(listen(listener, 5) == 0);
    std::vector<std::string> heard;
    // Asks the same twice, and lets everybody in.
    std::thread fake([&] {
        for (int turn = 0; turn < 2; turn++) {
            const Socket guest(accept(listener, nullptr, nullptr));
            const auto hear = [&] {
                char bytes[256];
                const ssize_t got = recv(guest.fd, bytes, sizeof(bytes), 0);
                heard.push_back(std::string(bytes, size_t(std::max<ssize_t>(got, 0))));
            };
            hear();
            send_message(guest.fd, kChallenge, 0, std::string(32, 'n'));
            hear();
            send_message(guest.fd, kWelcome, 7, std::string(32, 'p'));
        }
    });
    for (int turn = 0; turn < 2; turn++) {
        const std::vector<Finished> ended = in_processes(1, [&](int) {
            Launch launch = at(1, 2, port);
            launch.secret = kSecret;
            join(launch, 20);
        });
        CHECK(ended[0].exit_code == kExitUsage);
        CHECK(contains(ended[0].err, ": whoever listens there does not know this run's key: give all ranks the same"));
    }
    fake.join();
    close(listener);
    REQUIRE(heard.size() == 4);
    for (const std::string& each : heard) {
        CHECK(each.size() > sizeof(Header));
        CHECK_FALSE(contains(each, kSecret));
    }
    CHECK(heard[1] != heard[3]);  // what answered once answers nothing else
}

TEST_CASE("a key comes from the environment or from a file of your own", "[tcp_ranks]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "key";
    std::map<std::string, std::string> variables;
    const auto secret = [&] {
        return given_secret([&](const char* name) {
            const auto found = variables.find(name);
            return found == variables.end() ? nullptr : found->second.c_str();
        });
    };
    CHECK(secret() == "");
    variables["ANVIL_KEY_FILE"] = path;
    CHECK(contains(error_of(secret), "2: ANVIL_KEY_FILE=" + path + ": cannot be read: No such file"));
    std::ofstream(path) << kSecret << "\n";
    chmod(path.c_str(), 0600);
    CHECK(secret() == kSecret);
    for (const mode_t mode : {0640, 0604, 0620}) {
        chmod(path.c_str(), mode);
        CHECK(contains(error_of(secret), "2: ANVIL_KEY_FILE=" + path + ": others can read or change it (mode "));
    }
    chmod(path.c_str(), 0600);
    std::ofstream(path) << "\n";
    CHECK(contains(error_of(secret), ": the file is empty: write a key into it"));
    if (geteuid() == 0) {
        REQUIRE(chown(path.c_str(), 65534, 65534) == 0);
        CHECK(contains(error_of(secret), "others can read or change it (mode 600, user 65534)"));
    }
    variables["ANVIL_KEY_FILE"] = scratch.path;
    CHECK(contains(error_of(secret), ": expected a file"));
    variables["ANVIL_KEY"] = "too short";
    CHECK(contains(error_of(secret), "2: ANVIL_KEY: a key of 9 bytes can be guessed, expected at least 16"));
    variables["ANVIL_KEY"] = kSecret;
    CHECK(secret() == kSecret);
    // Whoever starts ranks that meet at an address has it read.
    LaunchFlags flags;
    flags.rank = 0, flags.world_size = 2, flags.master = "localhost";
    CHECK(detect_launch(flags, [&](const char* name) {
              return std::string(name) == "ANVIL_KEY" ? kSecret.c_str() : nullptr;
          }).secret == kSecret);
}

TEST_CASE("without a key, ranks of one host must be of one user", "[tcp_ranks]") {
    if (!can_become_nobody()) return;
    const int port = free_port();
    const Signal refused;
    const std::vector<Finished> ended = in_processes(3, [&](int process) {
        if (process == 1) refused.await();
        if (process == 2) become_nobody();
        try {
            check_connected(*join(at(process == 0 ? 0 : 1, 2, port), 20));
        } catch (const Error&) {
            refused.give();
            throw;
        }
    });
    CHECK(ended[0].exit_code == 0);
    CHECK(ended[1].exit_code == 0);
    CHECK(ended[2].exit_code == kExitUsage);
    CHECK(contains(ended[2].err, "refused rank 1: it is of another user of this host: give all ranks the same"));
    // Another user listens, and lets everybody in.
    const int other = free_port();
    const std::vector<Finished> met = in_processes(2, [&](int process) {
        if (process == 1) return check_connected(*join(at(1, 2, other), 20));
        become_nobody();
        const Listeners listeners = listen_at({"127.0.0.1", other});
        pollfd waiting{listeners.sockets[0].fd, POLLIN, 0};
        ensure(poll(&waiting, 1, 20'000) == 1);
        const Connection guest = accept_from(listeners.sockets[0]);
        char hello[sizeof(Header) + 56];
        ensure(receive_bytes(guest.socket.fd, hello, sizeof(hello)));
        ensure(send_message(guest.socket.fd, kChallenge, 0, std::string(32, 'n')));
        ensure(is_closed_by_peer(guest.socket.fd, 20));  // without a proof
    });
    CHECK(met[0].err == "");
    CHECK(met[1].exit_code == kExitUsage);
    CHECK(contains(met[1].err, ": another user of this host listens there: give another port"));
    // Both know a key: who they are does not matter.
    const int third = free_port();
    must_all_succeed(in_processes(2, [&](int rank) {
        if (rank == 0) become_nobody();
        Launch launch = at(rank, 2, third);
        launch.secret = kSecret;
        check_connected(*join(launch, 20));
    }));
}

TEST_CASE("who holds the other end of a connection of this host is known", "[tcp_ranks]") {
    Listeners listeners = listen_anywhere(true);
    std::string why;
    for (const bool goes : {false, true}) {
        INFO("it goes: " << goes);
        Socket near = connect_to({"127.0.0.1", listeners.port}, "", Deadline(20), [] {}, &why);
        REQUIRE(near.fd >= 0);
        pollfd waiting{listeners.sockets[0].fd, POLLIN, 0};
        REQUIRE(poll(&waiting, 1, 20'000) == 1);
        const Connection far = accept_from(listeners.sockets[0]);
        for (const bool asks : {false, true}) {
            CHECK(other_end(far.socket.fd, asks) == OtherEnd::this_user);
            CHECK(other_end(near.fd, asks) == OtherEnd::this_user);
        }
        if (goes) {  // which the kernel shows as root's
            near = Socket();
            for (const bool asks : {false, true})
                CHECK(wait_until([&] { return other_end(far.socket.fd, asks) == OtherEnd::nobody; }));
        }
    }
}

TEST_CASE("guests that say nothing are sent away and keep no rank out", "[tcp_ranks]") {
    const int port = free_port();
    const Signal crowded;
    const std::vector<Finished> ended = in_processes(3, [&](int process) {
        if (process == 0) {
            ranks_at(0, 2, port, impatient()).barrier();
        } else if (process == 1) {
            crowded.await();
            ranks_at(1, 2, port, impatient()).barrier();
        } else {
            // One has its time, as long as it is not pushed out; of many the first are pushed out.
            const int alone = connect_to(port);
            const double begin_s = now_s();
            ensure(is_closed_by_peer(alone, 20));
            ensure(now_s() - begin_s > 0.2);
            std::vector<int> crowd;
            for (int i = 0; i < 50; i++) crowd.push_back(connect_to(port));
            crowded.give();
            for (const int fd : crowd) ensure(fd >= 0 && is_closed_by_peer(fd, 20));
        }
    });
    for (const Finished& process : ended) {
        CHECK(process.err == "");
        CHECK(process.exit_code == 0);
    }
}

TEST_CASE("guests that say nothing do not use up a rank's files", "[tcp_ranks]") {
    const int port = free_port();
    const Signal crowded, met;
    const std::vector<Finished> ended = in_processes(3, [&](int process) {
        Meeting meeting;
        meeting.timeout_s = 20, meeting.most_guests = 1000;
        if (process == 0) {
            rlimit files = {};
            const int next = dup(0);
            ensure(getrlimit(RLIMIT_NOFILE, &files) == 0 && next > 0);
            close(next);
            files.rlim_cur = files.rlim_max = rlim_t(next) + 12;
            ensure(setrlimit(RLIMIT_NOFILE, &files) == 0);
            ranks_at(0, 2, port, meeting).barrier();
        } else if (process == 1) {
            crowded.await();
            ranks_at(1, 2, port, meeting).barrier();
            met.give();
        } else {
            std::vector<int> crowd;
            for (int i = 0; i < 50; i++) crowd.push_back(connect_to(port));
            crowded.give();
            met.await();
        }
    });
    for (const Finished& process : ended) {
        INFO(process.err);
        CHECK(process.exit_code == 0);
    }
}

TEST_CASE("a signal ends the wait for other ranks", "[tcp_ranks]") {
    const Stranger silent("");
    const double begin_s = now_s();
    const int port = free_port(), nobodys = free_port();
    const std::vector<Finished> ended = in_processes(3, [&](int process) {
        catch_stop_signals();
        std::thread([] {
            sleep_s(0.3);
            kill(getpid(), SIGTERM);
        }).detach();
        const Launch launch = process == 0 ? at(0, 3, port) : process == 1 ? at(1, 2, nobodys) : at(1, 2, silent.port);
        join(launch, 600, stop_signal);
    });
    CHECK(now_s() - begin_s < 9);  // less than a greeting
    const auto text = [](int rank, const std::string& other) {
        return "error: rank " + std::to_string(rank) + ": SIGTERM came while this rank waited for " + other +
               ": nothing was done\n";
    };
    for (const Finished& process : ended) CHECK(process.exit_code == kExitRank);
    CHECK(ended[0].err == text(0, "ranks 1 and 2"));
    CHECK(ended[1].err == text(1, "rank 0 at localhost:" + std::to_string(nobodys)));
    CHECK(ended[2].err == text(1, "rank 0 at localhost:" + std::to_string(silent.port)));
}

TEST_CASE("a rank that dies before all have come makes room for another", "[tcp_ranks]") {
    const int port = free_port();
    const Signal joined, replaced;
    const std::vector<Finished> ended = in_processes(4, [&](int process) {
        if (process == 1) {
            TcpRanks ranks(1, 3, {{"localhost", port}}, impatient());
            joined.give();
            raise(SIGKILL);
        }
        if (process == 2) {
            replaced.await();
            return check_connected(*join(at(2, 3, port), 20));
        }
        if (process == 0) return check_connected(*join(at(0, 3, port), 20));
        // The other rank 1: refused while the first is there.
        joined.await();
        const double end_s = now_s() + 20;
        for (;;) {
            try {
                TcpRanks ranks(1, 3, {{"localhost", port}}, impatient());
                replaced.give();
                ranks.set_hosts(ranks.all_gather(host_identity()));
                return check_connected(ranks);
            } catch (const Error&) {
                if (now_s() > end_s) throw;
                sleep_s(0.02);
            }
        }
    });
    INFO(ended[0].err << ended[1].err << ended[2].err << ended[3].err);
    CHECK(ended[1].exit_code == 128 + SIGKILL);
    for (const size_t process : {0, 2, 3}) CHECK(ended[process].exit_code == 0);
    CHECK(contains(ended[0].err, "is gone before all were there: waiting for another\n"));
}

// ---- what makes no sense -------------------------------------------------------------------------------------------

TEST_CASE("a rank that talks nonsense ends the others with its address", "[tcp_ranks]") {
    struct Case {
        const char* says;
        std::string bytes;  // what is sent after a proper greeting; the key of the run stands where zeros are
        std::string why;
    };
    const auto header = [](Kind kind, uint64_t bytes) {
        std::string text = message_of(kind, 0, "");
        std::memcpy(text.data() + 16, &bytes, sizeof(bytes));
        return text;
    };
    const std::string strange = " is not of this run",
                      senseless = " makes no sense: either it is no rank of this run, ";
    const Case cases[] = {
        {"another magic", std::string(24, 'x'), strange},
        {"an unknown kind", header(Kind(99), 0), strange},
        {"a greeting", header(kHello, 0), strange},
        {"an endless record", header(kRecord, kMostBytes + 1), strange},
        {"another number", message_of(kRecord, 0, "7"), "as its number" + senseless},
        {"no number", message_of(kRecord, 0, "\x1b[31m"), "as its number" + senseless},
        {"an endless piece", header(kPiece, kMostPieceBytes + 1), strange},
        {"pieces that were not asked for",
         message_of(kPiece, 0, "m") + message_of(kPiece, 0, "m") + message_of(kPiece, 0, "m"),
         " sends pieces of files that nobody waits for"},
        {"thanks for nothing", message_of(kTaken, 0, ""), " sends pieces of files that nobody waits for"},
        {"unasked records", message_of(kRecord, 0, "1") + message_of(kRecord, 0, "1") + message_of(kRecord, 0, "1"),
         " sends records that nobody waits for"},
    };
    for (const Case& each : cases) {
        INFO(each.says);
        const int port = free_port();
        const std::vector<Finished> ended = in_processes(2, [&](int rank) {
            if (rank == 0) {
                TcpRanks ranks = ranks_at(0, 2, port, impatient());
                if (std::string(each.says) == "unasked records") sleep_s(20);
                return check_connected(ranks);
            }
            uint64_t key = 0;
            Meeting meeting = impatient();
            meeting.world_size = 2;
            const Seat seat = find_listener({1}, {{"localhost", port}}, meeting, &key);
            std::string bytes = each.bytes;
            for (size_t at = 0; at + sizeof(Header) <= bytes.size();) {
                Header one;
                std::memcpy(&one, bytes.data() + at, sizeof(one));
                if (one.magic != kMagic) break;
                one.key = key;
                std::memcpy(bytes.data() + at, &one, sizeof(one));
                at += sizeof(one) + one.bytes % 1000;
            }
            ensure(send(seat.socket.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == ssize_t(bytes.size()));
            while (!is_closed_by_peer(seat.socket.fd, 20)) continue;
        });
        INFO(ended[0].err << ended[1].err);
        CHECK(ended[1].exit_code == 0);
        CHECK(ended[0].exit_code == kExitRank);
        CHECK(contains(ended[0].err, "rank 1 (127.0.0.1:"));
        CHECK(contains(ended[0].err, each.why));
        CHECK_FALSE(contains(ended[0].err, "please report it"));
        CHECK_FALSE(has_control_bytes(ended[0].err));
    }
}

TEST_CASE("records of another size, and errors that are none, make no sense", "[tcp_ranks]") {
    for (const std::string what : {"size", "error", "all"}) {
        INFO(what);
        const int port = free_port();
        const std::vector<Finished> ended = in_processes(2, [&](int rank) {
            TcpRanks ranks = ranks_at(rank, 2, port, impatient());
            const bool liar = rank == (what == "all" ? 0 : 1);
            if (what == "all" && liar) {  // a record of all that ends in the middle of a size
                ranks.all_gather(std::string(1, 'x'));
                sleep_s(0.2);
            } else if (what == "size") {
                if (liar)
                    ranks.all_gather("four");
                else
                    ranks.all_gather_values(uint64_t(1), "its time");
            } else if (what == "error") {
                if (liar)
                    ranks.all_gather("banana");
                else
                    share_errors(ranks, [] {});
            } else {
                ranks.all_gather("y");
                ranks.require_sense(false, 0, "the records of all ranks");
            }
        });
        const Finished& judge = ended[what == "all" ? 1 : 0];
        CHECK(judge.exit_code == kExitRank);
        CHECK(contains(judge.err, what == "size"    ? "sent as its time makes no sense"
                                  : what == "error" ? "sent as its error makes no sense"
                                                    : "what rank 0 (localhost:"));
    }
}

TEST_CASE("a refusal is as long as a message should be, and plain", "[tcp_ranks]") {
    std::string flood = message_of(kRefused, 0, "");
    const uint64_t claimed = kMostBytes;
    std::memcpy(flood.data() + 16, &claimed, sizeof(claimed));
    for (int i = 0; i < 20'000; i++) flood += i % 2 ? "no" : "\x1b]";
    const Stranger stranger(flood);
    const std::vector<Finished> ended = in_processes(1, [&](int) { join(at(1, 2, stranger.port), 20); });
    CHECK(ended[0].exit_code == kExitUsage);
    CHECK(contains(ended[0].err, "refused rank 1:  ]no"));
    CHECK(ended[0].err.size() > 4096);
    CHECK(ended[0].err.size() < 4096 + 200);
    CHECK_FALSE(has_control_bytes(ended[0].err));

    const Stranger padded(message_of(kRefused, 0, "go" + std::string(8, '\0')));
    const std::vector<Finished> told = in_processes(1, [&](int) { join(at(1, 2, padded.port), 20); });
    CHECK(told[0].exit_code == kExitUsage);
    CHECK(contains(told[0].err, "refused rank 1: go\n"));
}

TEST_CASE("a rank that names another's file writes nothing and learns nothing", "[tcp_ranks]") {
    const ScratchFolder scratch;
    const std::string path = scratch / "private", before(4 << 20, 's');
    std::ofstream(path) << before;
    chmod(path.c_str(), 0600);
    const int port = free_port();
    const std::vector<Finished> ended = in_processes(2, [&](int rank) {
        const std::unique_ptr<Ranks> ranks = join(at(rank, 2, port), 20);
        Cpu cpu(1);
        if (rank == 0) HostComm comm(*ranks, cpu);
        // The impostor goes along until it is to name its memory.
        ranks->all_gather(host_identity());
        ranks->all_gather_values(Process::current(), "its process");
        share_errors(*ranks, [] {});
        ranks->all_gather("");
        share_errors(*ranks, [] {});
        share_errors(*ranks, [] {});
        const int file = open(path.c_str(), O_PATH | O_CLOEXEC);
        ranks->all_gather(format("%d %d %zu", int(getpid()), file, size_t(1) << 20));
        share_errors(*ranks, [] {});
    });
    INFO(ended[0].err);
    CHECK(ended[0].exit_code == kExitRank);
    CHECK(contains(ended[0].err, "rank 1 (127.0.0.1:"));
    CHECK(contains(ended[0].err, "names memory that this rank does not open: /proc/"));
    CHECK(read_file(path) == before);
}

/*
Ranks over TCP, as processes of this machine: their communication, and how each kind of failure ends.
*/
#include "llmc/comm/tcp/tcp_ranks.h"
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>
#include <atomic>
#include <bit>
#include <cstdio>
#include <fstream>
#include <functional>
#include <thread>
#include "llmc/checkpoint/parts.h"    // PartSender, PartReader, receive_parts
#include "llmc/comm/handshake.h"      // check_alike, check_connected
#include "llmc/comm/host.h"           // host_identity
#include "llmc/comm/launch/launch.h"  // join
#include "llmc/run/stop.h"            // catch_stop_signals, stop_signal
#include "llmc/train/rank_watch.h"    // report_of_all
#include "test/comm/tcp_testing.h"
#include "test/processes.h"
#include "test/test_clock.h"  // now_s, sleep_s, wait_until

namespace {

// Every rank joins and does body(ranks).
std::vector<Finished> ranks_do(int world_size, const std::function<void(Ranks&)>& body, double timeout_s = 20) {
    const int port = free_port();
    return in_processes(world_size, [&](int rank) { body(*join(at(rank, world_size, port), timeout_s)); });
}

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
        // All combinations of equal and different: bit i of a number tells whether rank i + 1 differs from rank i.
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
    // A sender whose data is not received waits, and does not fill the receiver's memory.
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
        // After all that they still work.
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
                // Once, also where another rank has sent it.
                const std::string& err = ended[size_t(rank)].err;
                CHECK(contains(err, "in step 7"));
                CHECK(err.find("in step 7") == err.rfind("in step 7"));
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

TEST_CASE("--supervise is given to all ranks or to none", "[tcp_ranks]") {
    const int ports[] = {free_port(), free_port()};
    const std::vector<Finished> ended = in_processes(4, [&](int process) {  // two runs at once
        const int rank = process % 2, run = process / 2;
        Meeting meeting = impatient();
        meeting.numbers_anew = (run == 0) == (rank == 0);
        if (rank == 0) meeting.timeout_s = 4;
        TcpRanks ranks(rank, 2, {{"localhost", ports[run]}}, meeting);
    });
    for (const size_t run : {0, 1}) {
        const Finished &first = ended[2 * run], &other = ended[2 * run + 1];
        INFO(first.err << other.err);
        const std::string why = run == 0
                                    ? "rank 0 has --supervise, and this rank has not: give it to all ranks, or to none"
                                    : "rank 0 has not --supervise, and this rank has: give it to all ranks, or to none";
        CHECK(other.exit_code == kExitUsage);
        CHECK(contains(other.err, " refused rank 1: " + why));
        CHECK(contains(first.err, "warning: rank 0: refused a rank 1 from "));
        CHECK(contains(first.err, why));
    }
}

TEST_CASE("a rank 0 that starts again waits for its port, and one that starts first does not", "[tcp_ranks]") {
    for (const bool again : {false, true}) {
        const int port = free_port();
        const Signal taken;
        const std::vector<Finished> ended = in_processes(2, [&](int rank) {
            Meeting meeting = impatient();
            meeting.waits_for_port = again;
            if (rank == 0) {
                taken.await();
                TcpRanks ranks(0, 2, {{"localhost", port}}, meeting);
                return ranks.barrier();
            }
            const int stranger = listening_socket(port);
            taken.give();
            sleep_s(0.3);
            close(stranger);
            if (!again) return;
            TcpRanks ranks(1, 2, {{"localhost", port}}, meeting);
            ranks.barrier();
        });
        INFO(ended[0].err << ended[1].err);
        CHECK(ended[0].exit_code == (again ? 0 : kExitUsage));
        CHECK(ended[1].exit_code == 0);
        CHECK(contains(ended[0].err, "is in use on this host") == !again);
    }
}

/*
Access control of ranks over TCP: keys, users, foreign servers and clients, silent connections, and ranks that break the
protocol.
*/
#include "llmc/comm/tcp/tcp_ranks.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>
#include "llmc/comm/handshake.h"       // check_connected
#include "llmc/comm/host.h"            // host_identity
#include "llmc/comm/host/host_comm.h"  // HostComm
#include "llmc/comm/launch/launch.h"   // join
#include "llmc/comm/tcp/hmac.h"        // sha256, hmac_sha256
#include "test/comm/tcp_testing.h"
#include "test/processes.h"
#include "test/test_clock.h"  // now_s, sleep_s, wait_until

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
    return std::any_of(text.begin(), text.end(), [](unsigned char c) { return (c < ' ' && c != '\n') || c == 0x7f; });
}

}  // namespace

TEST_CASE("HMAC-SHA-256 is that of the standards", "[tcp_strangers]") {
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

TEST_CASE("ranks that know the key meet, others are refused, and the run goes on", "[tcp_strangers]") {
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

TEST_CASE("whoever listens must know the key as well, and never sees it", "[tcp_strangers]") {
    const int port = free_port(), listener = listening_socket(port);
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

TEST_CASE("a key comes from the environment or from a file of your own", "[tcp_strangers]") {
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

TEST_CASE("without a key, ranks of one host must be of one user", "[tcp_strangers]") {
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
        char hello[sizeof(Header) + 64];
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

TEST_CASE("who holds the other end of a connection of this host is known", "[tcp_strangers]") {
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

TEST_CASE("guests that say nothing are sent away and keep no rank out", "[tcp_strangers]") {
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

TEST_CASE("guests that say nothing do not use up a rank's files", "[tcp_strangers]") {
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

TEST_CASE("strangers at the port are refused, and the run goes on", "[tcp_strangers]") {
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

TEST_CASE("ranks of other runs are refused and told why", "[tcp_strangers]") {
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

TEST_CASE("a rank that cannot be is refused", "[tcp_strangers]") {
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

TEST_CASE("a port that is in use, or somebody else's, is an error at once", "[tcp_strangers]") {
    const Stranger stranger("SSH-2.0-OpenSSH_9.2\r\n");
    const std::vector<Finished> ended = in_processes(2, [&](int rank) { join(at(rank, 2, stranger.port), 20); });
    const std::string where = "localhost:" + std::to_string(stranger.port);
    CHECK(ended[0].exit_code == kExitUsage);
    CHECK(contains(ended[0].err, "error: --master " + where + ": port " + std::to_string(stranger.port) +
                                     " is in use on this host, perhaps by another run: give another port"));
    CHECK(ended[1].exit_code == kExitUsage);
    CHECK(contains(ended[1].err, "error: --master " + where + ": whoever listens there is no rank 0 of Anvil's"));
}

// ---- what makes no sense -------------------------------------------------------------------------------------------

TEST_CASE("a rank that talks nonsense ends the others with its address", "[tcp_strangers]") {
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

TEST_CASE("records of another size, and errors that are none, make no sense", "[tcp_strangers]") {
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

TEST_CASE("a refusal is as long as a message should be, and plain", "[tcp_strangers]") {
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

TEST_CASE("a rank that names another's file writes nothing and learns nothing", "[tcp_strangers]") {
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

/*
Communication between hosts over TCP, where hosts are processes of this machine: all collectives, messages of any size,
a training run, and the fate of the others when a host does not come or breaks the protocol. Later faults:
rank_faults_test.cpp.
*/
#include "llmc/comm/tcp/tcp_network.h"
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sstream>
#include "llmc/comm/launch/launch.h"   // join
#include "llmc/comm/tcp/hmac.h"        // random_bytes
#include "llmc/comm/tcp/tcp_ranks.h"   // TcpRanks
#include "test/comm/broken_network.h"  // data_sockets
#include "test/comm/collectives.h"     // check_collectives
#include "test/comm/rank_processes.h"  // RankProcesses
#include "test/processes.h"            // in_processes, free_port
#include "test/test_clock.h"           // sleep_s
#include "test/train/rank_runs.h"      // kEight, losses_in, tensor_difference

namespace {

std::unique_ptr<Ranks> met(int rank, int world_size, int port, double timeout_s = 20, const std::string& interface = "",
                           const std::string& host = "localhost") {
    Launch launch;
    launch.interface = interface;
    launch.meet = Launch::Meet::at_address;
    launch.rank = rank, launch.world_size = world_size;
    launch.master = host + ":" + std::to_string(port);
    return join(launch, timeout_s);
}

// In a process that RankProcesses started.
int own_rank() { return std::atoi(std::getenv("ANVIL_TEST_RANK")); }
std::string variable(const char* name) { return std::getenv(name); }

std::vector<Finished> run_ranks(const std::string& test_case, const std::string& hosts,
                                std::vector<std::string> variables = {}) {
    variables.push_back("ANVIL_TEST_HOSTS=" + hosts);
    variables.push_back("ANVIL_TEST_PORT=" + std::to_string(free_port()));
    return RankProcesses(int(hosts.size()), test_case, variables).finish();
}
void must_all_succeed(const std::vector<Finished>& ended) {
    for (size_t rank = 0; rank < ended.size(); rank++) {
        INFO("rank " << rank << ":\n" << ended[rank].out << ended[rank].err);
        CHECK(ended[rank].exit_code == 0);
    }
}

// The byte at i of message number m from rank `from`.
char byte_of(int from, int m, size_t i) { return char(size_t(from) * 31 + size_t(m) * 7 + i * 131 + (i >> 9)); }

}  // namespace

TEST_CASE("rank over TCP: collectives", "[.rank]") {
    const std::string hosts = variable("ANVIL_TEST_HOSTS");
    const std::unique_ptr<Ranks> ranks = met(own_rank(), int(hosts.size()), std::stoi(variable("ANVIL_TEST_PORT")));
    Cpu cpu(1);
    HostComm comm(*ranks, cpu, {.host = hosts.substr(size_t(ranks->rank), 1)});
    CHECK(contains(comm.describe(), "shared memory and TCP, "));
    for (const bool shared : {true, false})
        for (const int64_t shard : {0, 1, 1000, 100003}) check_collectives(comm, hosts, shared, shard);
    if (hosts.size() == 3) check_collectives(comm, hosts, true, (2 << 20) + 3);  // more than one piece of 8 MB
    ranks->barrier();
}
TEST_CASE("collectives between hosts over TCP", "[tcp_network]") {
    for (const std::string hosts : {"01", "012", "010", "0110", "01234", "01202"})
        if (!kSanitized || hosts == "010" || hosts.size() == 5)
            must_all_succeed(run_ranks("rank over TCP: collectives", hosts));
}

// Around the sizes from which a message is cut, both ways of different sizes, and nothing one way.
TEST_CASE("messages of any size arrive whole, in order, from and to different hosts", "[tcp_network]") {
    const std::vector<size_t> sizes = {0, 1, 23, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 3'000'001, 0, 7};
    for (const int W : {2, 3}) {
        const int port = free_port();
        must_all_succeed(in_processes(W, [&](int rank) {
            const std::unique_ptr<Ranks> ranks = met(rank, W, port);
            std::vector<int> all;
            for (int r = 0; r < W; r++) all.push_back(r);
            const std::unique_ptr<HostNetwork> network = ranks->connect_hosts(all);
            const int to = (rank + 1) % W, from = (rank + W - 1) % W;
            int looks = 0;
            for (size_t m = 0; m < 3 * sizes.size(); m++) {
                const auto size_of = [&](int sender) { return sizes[(m * 5 + size_t(sender)) % sizes.size()]; };
                std::vector<char> out(size_of(rank)), in(size_of(from) + 2, 'x');
                for (size_t i = 0; i < out.size(); i++) out[i] = byte_of(rank, int(m), i);
                network->exchange(out.data(), out.size(), to, in.data() + 1, in.size() - 2, from,
                                  [&](int) { looks++; });
                ensure(in.front() == 'x' && in.back() == 'x');
                for (size_t i = 0; i + 2 < in.size(); i++) ensure(in[i + 1] == byte_of(from, int(m), i));
            }
            ensure(looks > 0);
            ranks->barrier();
        }));
    }
}

TEST_CASE("of the ranks of a host only the first connects to others, and all wait for it", "[tcp_network]") {
    const int port = free_port();
    must_all_succeed(in_processes(3, [&](int rank) {
        const std::unique_ptr<Ranks> ranks = met(rank, 3, port);
        const std::unique_ptr<HostNetwork> network = ranks->connect_hosts({0, 2});
        ensure(std::string(network->name()) == "TCP");
        char out = char('a' + rank), in = 0;
        if (rank != 1) network->exchange(&out, 1, 2 - rank, &in, 1, 2 - rank, [](int) {});
        if (rank != 1) ensure(in == 'a' + 2 - rank);
        ranks->barrier();
    }));
}

TEST_CASE("hosts connect by the interface that is named, and by IPv6", "[tcp_network]") {
    const auto exchange = [](int rank, const std::string& interface, const std::string& host, int port) {
        const std::unique_ptr<Ranks> ranks = met(rank, 2, port, 20, interface, host);
        const std::unique_ptr<HostNetwork> network = ranks->connect_hosts({0, 1});
        char out = char('a' + rank), in = 0;
        network->exchange(&out, 1, 1 - rank, &in, 1, 1 - rank, [](int) {});
        ensure(in == 'a' + 1 - rank);
        for (const int fd : data_sockets(port)) {
            ensure(own_number(fd) == "127.0.0.1" && peer_number(fd) == "127.0.0.1");
            // Else a rank that computes for a minute, and reads nothing meanwhile, would look dead.
            int milliseconds = -1;
            socklen_t length = sizeof(milliseconds);
            ensure(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, &length) == 0 && milliseconds == 0);
        }
        ensure((host == "[::1]") == data_sockets(port).empty());
        ranks->barrier();
    };
    std::vector<std::string> hosts = {"localhost", "[::1]"};
    if (run("grep -q 00000000000000000000000000000001 /proc/net/if_inet6").exit_code) {
        WARN("[::1]: skipped: this machine has no IPv6");
        hosts.pop_back();
    }
    for (const std::string& host : hosts) {
        const int port = free_port();
        must_all_succeed(in_processes(2, [&](int rank) { exchange(rank, "", host, port); }));
    }
    const int port = free_port();
    must_all_succeed(in_processes(2, [&](int rank) { exchange(rank, "lo", "localhost", port); }));
    const int wrong = free_port();
    const std::vector<Finished> ended =
        in_processes(2, [&](int rank) { met(rank, 2, wrong, 20, rank == 0 ? "eth99" : "lo")->connect_hosts({0, 1}); });
    for (const Finished& rank : ended) {
        CHECK(rank.exit_code == kExitUsage);
        CHECK(contains(rank.err,
                       "--interface eth99: no interface of this host has this name, is up and has an address; "
                       "there are: "));
        CHECK(contains(rank.err, "lo (127.0.0.1)"));
    }
}

// ---- ranks that do not come ------------------------------------------------------------------------------------

TEST_CASE("a host that cannot be reached is named, and where it should have been", "[tcp_network]") {
    const int port = free_port();
    const std::vector<Finished> ended = in_processes(2, [&](int rank) {
        const std::unique_ptr<Ranks> ranks = met(rank, 2, port, 3);
        if (rank == 0) {
            ranks->connect_hosts({0, 1});
        } else {  // has met the others, and does not connect
            ranks->broadcast("");
            share_errors(*ranks, [] {});
            ranks->all_gather("");
            sleep_s(30);
        }
    });
    INFO(ended[0].err);
    CHECK(ended[0].exit_code == kExitRank);
    CHECK(contains(ended[0].err, "error: rank 1 did not come to 127.0.0.1:"));
    CHECK(contains(ended[0].err, " within 3 s (--comm-timeout): does the network let it through to any port"));
}

// ---- access control --------------------------------------------------------------------------------------------

namespace {

// Where rank 0 listens, as rank 1 of two hears it; and the secret that it gives to ranks.
struct Heard {
    Address place;
    Meeting meeting;
    explicit Heard(Ranks& ranks) {
        meeting.world_size = 2;
        meeting.secret = ranks.broadcast("");
        share_errors(ranks, [] {});
        std::istringstream words(ranks.all_gather("")[0]);
        words >> place.host >> place.port;
    }
    int connect() const {
        std::string why;
        return connect_to(place, "", Deadline(20), [] {}, &why).take();
    }
};

bool is_closed_by_peer(int fd, double limit_s) {
    pollfd waiting{fd, POLLIN, 0};
    char byte;
    return poll(&waiting, 1, int(limit_s * 1000)) > 0 && recv(fd, &byte, 1, 0) <= 0;
}

// A message as it is on the wire.
std::string labeled(uint64_t key, uint64_t number, uint64_t bytes, const std::string& data) {
    const uint64_t label[3] = {key, number, bytes};
    return std::string(reinterpret_cast<const char*>(label), sizeof(label)) + data;
}

// Rank 0 is a host; rank 1 does what `body` says with all that a rank knows before it connects.
std::vector<Finished> with_rank_0(const std::function<void(Ranks&, const Heard&)>& body) {
    const int port = free_port();
    return in_processes(2, [&](int rank) {
        const std::unique_ptr<Ranks> ranks = met(rank, 2, port);
        if (rank == 1) return body(*ranks, Heard(*ranks));
        const std::unique_ptr<HostNetwork> network = ranks->connect_hosts({0, 1});
        for (const std::string want : {"hello", "again"}) {
            std::string got(5, ' ');
            network->exchange(nullptr, 0, 1, got.data(), got.size(), 1, [](int) {});
            ensure(got == want);
        }
        ranks->barrier();
    });
}

}  // namespace

// Rank 1 says that it listens somewhere, and rank 2 does not believe everything.
TEST_CASE("addresses that are none make no sense, and are not printed", "[tcp_network]") {
    for (const std::string place : {"\x1b[31m 80", "10.0.0.1 0", "10.0.0.1 70000", "10.0.0.1", "somewhere 80", ""}) {
        const int port = free_port();
        const std::vector<Finished> ended = in_processes(3, [&](int rank) {
            const std::unique_ptr<Ranks> ranks = met(rank, 3, port);
            if (rank != 1) {
                ranks->connect_hosts({1, 2});
                return ranks->barrier();
            }
            ranks->broadcast("");
            share_errors(*ranks, [] {});
            ranks->all_gather(place);
            sleep_s(10);
        });
        INFO(place << ": " << ended[2].err);
        CHECK(ended[2].exit_code == kExitRank);
        CHECK(contains(ended[2].err, "what rank 1 (by way of rank 0 at localhost:"));
        CHECK(contains(ended[2].err, " makes no sense"));
        CHECK_FALSE(contains(ended[2].err, "\x1b"));
    }
}

TEST_CASE("strangers at the port of a host get nowhere and harm nothing", "[tcp_network]") {
    const std::vector<Finished> ended = with_rank_0([](Ranks& ranks, const Heard& heard) {
        // Another protocol is cut off; so are more silent guests than are borne.
        const int browser = heard.connect();
        ensure(send(browser, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
        ensure(is_closed_by_peer(browser, 20));
        std::vector<int> crowd;
        for (int i = 0; i < 80; i++) crowd.push_back(heard.connect());
        ensure(is_closed_by_peer(crowd[0], 20));
        // A client that knows the protocol but not the secret.
        uint64_t key = 0;
        for (const std::string secret : {"", "another secret than that of rank 0"}) {
            Meeting stranger = heard.meeting;
            stranger.secret = secret;
            std::string why;
            try {
                find_listener({1, 0}, {heard.place}, stranger, &key);
            } catch (const Error& error) {
                why = error.what();
            }
            ensure(why.find(secret.empty() ? "rank 0 has a key, and this rank has not"
                                           : "its key is not that of rank 0") != std::string::npos);
        }
        // An authenticated client gets no rank that is taken or does not exist.
        std::vector<Seat> seats;
        seats.push_back(find_listener({1, 0}, {heard.place}, heard.meeting, &key));
        for (const Seat& wrong : {Seat{1, 0}, Seat{0, 0}, Seat{1, 64}}) {
            bool refused = false;
            try {
                uint64_t unused = 0;
                find_listener(wrong, {heard.place}, heard.meeting, &unused);
            } catch (const Error&) {
                refused = true;
            }
            ensure(refused);
        }
        for (int lane = 1; lane < kTcpLanes; lane++)
            seats.push_back(find_listener({1, lane}, {heard.place}, heard.meeting, &key));
        const std::string message = labeled(key, 0, 5, "hello") + labeled(key, 1, 5, "again");
        ensure(send(seats[0].socket.fd, message.data(), message.size(), MSG_NOSIGNAL) == ssize_t(message.size()));
        ranks.barrier();
        // The other rank no longer listens.
        std::string why;
        ensure(connect_to(heard.place, "", Deadline(5), [] {}, &why).fd < 0 && why == "Connection refused");
    });
    INFO(ended[0].err << ended[1].err);
    CHECK(ended[0].exit_code == 0);
    CHECK(ended[1].exit_code == 0);
    CHECK(contains(ended[0].err, "is no rank of Anvil's: ignored"));
    CHECK(contains(ended[0].err, "another process is rank 1 already"));
}

TEST_CASE("a message that is not the expected one ends the rank, with the sender's name", "[tcp_network]") {
    for (const int wrong : {0, 1, 2}) {
        const std::vector<Finished> ended = with_rank_0([&](Ranks&, const Heard& heard) {
            uint64_t key = 0;
            std::vector<Seat> seats;
            for (int lane = 0; lane < kTcpLanes; lane++)
                seats.push_back(find_listener({1, lane}, {heard.place}, heard.meeting, &key));
            const std::string message =
                labeled(key, 0, 5, "hello") +
                labeled(key + (wrong == 0), wrong == 1 ? 0 : 1, wrong == 2 ? 6 : 5, wrong == 2 ? "again!" : "again");
            ensure(send(seats[0].socket.fd, message.data(), message.size(), MSG_NOSIGNAL) == ssize_t(message.size()));
            sleep_s(5);
        });
        INFO(wrong << ": " << ended[0].err);
        CHECK(ended[0].exit_code == kExitRank);
        CHECK(contains(ended[0].err, "rank 1 (127.0.0.1:"));
        CHECK(contains(ended[0].err, wrong == 0 ? "that is not of this run" : " bytes, and 1 of 5 is expected"));
    }
}

// ---- training --------------------------------------------------------------------------------------------------

TEST_CASE("runs of several hosts over TCP have the bits of one process", "[tcp_network]") {
    const TinyRuns runs;
    const FlagMap common = {{"steps", "6"}, {"threads", "1"}, {"device", "cpu"}, {"dtype", "fp32"}};
    for (const int W : {2, 3}) {
        // The same batch, in a power of two of micro-batches for each rank.
        const FlagMap flags = with(with(kEight, common), {{"total-batch-size", std::to_string(W == 2 ? 256 : 384)}});
        const std::string name = "hosts" + std::to_string(W), one = name + "one";
        must_succeed(runs.train(one, flags));
        const std::string port = std::to_string(free_port());
        std::vector<std::unique_ptr<Started>> started;
        for (int rank = 0; rank < W; rank++) {
            const FlagMap of_rank = with(
                flags,
                {{"rank", std::to_string(rank)}, {"world-size", std::to_string(W)}, {"master", "localhost:" + port}});
            started.push_back(std::make_unique<Started>(
                "env ANVIL_HOST=host" + std::to_string(rank) + " timeout 120 " + command_of(runs.flags(name, of_rank)),
                runs.path(name + "-" + std::to_string(rank))));
        }
        for (int rank = 0; rank < W; rank++) {
            const Finished ended = started[size_t(rank)]->finish();
            INFO(ended.out << ended.err);
            CHECK(ended.exit_code == 0);
            if (rank == 0) CHECK(contains(ended.out, format("shared memory and TCP, %d ranks on %d hosts", W, W)));
        }
        CHECK(losses_in(runs.path(name)) == losses_in(runs.path(one)));
        CHECK(losses_in(runs.path(name)).size() == 6);
        CHECK(tensor_difference(step_folder(runs.path(name), 6), step_folder(runs.path(one), 6)) == "");
    }
}

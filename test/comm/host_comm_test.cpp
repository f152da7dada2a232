/*
Collectives between processes: each against its definition and LocalComm's bits, within a host and between simulated
hosts, and the fate of the other ranks when one dies, sleeps or calls another collective.
*/
#include "llmc/comm/host/host_comm.h"
#include <chrono>
#include <thread>
#include "llmc/comm/local.h"        // LocalGroup, LocalComm
#include "test/comm/collectives.h"  // check_collectives, term
#include "test/comm/rank_processes.h"
#include "test/testing.h"

namespace {

// "0011": the host of each rank
std::string layout() { return std::getenv("HOSTS"); }
HostCommOptions options_of(const RankProcess& self) {
    HostCommOptions options;
    options.host = layout().substr(size_t(self.ranks.rank), 1);
    options.network = self.network();
    return options;
}

// Runs a test case as n ranks; all must end well.
void run_ranks(const std::string& test_case, const std::string& hosts, std::vector<std::string> variables = {}) {
    variables.push_back("HOSTS=" + hosts);
    RankProcesses processes(int(hosts.size()), test_case, variables);
    int rank = 0;
    for (const Finished& finished : processes.finish()) {
        INFO("rank " << rank++ << " of " << hosts << ":\n" << finished.out << finished.err);
        CHECK(finished.exit_code == 0);
    }
}

}  // namespace

// 100003 floats for each rank: more than a piece of the staging buffer, and several chunks of a loop.
TEST_CASE("rank: collectives", "[.rank]") {
    RankProcess self;
    const std::string hosts = layout();
    for (const int threads : {1, 3}) {
        Cpu cpu(threads);
        HostComm comm(self.ranks, cpu, options_of(self));
        CHECK(comm.rank == self.ranks.rank);
        CHECK(comm.world_size == int(hosts.size()));
        for (const bool shared : {true, false})
            for (const int64_t shard : {0, 1, 7, 64, 1000, 100003}) check_collectives(comm, hosts, shared, shard);
    }
}

TEST_CASE("processes scatter, gather, reduce and broadcast", "[host_comm]") {
    for (const std::string hosts : {"0", "00", "000", "0000", "00000", "00000000"})
        if (!kSanitized || hosts.size() == 1 || hosts.size() == 3) run_ranks("rank: collectives", hosts);
}

TEST_CASE("processes on several hosts do, too", "[host_comm]") {
    for (const std::string hosts : {"01", "0011", "0111", "0101", "0110", "01202"})
        if (!kSanitized || hosts.size() == 5) run_ranks("rank: collectives", hosts);
}

TEST_CASE("rank: groups", "[.rank]") {
    RankProcess self;
    const std::string hosts = layout();
    const int of = std::atoi(std::getenv("SHARDS")), rank = self.ranks.rank;
    Cpu cpu(2);
    HostComm comm(self.ranks, cpu, options_of(self));
    comm.split(of);
    for (const bool shared : {true, false})
        for (const int64_t shard : {1, 1000, 100003}) {
            const int64_t n = of * shard, begin = comm.shard() * shard, end = begin + shard;
            RankBuffer<float> buffer(comm, shared, n);
            float* const data = buffer.data();
            fill(data, 0, n, period_of([&](int64_t i) { return term(rank, i); }));
            comm.wait(comm.reduce_scatter(data, shard));
            require_equal("reduce_scatter", data, begin, end,
                          period_of([&](int64_t i) { return sum_over_hosts(hosts, as_float, i); }));
            std::fill(data + begin, data + end, float(rank));
            comm.wait(comm.all_gather(data, size_t(shard) * sizeof(float)));
            for (int64_t part = 0; part < of; part++)
                require_equal("all_gather", data, part * shard, (part + 1) * shard,
                              std::vector(size_t(kPeriod), float(rank / of * of + part)));
            RankBuffer<bf16> halves(comm, shared, n);
            fill(halves.data(), 0, n, period_of([&](int64_t i) { return to_bf16(term(rank, i)); }));
            comm.wait(comm.reduce_scatter(halves.data(), shard));
            require_equal("reduce_scatter of bf16", halves.data(), begin, end,
                          period_of([&](int64_t i) { return to_bf16(sum_over_hosts(hosts, as_bf16, i)); }));
        }
}
TEST_CASE("processes share the shards of groups", "[host_comm]") {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"0000", "2"}, {"000", "1"}, {"0011", "2"}, {"000111", "3"}};
    for (const auto& [hosts, shards] : cases)
        if (!kSanitized || hosts.size() == 4) run_ranks("rank: groups", hosts, {"SHARDS=" + shards});
}

TEST_CASE("rank: a group on two hosts", "[.rank]") {
    RankProcess self;
    Cpu cpu(1);
    HostComm comm(self.ranks, cpu, options_of(self));
    CHECK(
        error_of([&] { comm.split(2); }) ==
        "2: --shard-ranks 2: ranks 0 to 1 share the optimizer's state, and rank 1 is on another host than rank 0: give "
        "a number that divides the ranks of each host, and start those of a host one after the other");
}
TEST_CASE("a group on two hosts is refused on all ranks", "[host_comm]") {
    run_ranks("rank: a group on two hosts", "0101");
}

// More than one piece of 8 MB between hosts.
TEST_CASE("rank: large buffers", "[.rank]") {
    RankProcess self;
    Cpu cpu(1);
    HostComm comm(self.ranks, cpu, options_of(self));
    check_collectives(comm, layout(), true, (9 << 20) / int64_t(sizeof(float)) + 5);
}
TEST_CASE("what goes between hosts goes in pieces", "[host_comm]") {
    run_ranks("rank: large buffers", "010");
    if (!kSanitized) run_ranks("rank: large buffers", "012");
}

TEST_CASE("rank: local_comm's bits", "[.rank]") {
    RankProcess self;
    const int rank = self.ranks.rank, world_size = self.ranks.world_size;
    const int64_t shard = 4099, n = world_size * shard;
    Floats scattered(static_cast<size_t>(n)), reduced;
    for (int64_t i = 0; i < n; i++) scattered[size_t(i)] = term(rank, i);
    std::vector<bf16> halves(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) halves[size_t(i)] = to_bf16(term(rank, i));
    reduced = scattered;

    LocalGroup group(world_size);
    Floats want_scattered, want_reduced;
    std::vector<bf16> want_halves;
    group.run([&](int r) {
        Cpu cpu(1);
        LocalComm<Cpu> comm(group, r, cpu);
        Floats mine(static_cast<size_t>(n));
        std::vector<bf16> half(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; i++) {
            mine[size_t(i)] = term(r, i);
            half[size_t(i)] = to_bf16(mine[size_t(i)]);
        }
        Floats sum = mine;
        comm.reduce_scatter(mine.data(), shard);
        comm.all_reduce(sum.data(), n);
        comm.reduce_scatter(half.data(), shard);
        if (r != rank) return;
        want_scattered = mine;
        want_reduced = sum;
        want_halves = half;
    });

    Cpu cpu(2);
    HostComm comm(self.ranks, cpu, options_of(self));
    comm.reduce_scatter(scattered.data(), shard);
    comm.all_reduce(reduced.data(), n);
    comm.reduce_scatter(halves.data(), shard);
    const auto same_bits = [](const auto& got, const auto& want, int64_t begin, int64_t end) {
        return std::memcmp(&got[size_t(begin)], &want[size_t(begin)], size_t(end - begin) * sizeof(got[0])) == 0;
    };
    const int64_t begin = rank * shard, end = begin + shard;
    CHECK(same_bits(scattered, want_scattered, begin, end));
    CHECK(same_bits(reduced, want_reduced, 0, n));
    if (layout().find('1') == std::string::npos) CHECK(same_bits(halves, want_halves, begin, end));
}
TEST_CASE("sums have LocalComm's bits", "[host_comm]") {
    for (const std::string hosts : {"00", "000", "0000", "000000", "0011", "01"})
        if (!kSanitized || hosts == "000" || hosts == "0011") run_ranks("rank: local_comm's bits", hosts);
}

TEST_CASE("rank: costs", "[.rank]") {
    RankProcess self;
    Cpu cpu(1);
    auto network = std::make_unique<SocketNetwork>(self.ranks);
    const SocketNetwork& wire = *network;
    HostCommOptions options = options_of(self);
    options.network = std::move(network);
    HostComm comm(self.ranks, cpu, std::move(options));
    const bool hosts = layout().find('1') != std::string::npos;
    CHECK(comm.describe() == (hosts ? "shared memory and sockets, 4 ranks on 2 hosts" : "shared memory, 4 ranks"));
    const int64_t shard = 5000;
    float* data = static_cast<float*>(comm.allocate(4 * shard * sizeof(float)));
    CHECK(comm.take_times().sent_bytes == 0);
    comm.reduce_scatter(data, shard);
    CHECK(wire.sent_bytes == (hosts && self.ranks.rank % 2 == 0 ? 2 * shard * 4 : 0));  // half of the buffer
    const CommTimes scatter = comm.take_times();
    CHECK(scatter.sent_bytes == 3 * shard * 4);
    CHECK(scatter.busy_ms > 0);
    CHECK(scatter.exposed_ms == scatter.busy_ms);
    comm.all_gather(data, shard * sizeof(float));
    CHECK(wire.sent_bytes == (hosts && self.ranks.rank % 2 == 0 ? 4 * shard * 4 : 0));
    CHECK(comm.take_times().sent_bytes == 3 * shard * 4);
    comm.all_reduce(data, 4 * shard);
    CHECK(wire.sent_bytes == (hosts && self.ranks.rank % 2 == 0 ? 8 * shard * 4 : 0));
    CHECK(comm.take_times().sent_bytes == 6 * shard * 4);
    const CommTimes nothing = comm.take_times();
    CHECK(nothing.busy_ms == 0);
    CHECK(nothing.sent_bytes == 0);
}
TEST_CASE("what collectives cost: half of a buffer to each of two hosts", "[host_comm]") {
    run_ranks("rank: costs", "0000");
    run_ranks("rank: costs", "0011");
}

TEST_CASE("rank: another call", "[.rank]") {
    RankProcess self;
    Cpu cpu(1);
    HostComm comm(self.ranks, cpu, options_of(self));
    float* data = static_cast<float*>(comm.allocate(4096));
    const std::string how = std::getenv("HOW");
    const bool odd = self.ranks.rank == 1;
    const std::string error = error_of([&] {
        if (how == "name" && odd)
            comm.broadcast(data, 12, 0);
        else if (how == "place")
            comm.all_reduce(data + (odd ? 2 : 0), 3);
        else
            comm.all_reduce(data, how == "size" && odd ? 4 : 3);
    });
    const std::string mine = how == "name" && odd ? "broadcast" : "all-reduce";
    CHECK(contains(error, format("1: internal: rank %d calls %s of %d bytes", self.ranks.rank, mine.c_str(),
                                 how == "size" && odd ? 16 : 12)));
    self.ranks.barrier();
}
TEST_CASE("ranks that make different calls are told", "[host_comm]") {
    for (const std::string how : {"name", "place", "size"}) run_ranks("rank: another call", "00", {"HOW=" + how});
}

// ---- ranks that do not come ------------------------------------------------------------------------------------

TEST_CASE("rank: endless", "[.rank]") {
    RankProcess self(std::atof(std::getenv("TIMEOUT")));
    Cpu cpu(1);
    HostComm comm(self.ranks, cpu, options_of(self));
    self.ranks.watching->set_step(17);
    float* data = static_cast<float*>(comm.allocate(1 << 20));
    comm.all_reduce(data, 1 << 18);
    const std::string how = std::getenv("HOW");
    const bool victim = self.ranks.rank == std::atoi(std::getenv("VICTIM"));
    if (victim && how == "dies before") raise(SIGKILL);
    if (victim && how == "sleeps") pause();
    if (victim && how == "throws") throw Error(kExitUsage, "no space");
    std::thread killer;
    if (victim && how == "dies in") killer = std::thread([] { usleep(100'000), raise(SIGKILL); });
    while (true) comm.all_reduce(data, 1 << 18);
}

static void check_loss(const std::string& hosts, int victim, const std::string& how, double timeout_s,
                       const std::string& message) {
    INFO(hosts << ", rank " << victim << " " << how);
    RankProcesses processes(
        int(hosts.size()), "rank: endless",
        {"HOSTS=" + hosts, "VICTIM=" + std::to_string(victim), "HOW=" + how, format("TIMEOUT=%g", timeout_s)});
    const std::string who = format("rank %d (pid %d)", victim, int(processes.pids[size_t(victim)]));
    const auto start = std::chrono::steady_clock::now();
    const std::vector<Finished> finished =
        processes.finish(timeout_s < 60 ? timeout_s + 10 : 20, how == "sleeps" ? victim : -1);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (how == "sleeps")
        CHECK(seconds > timeout_s);
    else
        CHECK(seconds < 15);
    bool said = false;
    for (int rank = 0; rank < int(hosts.size()); rank++) {
        if (rank == victim) continue;
        INFO("rank " << rank << ":\n" << finished[size_t(rank)].err);
        CHECK(finished[size_t(rank)].exit_code == 3);
        CHECK(contains(finished[size_t(rank)].err, format("error: rank %d: ", rank)));
        CHECK(contains(finished[size_t(rank)].err, "the all-reduce in step 17"));
        said |= contains(finished[size_t(rank)].err, message == " has died" ? who + message : message);
        if (message == " has died") CHECK(contains(finished[size_t(rank)].err, " has died"));
    }
    INFO("rank 0: " << finished[0].err << "last: " << finished.back().err);
    CHECK(said);
}

TEST_CASE("a rank that dies ends the others at once", "[host_comm]") {
    for (const std::string how : {"dies before", "dies in", "throws"})
        for (const int victim : {0, 2}) check_loss("000", victim, how, 600, " has died");
    check_loss("00", 1, "dies in", 600, " has died");
}

static const std::string kLate = "the all-reduce in step 17 was not over after 1 s; not there yet: ";

TEST_CASE("a rank that does not come ends the others when the time is over", "[host_comm]") {
    check_loss("000", 0, "sleeps", 1, kLate + "rank 0 (pid ");
    check_loss("00", 1, "sleeps", 1, kLate + "rank 1 (pid ");
}

TEST_CASE("ranks on other hosts are missed when the time is over", "[host_comm]") {
    check_loss("0011", 2, "dies before", 1, kLate + "rank 2 on another host");
    check_loss("0011", 1, "sleeps", 1, kLate + "rank 1 (pid ");
}

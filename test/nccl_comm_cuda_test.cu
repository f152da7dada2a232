// NcclComm: on a GPU with the real library and one rank; on the emulator with a double of it
// (dev/emulator/nccl_double.h) and several, and everything that may go wrong.
#include "llmc/comm/nccl_comm.h"
#include <chrono>
#include <filesystem>
#include <thread>
#include "llmc/comm/watchdog.h"  // Watchdog
#include "test/comm_testing.h"   // outcomes, cpu_outcomes
#ifdef ANVIL_EMULATED
#include "dev/emulator/include/nccl.h"  // ncclResult_t
#include "dev/emulator/nccl_double.h"
#endif

TEST_CASE("one rank of NCCL gets what it gave", "[nccl_comm]" ON_DEVICE) {
    if (nccl_version().empty()) {
        WARN("this build has no NCCL");
        return;
    }
    const Order order = GENERATE(Order::overlapped, Order::serial);
    LocalGroup group(1);
    std::vector<std::vector<std::string>> got(1);
    group.run([&](int rank) {
        Cuda cuda;
        LocalRanks ranks(group, rank);
        const auto comm = make_nccl_comm(ranks, cuda, order, 60);
        CHECK(comm->describe() == "NCCL " + nccl_version() + ", 1 ranks");
        got[0] = outcomes<Cuda>(cuda, *comm, ranks, Terms::uneven, 0);
        cuda.synchronize();
        const CommTimes times = comm->take_times();
        CHECK(times.busy_ms > 0);
        CHECK(times.sent_bytes == 0);
    });
    check_outcomes(got, cpu_outcomes(1, Terms::uneven));
}

#ifdef ANVIL_EMULATED
namespace {

// A fresh double; at the end everything must have been given back, and nothing misused.
struct Double {
    LocalGroup group;
    explicit Double(int world_size) : group(world_size) {
        emulator::nccl = {};
        emulator::nccl.group = &group;
    }
    ~Double() {
        CHECK(emulator::nccl.live() == 0);
        CHECK(emulator::nccl.misuse == "");
        emulator::nccl = {};
    }
    // body(cuda, comm, ranks) on every rank; what the first error says.
    template <class Body>
    std::string run(double timeout_s, Body&& body) {
        return error_of([&] {
            group.run([&](int rank) {
                Cuda cuda;
                LocalRanks ranks(group, rank);
                const auto comm = make_nccl_comm(ranks, cuda, Order::overlapped, timeout_s);
                body(cuda, *comm, ranks);
            });
        });
    }
};

}  // namespace

TEST_CASE("ranks of NCCL get what virtual ranks get", "[nccl_comm]" ON_DEVICE) {
    const bool lazy = GENERATE(false, true);
    const Order order = GENERATE(Order::overlapped, Order::serial);
    INFO("lazy streams: " << lazy << ", overlapped: " << (order == Order::overlapped));
    for (const int world_size : {2, 4}) {
        const Streams streams(lazy);
        Double library(world_size);
        std::vector<std::vector<std::string>> got(static_cast<size_t>(world_size));
        library.group.run([&](int rank) {
            Cuda cuda;
            LocalRanks ranks(library.group, rank);
            const auto comm = make_nccl_comm(ranks, cuda, order, 0);
            CHECK(comm->describe() == format("NCCL 2.28.9, %d ranks", world_size));
            got[size_t(rank)] = outcomes<Cuda>(cuda, *comm, ranks, Terms::whole, 0);
            const double ring = double(world_size - 1) / world_size;
            const int64_t n = world_size * kShard;
            cuda.synchronize();
            CHECK(comm->take_times().sent_bytes ==
                  Approx(2 * ring * (double(n) * (4 + 2 + 4 + 4 + 4) + 2 * (double(n - 1) * 4 + 3 * 8))));
        });
        check_outcomes(got, cpu_outcomes(world_size, Terms::whole));
        CHECK(emulator::nccl.collectives == 14 * world_size);
        CHECK(emulator::nccl.aborted == 0);
    }
}

TEST_CASE("NCCL's memory is used where it may be, and is NaN at first", "[nccl_comm]" ON_DEVICE) {
    Double library(1);
    const auto allocate = [&](int buffers, int registrations) {
        CHECK(library.run(0, [&](Cuda& cuda, Comm<Cuda>& comm, Ranks&) {
            auto* data = static_cast<float*>(comm.allocate(12));
            void* nothing = comm.allocate(0);
            CHECK(emulator::nccl.buffers == buffers);
            CHECK(emulator::nccl.registrations == registrations);
            Floats values(3);
            copy_to_host(cuda, values.data(), data, 3);
            CHECK(all_nan(values));
            comm.release(nothing, 0);
            comm.release(data, 12);
        }) == "");
        CHECK(emulator::nccl.live() == 0);
    };
    allocate(2, 2);
    emulator::nccl.refuses_registration = true;
    allocate(2, 0);
    emulator::nccl.refuses_memory = true;
    allocate(0, 0);
}

TEST_CASE("NCCL's errors say what failed and what to do", "[nccl_comm]" ON_DEVICE) {
    const auto init_error = [](ncclResult_t status, const std::string& last) {
        Double library(2);
        emulator::nccl.init_status = status;
        emulator::nccl.last_error = last;
        const std::string error = library.run(0, [](Cuda&, Comm<Cuda>&, Ranks&) { FAIL("there is no communicator"); });
        CHECK(emulator::nccl.aborted == 2);
        return error;
    };
    CHECK(init_error(ncclInvalidUsage, "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000") ==
          "2: NCCL 2.28.9, ncclCommInitRankConfig: invalid usage (Duplicate GPU detected : rank 0 and rank 1 both on "
          "CUDA device 1000). Each rank needs a GPU of its own: start no more ranks on a host than it has GPUs");
    CHECK(contains(init_error(ncclSystemError, "socketStartConnect: Connect to 10.0.0.1 failed"),
                   "If the hosts cannot reach each other, NCCL_SOCKET_IFNAME names the network interface to use"));
    CHECK(contains(init_error(ncclUnhandledCudaError, "CUDA driver version is insufficient for CUDA runtime version"),
                   "NCCL needs a GPU and a driver on every host"));
    CHECK(init_error(ncclInternalError, "").substr(0, 2) == "1:");
}

TEST_CASE("a communicator that does not come to be is given up in time", "[nccl_comm]" ON_DEVICE) {
    Double library(2);
    emulator::nccl.init_hangs = true;
    const auto begin = std::chrono::steady_clock::now();
    const std::string error = library.run(0.05, [](Cuda&, Comm<Cuda>&, Ranks&) { FAIL("there is no communicator"); });
    CHECK(contains(error,
                   "3: NCCL 2.28.9, ncclCommInitRankConfig: not done after 0 s. A rank is missing or cannot be "
                   "reached: NCCL_SOCKET_IFNAME"));
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
    emulator::nccl.init_hangs = false;
}

TEST_CASE("when another rank of NCCL fails, this one ends and waits for nobody", "[nccl_comm]" ON_DEVICE) {
    Double library(2);
    emulator::nccl.fails_at = 1;
    const std::string error = library.run(0, [](Cuda& cuda, Comm<Cuda>& comm, Ranks&) {
        auto* data = static_cast<float*>(cuda.allocate(64));
        struct Release {  // memory of the device's, which outlives the communicator
            Cuda& cuda;
            void* data;
            ~Release() { cuda.release(data, 64); }
        } release{cuda, data};
        for (int i = 0; i < 2; i++) comm.wait(comm.reduce_scatter(data, 8));
    });
    CHECK(error ==
          "3: NCCL 2.28.9, ncclReduceScatter: remote error (a peer has closed its connection). Another rank "
          "has failed: what it says tells why");
    CHECK(emulator::nccl.aborted == 2);
}

TEST_CASE("the double of NCCL finds other calls on other ranks", "[nccl_comm]" ON_DEVICE) {
    LocalGroup group(2);
    emulator::nccl = {};
    emulator::nccl.group = &group;
    CHECK(contains(error_of([&] {
                       group.run([&](int rank) {
                           Cuda cuda;
                           LocalRanks ranks(group, rank);
                           const auto comm = make_nccl_comm(ranks, cuda, Order::overlapped, 0);
                           const OnDevice<float> data(cuda, 8);
                           if (rank == 0) comm->all_reduce(data.data, 8);
                           if (rank == 1) comm->reduce_scatter(data.data, 4);
                       });
                   }),
                   "while another rank calls"));
    CHECK(emulator::nccl.misuse != "");
    emulator::nccl = {};
}

// ---- what ends the process: in one of its own
// ------------------------------------------------------------------------
struct WatchedRank : OneRank {
    Watchdog dog;
    explicit WatchedRank(double timeout_s) : dog(0, timeout_s) {}
    Watchdog* watchdog() override { return &dog; }
};
TEST_CASE("a collective hangs", "[.nccl_hangs]") {
    const Streams streams(false);
    emulator::nccl.hangs_at = 1;
    Cuda cuda;
    WatchedRank ranks(0.3);
    const auto comm = make_nccl_comm(ranks, cuda, Order::overlapped, 60);
    ranks.dog.add_hook([](const std::string&) { std::fprintf(stderr, "%d aborted\n", emulator::nccl.aborted); });
    const OnDevice<float> data(cuda, 8);
    comm->set_step(5);
    for (int i = 0; i < 2; i++) comm->wait(comm->all_reduce(data.data, 8));
    std::this_thread::sleep_for(std::chrono::seconds(20));  // on a GPU: cuda.synchronize(), without end
}
TEST_CASE("another rank fails meanwhile", "[.nccl_hangs]") {
    Cuda cuda;
    WatchedRank ranks(60);
    const auto comm = make_nccl_comm(ranks, cuda, Order::overlapped, 60);
    emulator::nccl.last_error = "a peer has closed its connection";
    emulator::nccl.fails_later = true;
    std::this_thread::sleep_for(std::chrono::seconds(20));
}
TEST_CASE("a collective of NCCL that hangs ends the process, with its name", "[nccl_comm]" ON_DEVICE) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe");
    const Finished hung = run("'" + program + "' 'a collective hangs'");
    CHECK(hung.exit_code == kExitRank);
    CHECK(hung.err == "error: rank 0: all_reduce (collective 1, in step 5) has not finished for 0 s\n1 aborted\n");
    const Finished failed = run("'" + program + "' 'another rank fails meanwhile'");
    CHECK(failed.exit_code == kExitRank);
    CHECK(contains(failed.err,
                   "error: rank 0: NCCL 2.28.9, asked in the background: remote error (a peer has "
                   "closed its connection). Another rank has failed"));
}
#endif

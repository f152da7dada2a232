// NcclComm: on a GPU with the real library and one rank; on the emulator with a fake of it
// (dev/emulator/fake_nccl.h) and several, and everything that may go wrong.
#include "llmc/comm/gpu/nccl_comm.h"
#include <chrono>
#include <thread>
#include "llmc/comm/watchdog.h"      // Watchdog
#include "test/comm/comm_testing.h"  // outcomes, cpu_outcomes
#ifdef ANVIL_EMULATED
#include "dev/emulator/emulator.h"
#include "dev/emulator/include/nccl.h"  // ncclResult_t
#include "dev/emulator/fake_nccl.h"
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
        const auto comm = make_nccl_comm(ranks, cuda, order);
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

// A fresh fake; at the end everything must have been given back, and nothing misused.
struct FakeNccl {
    LocalGroup group;
    explicit FakeNccl(int world_size) : group(world_size) {
        emulator::nccl = {};
        emulator::nccl.group = &group;
    }
    ~FakeNccl() {
        CHECK(emulator::nccl.live() == 0);
        CHECK(emulator::nccl.misuse == "");
        emulator::nccl = {};
    }
    // Runs body(cuda, comm, ranks) on every rank, and returns the message of the first error.
    template <class Body>
    std::string run(Body&& body) {
        return error_of([&] {
            group.run([&](int rank) {
                Cuda cuda;
                LocalRanks ranks(group, rank);
                const auto comm = make_nccl_comm(ranks, cuda, Order::overlapped);
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
    for (const int world_size : {2, 3, 4}) {
        const Streams streams(lazy);
        FakeNccl library(world_size);
        std::vector<std::vector<std::string>> got(static_cast<size_t>(world_size));
        library.group.run([&](int rank) {
            Cuda cuda;
            LocalRanks ranks(library.group, rank);
            const auto comm = make_nccl_comm(ranks, cuda, order);
            CHECK(comm->describe() == format("NCCL 2.28.9, %d ranks", world_size));
            got[size_t(rank)] = outcomes<Cuda>(cuda, *comm, ranks, Terms::whole, 0);
            const double ring = double(world_size - 1) / world_size;
            const int64_t n = world_size * kShard;
            cuda.synchronize();
            CHECK(comm->take_times().sent_bytes ==
                  Approx(2 * ring * (double(n) * (4 + 2 + 4 + 4 + 4 + 4 + 2) + 2 * (double(n - 1) * 4 + 3 * 8))));
        });
        check_outcomes(got, cpu_outcomes(world_size, Terms::whole));
        CHECK(emulator::nccl.collectives == 18 * world_size);
        CHECK(emulator::nccl.aborted == 0);
    }
}

TEST_CASE("sums by messages have the order of ranks, which NCCL's own have not", "[nccl_comm]" ON_DEVICE) {
    for (const int world_size : {3, 8}) {
        FakeNccl library(world_size);
        std::vector<std::vector<std::string>> got(static_cast<size_t>(world_size));
        library.group.run([&](int rank) {
            Cuda cuda;
            LocalRanks ranks(library.group, rank);
            const auto comm = make_nccl_comm(ranks, cuda, Order::overlapped);
            CHECK(comm->sums_in_order());  // all on one host
            got[size_t(rank)] = outcomes<Cuda>(cuda, *comm, ranks, Terms::uneven, 0);
        });
        const std::vector<std::vector<std::string>> want = cpu_outcomes(world_size, Terms::uneven);
        for (size_t rank = 0; rank < got.size(); rank++)
            for (size_t i = 0; i < std::size(kCollectives); i++) {
                const std::string name = kCollectives[i];
                INFO(name << ", rank " << rank << " of " << world_size);
                if (name.starts_with("all_to_all_sum")) CHECK((got[rank][i] == want[rank][i]));
                if (name == "reduce_scatter") CHECK((got[rank][i] != want[rank][i]));
            }
    }
}

TEST_CASE("groups of NCCL's ranks get what those of virtual ranks get", "[nccl_comm]" ON_DEVICE) {
    for (const auto& [world_size, shards] : kSplits) {
        INFO(world_size << " ranks, " << shards << " shards");
        const Streams streams(true);
        const auto want = cpu_split_outcomes(world_size, Terms::whole, shards);
        FakeNccl library(world_size);
        CHECK(library.run([&, of = shards](Cuda& cuda, Comm<Cuda>& comm, Ranks& ranks) {
            const int rank = ranks.rank;
            const auto got = split_outcomes<Cuda>(cuda, comm, static_cast<LocalRanks&>(ranks), Terms::whole, of);
            for (size_t i = 0; i < got.size(); i++) CHECK((got[i] == want[size_t(rank)][i]));
            // In the group, and twice between the owners of a shard.
            const double n = of, owners = comm.world_size / of, bytes = 100;
            cuda.synchronize();
            const double inside = (n - 1) / n * n * bytes, between = 2 * (owners - 1) / owners * bytes;
            const double all = 2 * double(comm.world_size - 1) / comm.world_size * n * bytes * 4;
            CHECK(comm.take_times().sent_bytes == Approx(2 * ((inside + between) * (4 + 2) + inside * 4 + all)));
        }) == "");
        CHECK(emulator::nccl.aborted == 0);
    }
    // An error ends the groups' communicators, too.
    FakeNccl library(4);
    emulator::nccl.faulty_rank = 1, emulator::nccl.fails_at = 1;
    const std::string error = library.run([&](Cuda& cuda, Comm<Cuda>& comm, Ranks&) {
        comm.split(2);
        Arena arena(comm, "gradients", 256);
        comm.wait(comm.reduce_scatter(arena.take<float>(2 * 8), 8));
        comm.wait(comm.reduce_scatter(reinterpret_cast<float*>(arena.base), 8));
        cuda.synchronize();
    });
    CHECK(contains(error, "remote error"));
    CHECK(emulator::nccl.aborted > 0);
}

TEST_CASE("NCCL's memory is used where it may be, and is NaN at first", "[nccl_comm]" ON_DEVICE) {
    FakeNccl library(1);
    const auto allocate = [&](int buffers, int registrations) {
        CHECK(library.run([&](Cuda& cuda, Comm<Cuda>& comm, Ranks&) {
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

TEST_CASE("what NCCL refuses one rank no rank uses", "[nccl_comm]" ON_DEVICE) {
    const bool memory = GENERATE(false, true);
    FakeNccl library(3);
    emulator::nccl.faulty_rank = 1;
    (memory ? emulator::nccl.refuses_memory : emulator::nccl.refuses_registration) = true;
    CHECK(library.run([&](Cuda& cuda, Comm<Cuda>& comm, Ranks& ranks) {
        const size_t bytes = 128, before = cuda.used_bytes;
        Arena arena(comm, "gradients", bytes);
        ranks.barrier();
        CHECK(emulator::nccl.buffers == (memory ? 0 : 3));
        CHECK(emulator::nccl.registrations == 0);
        CHECK(cuda.used_bytes == before + bytes);
        comm.wait(comm.reduce_scatter(arena.take<float>(3 * 8), 8));
        cuda.synchronize();
        ranks.barrier();
    }) == "");
}

TEST_CASE("what NCCL takes of the GPU's memory is known after a warm-up", "[nccl_comm]" ON_DEVICE) {
    FakeNccl library(1);
    emulator::nccl.init_bytes = 5 << 20, emulator::nccl.connect_bytes = 1 << 20;
    CHECK(library.run([](Cuda& cuda, Comm<Cuda>& comm, Ranks&) {
        CHECK(comm.taken_bytes() == 0);
        comm.warm_up(true);
        CHECK(comm.taken_bytes() == 9 << 20);  // four kinds of collectives
        CHECK(emulator::nccl.buffers == 0);
        CHECK(cuda.used_bytes == 0);
        const CommTimes times = comm.take_times();
        CHECK(times.busy_ms == 0);
        const OnDevice<float> data(cuda, 64);
        const size_t free = cuda.free_bytes();
        comm.wait(comm.all_reduce(data.data, 64));
        comm.wait(comm.all_reduce(reinterpret_cast<uint64_t*>(data.data), 32));
        comm.wait(comm.reduce_scatter(data.data, 64));
        comm.wait(comm.all_gather(data.data, 64));
        comm.wait(comm.broadcast(data.data, 64, 0));
        cuda.synchronize();
        CHECK(cuda.free_bytes() == free);  // nothing is taken any more
    }) == "");
}

TEST_CASE("NCCL's errors say what failed and what to do", "[nccl_comm]" ON_DEVICE) {
    const auto init_error = [](ncclResult_t status, const std::string& last, int rank = -1) {
        FakeNccl library(2);
        emulator::nccl.init_status = status;
        emulator::nccl.last_error = last;
        emulator::nccl.faulty_rank = rank;
        return library.run([](Cuda&, Comm<Cuda>&, Ranks& ranks) {
            ranks.barrier();
            FAIL("there is no communicator");
        });
    };
    const std::string duplicate = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000";
    for (const int rank : {-1, 1})
        CHECK(init_error(ncclInvalidUsage, duplicate, rank) ==
              "2: NCCL 2.28.9, ncclCommInitRankConfig: invalid usage (" + duplicate +
                  "). Each rank needs a GPU of its own: start no more ranks on a host than it has GPUs");
    CHECK(contains(init_error(ncclSystemError, "socketStartConnect: Connect to 10.0.0.1 failed"),
                   "If the hosts cannot reach each other, NCCL_SOCKET_IFNAME names the network interface to use"));
    CHECK(contains(init_error(ncclUnhandledCudaError, "CUDA driver version is insufficient for CUDA runtime version"),
                   "NCCL needs a GPU and a driver on every host"));
    CHECK(init_error(ncclInternalError, "").substr(0, 2) == "1:");
}

TEST_CASE("a library of another major version than its header is named", "[nccl_comm]" ON_DEVICE) {
    const auto error_with = [](int version) {
        FakeNccl library(2);
        emulator::nccl.version = version;
        return library.run([](Cuda&, Comm<Cuda>&, Ranks&) {});
    };
    CHECK(contains(error_with(30100),
                   "2: NCCL 3.1.0 is loaded, and this program was built for 2.28.9: pip install "
                   "'nvidia-nccl-cu13>=2.28,<3'"));
    CHECK(error_with(22705) == "");
    CHECK(error_with(23203) == "");
}

TEST_CASE("where NVLink switches may add, the start of a run says so", "[nccl_comm]" ON_DEVICE) {
    const auto may = [](int local_size, bool has_multicast, const char* name = "", const char* value = "") {
        return sums_may_differ(local_size, has_multicast,
                               [=](const char* asked) { return std::string(asked) == name ? value : nullptr; });
    };
    CHECK(may(8, true));
    CHECK(may(3, true));
    CHECK_FALSE(may(2, true));  // NCCL uses NVLS from three ranks on
    CHECK_FALSE(may(8, false));
    CHECK_FALSE(may(8, true, "NCCL_ALGO", "Ring"));
    CHECK_FALSE(may(8, true, "NCCL_NVLS_ENABLE", "0"));
    CHECK(may(8, true, "NCCL_NVLS_ENABLE", "1"));
}

// The memory is the communicator's, as that of a model is, so it is given back while the error unwinds the stack.
TEST_CASE("when another rank of NCCL fails, this one ends with its error and waits for nobody",
          "[nccl_comm]" ON_DEVICE) {
    const int faulty = GENERATE(-1, 1);
    FakeNccl library(2);
    emulator::nccl.faulty_rank = faulty;
    emulator::nccl.fails_at = 1;
    const std::string error = library.run([](Cuda&, Comm<Cuda>& comm, Ranks&) {
        Arena weights(comm, "weights", 128), gradients(comm, "gradients", 128);
        auto* data = gradients.take<float>(16);
        for (int i = 0; i < 2; i++) comm.wait(comm.reduce_scatter(data, 8));
    });
    CHECK(error ==
          "3: NCCL 2.28.9, ncclReduceScatter: remote error (a peer has closed its connection). Another rank "
          "has failed: what it says tells why");
    CHECK(emulator::nccl.aborted == 2);
}

TEST_CASE("an error of this rank's own is the one that is reported, whatever NCCL comes to", "[nccl_comm]" ON_DEVICE) {
    const bool broken = GENERATE(false, true), hangs = GENERATE(false, true);
    FakeNccl library(2);
    if (hangs) emulator::nccl.hangs_at = 0;
    const std::string error = library.run([&](Cuda&, Comm<Cuda>& comm, Ranks& ranks) {
        Arena gradients(comm, "gradients", 128);
        comm.wait(comm.reduce_scatter(gradients.take<float>(16), 8));
        ranks.barrier();
        emulator::nccl.fails_later = broken;
        throw Error(kExitUsage, "no space is left on the disk");
    });
    CHECK(error == "2: no space is left on the disk");
    CHECK(emulator::nccl.aborted == 2);
}

TEST_CASE("the fake NCCL finds other calls on other ranks", "[nccl_comm]" ON_DEVICE) {
    LocalGroup group(2);
    emulator::nccl = {};
    emulator::nccl.group = &group;
    CHECK(contains(error_of([&] {
                       group.run([&](int rank) {
                           Cuda cuda;
                           LocalRanks ranks(group, rank);
                           const auto comm = make_nccl_comm(ranks, cuda, Order::overlapped);
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

TEST_CASE("the thread that watches keeps out of NCCL while another is in it", "[nccl_comm]" ON_DEVICE) {
    emulator::nccl = {};
    emulator::nccl.slow_call_ms = 250;  // two looks
    {
        Cuda cuda;
        WatchedRank ranks(60);
        const auto comm = make_nccl_comm(ranks, cuda, Order::overlapped);
        Arena arena(*comm, "sums", 128);
        auto* data = arena.take<float>(16);
        for (int i = 0; i < 3; i++) comm->wait(comm->all_reduce(data, 16));
    }
    CHECK(emulator::nccl.misuse == "");
    CHECK(emulator::nccl.live() == 0);
    emulator::nccl = {};
}

TEST_CASE("NCCL does not connect", "[.nccl_hangs]") {
    emulator::nccl.init_hangs = true;
    Cuda cuda;
    WatchedRank ranks(0.3);
    make_nccl_comm(ranks, cuda, Order::overlapped);
}
TEST_CASE("CUDA blocks whoever asks it", "[.nccl_hangs]") {
    const Streams streams(false);
    Cuda cuda;
    WatchedRank ranks(0.5);
    const auto comm = make_nccl_comm(ranks, cuda, Order::overlapped);
    const OnDevice<float> data(cuda, 8);
    emulator::queries_hang = true;
    comm->wait(comm->all_reduce(data.data, 8));
    std::this_thread::sleep_for(std::chrono::seconds(20));
}
TEST_CASE("a rank without memory for NCCL", "[.nccl_hangs]") {
    FakeNccl library(2);
    emulator::nccl.faulty_rank = 1;
    emulator::nccl.refuses_memory = true;
    library.run([](Cuda&, Comm<Cuda>& comm, Ranks&) { Arena weights(comm, "weights", 128), more(comm, "more", 128); });
}
TEST_CASE("a collective hangs", "[.nccl_hangs]") {
    const Streams streams(false);
    emulator::nccl.hangs_at = 1;
    Cuda cuda;
    WatchedRank ranks(0.3);
    const auto comm = make_nccl_comm(ranks, cuda, Order::overlapped);
    ranks.dog.add_hook([](const std::string&) { std::fprintf(stderr, "%d aborted\n", emulator::nccl.aborted); });
    const OnDevice<float> data(cuda, 8);
    comm->set_step(5);
    for (int i = 0; i < 2; i++) comm->wait(comm->all_reduce(data.data, 8));
    std::this_thread::sleep_for(std::chrono::seconds(20));  // on a GPU: cuda.synchronize(), without end
}
TEST_CASE("another rank fails meanwhile", "[.nccl_hangs]") {
    Cuda cuda;
    WatchedRank ranks(60);
    const auto comm = make_nccl_comm(ranks, cuda, Order::overlapped);
    emulator::nccl.last_error = "a peer has closed its connection";
    emulator::nccl.fails_later = true;
    std::this_thread::sleep_for(std::chrono::seconds(20));
}
TEST_CASE("what hangs in NCCL or CUDA ends the process, with its name", "[nccl_comm]" ON_DEVICE) {
    const Finished connecting = run(this_test("NCCL does not connect"));
    CHECK(connecting.exit_code == kExitRank);
    CHECK(contains(connecting.err,
                   "error: rank 0: the connection of the ranks by NCCL (if the hosts cannot reach each "
                   "other, NCCL_SOCKET_IFNAME names the network interface to use; "));
    CHECK(contains(connecting.err, "was not over after 0.3 s"));
    const Finished blocked = run(this_test("CUDA blocks whoever asks it"));
    CHECK(blocked.exit_code == kExitRank);
    CHECK(blocked.err == "error: rank 0: the look at the GPU's collectives was not over after 0.5 s\n");
    const Finished hung = run(this_test("a collective hangs"));
    CHECK(hung.exit_code == kExitRank);
    CHECK(hung.err ==
          "error: rank 0: all_reduce (collective 1, in step 5) has not finished for 0 s: look for a rank that prints "
          "no error\n0 aborted\n");
    const Finished failed = run(this_test("another rank fails meanwhile"));
    CHECK(failed.exit_code == kExitRank);
    CHECK(contains(failed.err,
                   "error: rank 0: NCCL 2.28.9, asked in the background: remote error (a peer has "
                   "closed its connection). Another rank has failed"));
}

TEST_CASE("the rank that NCCL refuses memory is named, once", "[nccl_comm]" ON_DEVICE) {
    CHECK(run(this_test("a rank without memory for NCCL")).err ==
          "warning: NCCL 2.28.9, ncclMemAlloc on rank 1: unhandled cuda error: ordinary memory is used on all ranks\n");
}
#endif

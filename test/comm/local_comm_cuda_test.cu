// Collectives between virtual ranks on one GPU: the bits of LocalComm<Cpu>, with nobody waiting on the host, and what
// CudaComm says of handles, times and collectives that hang.
#include "llmc/comm/gpu/local_cuda.h"
#include <chrono>
#include <thread>
#include "test/comm/comm_testing.h"  // outcomes, cpu_outcomes

TEST_CASE("virtual ranks on a GPU get the bits of those on the CPU", "[local_comm]" ON_DEVICE) {
    const bool lazy = GENERATE(false, true);
    const Order order = GENERATE(Order::overlapped, Order::serial);
    for (const int world_size : {1, 2, 3, 4, 8}) {
        const std::vector<std::vector<std::string>> want = cpu_outcomes(world_size, Terms::uneven);
        for (const int first : {0, world_size - 1}) {
            INFO("lazy streams: " << lazy << ", overlapped: " << (order == Order::overlapped));
            const Streams streams(lazy);
            std::vector<std::vector<std::string>> got(static_cast<size_t>(world_size));
            LocalGroup group(world_size);
            group.run([&](int rank) {
                Cuda cuda;
                LocalRanks ranks(group, rank);
                LocalComm<Cuda> comm(group, rank, cuda, order);
                got[size_t(rank)] = outcomes<Cuda>(cuda, comm, ranks, Terms::uneven, first);
            });
            check_outcomes(got, want);
        }
    }
}

TEST_CASE("groups of virtual ranks on a GPU get the bits of those on the CPU", "[local_comm]" ON_DEVICE) {
    for (const auto& [world_size, shards] : kSplits) {
        INFO(world_size << " ranks, " << shards << " shards");
        const Streams streams(true);
        const auto want = cpu_split_outcomes(world_size, Terms::uneven, shards);
        LocalGroup group(world_size);
        group.run([&, of = shards](int rank) {
            Cuda cuda;
            LocalRanks ranks(group, rank);
            LocalComm<Cuda> comm(group, rank, cuda);
            const auto got = split_outcomes<Cuda>(cuda, comm, ranks, Terms::uneven, of);
            for (size_t i = 0; i < got.size(); i++) CHECK((got[i] == want[size_t(rank)][i]));
        });
    }
}

TEST_CASE("collectives of virtual ranks on a GPU overlap, and handles may be waited for in any order",
          "[local_comm]" ON_DEVICE) {
    const Streams streams(true);
    const int world_size = 3, buckets = 5;
    const int64_t shard = 64, n = world_size * shard;
    LocalGroup group(world_size);
    std::vector<std::vector<Floats>> got(3, std::vector<Floats>(5));
    group.run([&](int rank) {
        Cuda cuda;
        LocalComm<Cuda> comm(group, rank, cuda);
        auto* data = static_cast<float*>(comm.allocate(size_t(buckets * n) * sizeof(float)));
        auto* kept = static_cast<float*>(comm.allocate(size_t(buckets * n) * sizeof(float)));
        std::vector<Work> handles;
        for (int b = 0; b < buckets; b++) {
            fill(cuda, data + b * n, Terms::uneven, rank, b, n);
            handles.push_back(comm.all_reduce(data + b * n, n));
        }
        for (const int b : {2, 0, 1, 4, 3}) {
            comm.wait(handles[size_t(b)]);
            keep(cuda, kept + b * n, data + b * n, n);
            fill_zero(cuda, data + b * n, n);
        }
        comm.wait({});
        for (int b = 0; b < buckets; b++) {
            got[size_t(rank)][size_t(b)].resize(size_t(n));
            copy_to_host(cuda, got[size_t(rank)][size_t(b)].data(), kept + b * n, n);
        }
        comm.release(data, size_t(buckets * n) * sizeof(float));
        comm.release(kept, size_t(buckets * n) * sizeof(float));
    });
    for (int b = 0; b < buckets; b++) {
        Floats want;
        for (int64_t i = 0; i < n; i++)
            want.push_back(sum_tree(world_size, [&](int r) { return term(Terms::uneven, r, b + i); }));
        for (int rank = 0; rank < world_size; rank++) check_equal("bucket", got[size_t(rank)][size_t(b)], want);
    }
}

TEST_CASE("a virtual rank on a GPU that fails ends the others", "[local_comm]" ON_DEVICE) {
    for (const int meetings : {0, 1, 2}) {
        LocalGroup group(3);
        const auto body = [&](int rank) {
            Cuda cuda;
            LocalComm<Cuda> comm(group, rank, cuda);
            const OnDevice<float> data(cuda, Floats(30, 1.f));
            for (int i = 0; i < 3; i++) {
                if (rank == 1 && i == meetings) throw Error(kExitUsage, "no space");
                comm.wait(comm.reduce_scatter(data.data, 10));
            }
        };
        CHECK(error_of([&] { group.run(body); }) == "2: no space");
    }
    LocalGroup group(9);
    CHECK(error_of([&] {
              group.run([&](int rank) {
                  Cuda cuda;
                  LocalComm<Cuda> comm(group, rank, cuda);
                  const OnDevice<float> data(cuda, 9);
                  comm.reduce_scatter(data.data, 1);
              });
          }) == "2: 9 virtual ranks on one GPU: expected at most 8");
}

// ---- CudaComm: what the device's stream and the clock see of it
// -------------------------------------------------------
namespace {

// One rank of `world_size` that adds 1 to a number: the test decides when.
struct Lonely : CudaComm {
    float* number;

    Lonely(Cuda& cuda, Order order, int of = 4) : CudaComm(cuda, order) {
        world_size = of;
        number = static_cast<float*>(cuda.allocate(sizeof(float)));
        fill_zero(cuda, number, 1);
    }
    ~Lonely() override {
        cudaStreamSynchronize(stream_);
        cuda_.release(number, sizeof(float));
    }
    template <class Enqueue>
    Work add(Enqueue&& enqueue, double bytes = 1000);
    Work add(double bytes = 1000) {
        return add([] {}, bytes);
    }
    cudaStream_t comm_stream() const { return stream_; }

    std::string describe() const override { return ""; }
    Work broadcast(void*, size_t, int) override { return {}; }
    Work reduce_scatter(float*, int64_t) override { return {}; }
    Work reduce_scatter(bf16*, int64_t) override { return {}; }
    Work all_to_all_sum(float*, int64_t, float*) override { return {}; }
    Work all_to_all_sum(float*, const bf16*, int64_t) override { return {}; }
    Work all_gather(void*, size_t) override { return {}; }
    Work all_reduce(float*, int64_t) override { return {}; }
    Work all_reduce(uint64_t*, int64_t) override { return {}; }
    void* allocate(size_t bytes) override { return cuda_.allocate(bytes); }
    void release(void* data, size_t bytes) override { cuda_.release(data, bytes); }
};

template <class T>
__global__ void increment_kernel(T* number) {
    *number = *number + 1;
}

template <class Enqueue>
Work Lonely::add(Enqueue&& enqueue, double bytes) {
    return start("increment", 2, bytes, [&] {
        enqueue();
        const OnStream on(cuda_, stream_);
        launch(cuda_, "increment", increment_kernel<float>, 1, 1, 0, number);
    });
}

float value_of(Cuda& cuda, const float* number) {
    float value = 0;
    copy_to_host(cuda, &value, number, 1);
    return value;
}

}  // namespace

TEST_CASE("a collective goes after what came before it, and wait() puts the rest after it", "[local_comm]" ON_DEVICE) {
    const Streams streams(true);
    Cuda cuda;
    Lonely comm(cuda, Order::overlapped);
    for (int i = 0; i < 3; i++) {
        launch(cuda, "increment", increment_kernel<float>, 1, 1, 0, comm.number);
        comm.wait(comm.add());
    }
    const cudaStream_t before = cuda.stream;
    CHECK(value_of(cuda, comm.number) == 6);
    CHECK(cuda.stream == before);
}

TEST_CASE("the times of collectives are counted once, without waiting", "[local_comm]" ON_DEVICE) {
    const Streams streams(GENERATE(false, true));
    Cuda cuda;
    Lonely comm(cuda, Order::overlapped);
    const int64_t many = 2 * CudaComm::kRing + 5;
    for (int64_t i = 0; i < many; i++) {
        const Work work = comm.add(double(i));
        CHECK(work.number == i);
        if (i % 3 == 0) comm.wait(work);
    }
    comm.wait({many - 1});
    comm.wait({0});  // long over
    cuda.synchronize();
    const CommTimes times = comm.take_times(), none = comm.take_times();
    CHECK(times.sent_bytes == double(many * (many - 1) / 2) * 2 * 3 / 4);  // each once
    CHECK(times.busy_ms > 0);
    CHECK(times.exposed_ms > 0);
    CHECK(none.sent_bytes == 0);
    CHECK(none.busy_ms == 0);
    CHECK(none.exposed_ms == 0);
    CHECK(value_of(cuda, comm.number) == float(many));

    comm.add();  // not waited for: how much of it is exposed is not known yet
    CHECK(comm.take_times().sent_bytes == 0);
    CHECK(error_of([&] { comm.wait({many + 1}); }).substr(0, 2) == "1:");
}

TEST_CASE("in serial order nothing is left to wait for", "[local_comm]" ON_DEVICE) {
    const Streams streams(true);
    Cuda cuda;
    Lonely comm(cuda, Order::serial);
    for (int i = 1; i <= 3; i++) {
        comm.add();
        CHECK(cudaStreamQuery(comm.comm_stream()) == cudaSuccess);
        CHECK(value_of(cuda, comm.number) == float(i));  // without wait()
    }
    CHECK(comm.take_times().sent_bytes == 3 * 1500);
}

#ifdef ANVIL_EMULATED
TEST_CASE("a collective that hangs is found, with its name and step", "[local_comm]" ON_DEVICE) {
    const Streams streams(false);
    Cuda cuda;
    Lonely comm(cuda, Order::overlapped);
    const auto sleep_ms = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
    CHECK(comm.overdue(0) == "");
    comm.wait(comm.add());
    CHECK(comm.overdue(0) == "");

    // The host is ahead: not under way, however long it takes.
    emulator::stall(cuda.stream, true);
    comm.add();
    for (int i = 0; i < 3; i++) {
        CHECK(comm.overdue(0) == "");
        sleep_ms(2);
    }
    emulator::stall(cuda.stream, false);

    comm.set_step(7);
    const Work hanging = comm.add([&] { emulator::stall(comm.comm_stream(), true); });
    comm.wait(hanging);
    CHECK(comm.overdue(0) == "");  // seen for the first time
    sleep_ms(20);
    CHECK(comm.overdue(10) == "");
    CHECK(comm.overdue(0.01) ==
          "increment (collective 2, in step 7) has not finished for 0 s: look for a rank that prints no error");
    CHECK(comm.take_times().sent_bytes == 2 * 1500);  // those before it; it does not wait for this one
    emulator::stall(comm.comm_stream(), false);
    cuda.synchronize();
    CHECK(comm.overdue(0) == "");
    const CommTimes times = comm.take_times();
    CHECK(times.busy_ms > 20);
    CHECK(times.exposed_ms > 20);

    // The clock starts anew for each.
    const Work next = comm.add([&] { emulator::stall(comm.comm_stream(), true); });
    CHECK(comm.overdue(0.01) == "");
    emulator::stall(comm.comm_stream(), false);
    comm.wait(next);
    cuda.synchronize();

    // Not over though waited for, once through the one after it; then over, while what waits has not come so far.
    Lonely unread(cuda, Order::overlapped);
    unread.add([&] { emulator::stall(unread.comm_stream(), true); });
    unread.wait(unread.add());
    CHECK(unread.take_times().sent_bytes == 0);
    sleep_ms(50);
    emulator::stall(unread.comm_stream(), false);
    cuda.synchronize();
    CHECK(unread.take_times().sent_bytes == 2 * 1500);
    emulator::stall(cuda.stream, true);
    const Work work = unread.add();
    unread.wait(work);
    CHECK(unread.take_times().sent_bytes == 0);
    emulator::stall(cuda.stream, false);
    const Work over = unread.add();
    cuda.synchronize();
    emulator::stall(cuda.stream, true);
    unread.wait(over);
    CHECK(unread.take_times().sent_bytes == 1500);  // the one before
    emulator::stall(cuda.stream, false);
    cuda.synchronize();
    unread.take_times();

    // Of a ring's worth of collectives the last is waited for: nothing is left of what earlier ones in their places
    // cost.
    for (int64_t i = 1; i < CudaComm::kRing; i++) unread.add();
    unread.wait(unread.add());
    cuda.synchronize();
    CHECK(unread.take_times().exposed_ms < 40);

    // A work whose place in the ring has become that of one that hangs: it is over.
    Lonely other(cuda, Order::overlapped);
    for (int64_t i = 0; i < CudaComm::kRing; i++) other.add();
    other.add([&] { emulator::stall(other.comm_stream(), true); });
    other.wait({0});
    CHECK(cudaStreamQuery(cuda.stream) == cudaSuccess);
    emulator::stall(other.comm_stream(), false);

    // As far ahead as the ring allows, and one hangs.
    const Work first = comm.add([&] { emulator::stall(comm.comm_stream(), true); });
    for (int64_t i = 1; i < CudaComm::kRing; i++) comm.add();
    CHECK(comm.overdue(0) == "");
    sleep_ms(2);
    CHECK(contains(comm.overdue(0), format("(collective %ld, in step 7)", long(first.number))));
    emulator::stall(comm.comm_stream(), false);
    cuda.synchronize();
}
#endif

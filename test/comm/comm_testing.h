/*
Helpers of the tests of collectives on a GPU: runs every collective and compares it with LocalComm<Cpu>, bit for bit. No
rank waits on the host before all collectives are enqueued.
*/
#pragma once
#include <cstring>
#include <string>
#include <utility>
#include <vector>
#include "llmc/comm/local.h"  // LocalComm<Cpu>
#include "test/cuda_testing.h"

// Values that are the same on host and device. `uneven`: their sum depends on the order of the additions. `whole`: it
// does not, because sums over eight ranks are exact, even in bf16.
enum class Terms { uneven, whole };
ANVIL_HOST_DEVICE float term(Terms terms, int rank, int64_t i) {
    if (terms == Terms::whole) return float((i * 31 + rank * 7) % 25 - 12);
    const uint32_t bits = (uint32_t(i) * 97 + uint32_t(rank) * 1009 + 12345) * 2654435761u;
    return float(int32_t(bits) >> 8) * (rank % 2 ? 0x1p-34f : 0x1p-14f);
}
template <class T>
ANVIL_HOST_DEVICE T term_of(Terms terms, int rank, int64_t i) {
    if constexpr (std::is_same_v<T, bf16>) return to_bf16(term(terms, rank, i));
    if constexpr (std::is_same_v<T, float>) return term(terms, rank, i);
    if constexpr (std::is_same_v<T, uint64_t>) return ~uint64_t(0) / 3 + uint64_t(rank) * 1000003 + uint64_t(i);
}
template <class T>
__global__ void fill_kernel(T* out, Terms terms, int rank, int64_t first, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[i] = term_of<T>(terms, rank, first + i);
}
template <class T>
void fill(Cuda& cuda, T* out, Terms terms, int rank, int64_t first, int64_t n) {
    launch(cuda, "fill", fill_kernel<T>, unsigned(ceil_div(n, 128)), 128, 0, out, terms, rank, first, n);
}
template <class T>
void fill(Cpu&, T* out, Terms terms, int rank, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = term_of<T>(terms, rank, first + i);
}
template <class T>
void keep(Cpu&, T* to, const T* from, int64_t n) {
    std::memcpy(to, from, size_t(n) * sizeof(T));
}
template <class T>
void keep(Cuda& cuda, T* to, const T* from, int64_t n) {
    cuda_check(cudaMemcpyAsync(to, from, size_t(n) * sizeof(T), cudaMemcpyDeviceToDevice, cuda.stream), "keeping");
}

// Sets the emulator's lazy_streams until the scope ends. Does nothing on a GPU.
struct Streams {
#ifdef ANVIL_EMULATED
    const bool kept = emulator::options().lazy_streams;
    explicit Streams(bool lazy) { emulator::options().lazy_streams = lazy; }
    ~Streams() { emulator::options().lazy_streams = kept; }
#else
    explicit Streams(bool) {}
#endif
};

inline constexpr int64_t kShard = 100;

// Enqueues `collective(data)` on n elements of every rank, and copies elements [begin, begin + kept) of the outcome on
// the device. get() returns that copy; it may be called once all ranks have enqueued theirs.
template <class T, class Device>
class CollectiveTrial {
public:
    template <class Collective>
    CollectiveTrial(Device& device, Comm<Device>& comm, Terms terms, int64_t n, int64_t begin, int64_t kept,
                    Collective collective)
        : device_(device),
          comm_(comm),
          n_(n),
          kept_n_(kept),
          data_(static_cast<T*>(comm.allocate(size_t(n) * sizeof(T)))),
          kept_(static_cast<T*>(comm.allocate(size_t(kept) * sizeof(T)))) {
        for (int round = 0; round < 2; round++) {
            fill(device, data_, terms, comm.rank, round * n, n);
            comm.wait(collective(data_));
            keep(device, kept_, data_ + begin, kept);
            fill_zero(device, data_, n);  // safe only if all ranks have read it
        }
    }
    std::vector<T> get() {
        std::vector<T> values(static_cast<size_t>(kept_n_));
        copy_to_host(device_, values.data(), kept_, kept_n_);
        return values;
    }
    ~CollectiveTrial() {
        comm_.release(data_, size_t(n_) * sizeof(T));
        comm_.release(kept_, size_t(kept_n_) * sizeof(T));
    }

private:
    Device& device_;
    Comm<Device>& comm_;
    int64_t n_, kept_n_;
    T *data_, *kept_;
};

template <class T>
std::string text_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The bits of every collective's outcome on this rank. `first`: the rank that waits for its GPU first.
template <class Device>
std::vector<std::string> outcomes(Device& device, Comm<Device>& comm, LocalRanks& ranks, Terms terms, int first) {
    const int rank = comm.rank, W = comm.world_size;
    const int64_t n = W * kShard, odd = n - 1;
    CollectiveTrial<float, Device> scattered(device, comm, terms, n, rank * kShard, kShard,
                                             [&](float* data) { return comm.reduce_scatter(data, kShard); });
    CollectiveTrial<bf16, Device> halves(device, comm, terms, n, rank * kShard, kShard,
                                         [&](bf16* data) { return comm.reduce_scatter(data, kShard); });
    CollectiveTrial<float, Device> ordered(device, comm, terms, 2 * n, rank * kShard, kShard,
                                           [&](float* data) { return comm.all_to_all_sum(data, kShard, data + n); });
    // The terms, in bf16, are stored in the second half of the buffer.
    CollectiveTrial<float, Device> ordered_halves(device, comm, terms, 2 * n, rank * kShard, kShard, [&](float* data) {
        bf16* const halves = reinterpret_cast<bf16*>(data + n);
        fill(device, halves, terms, rank, 0, n);
        return comm.all_to_all_sum(data, halves, kShard);
    });
    CollectiveTrial<float, Device> gathered(device, comm, terms, n, 0, n,
                                            [&](float* data) { return comm.all_gather(data, kShard * sizeof(float)); });
    CollectiveTrial<float, Device> reduced(device, comm, terms, odd, 0, odd,
                                           [&](float* data) { return comm.all_reduce(data, odd); });
    CollectiveTrial<uint64_t, Device> counts(device, comm, terms, 3, 0, 3,
                                             [&](uint64_t* data) { return comm.all_reduce(data, 3); });
    CollectiveTrial<float, Device> sent(
        device, comm, terms, n, 0, n, [&](float* data) { return comm.broadcast(data, size_t(n) * sizeof(float), 0); });
    CollectiveTrial<float, Device> returned(device, comm, terms, n, 0, n, [&](float* data) {
        return comm.broadcast(data, size_t(n) * sizeof(float), W - 1);
    });
    std::vector<std::string> bits;
    for (int turn = 0; turn < W; turn++) {
        ranks.barrier();
        if ((turn + first) % W != rank) continue;
        bits = {text_of(scattered.get()), text_of(halves.get()),  text_of(gathered.get()),
                text_of(reduced.get()),   text_of(counts.get()),  text_of(sent.get()),
                text_of(returned.get()),  text_of(ordered.get()), text_of(ordered_halves.get())};
    }
    ranks.barrier();
    return bits;
}

inline std::vector<std::vector<std::string>> cpu_outcomes(int world_size, Terms terms) {
    std::vector<std::vector<std::string>> all(static_cast<size_t>(world_size));
    LocalGroup group(world_size);
    group.run([&](int rank) {
        Cpu cpu(1);
        LocalRanks ranks(group, rank);
        LocalComm<Cpu> comm(group, rank, cpu);
        all[size_t(rank)] = outcomes<Cpu>(cpu, comm, ranks, terms, 0);
    });
    return all;
}

inline const char* const kCollectives[] = {"reduce_scatter",
                                           "reduce_scatter of bf16",
                                           "all_gather",
                                           "all_reduce",
                                           "all_reduce of integers",
                                           "broadcast from the first",
                                           "broadcast from the last",
                                           "all_to_all_sum",
                                           "all_to_all_sum of bf16"};

inline void check_outcomes(const std::vector<std::vector<std::string>>& got,
                           const std::vector<std::vector<std::string>>& want) {
    REQUIRE(got.size() == want.size());
    for (size_t rank = 0; rank < got.size(); rank++)
        for (size_t i = 0; i < std::size(kCollectives); i++) {
            INFO(kCollectives[i] << ", rank " << rank << " of " << got.size());
            CHECK((got[rank][i] == want[rank][i]));
        }
}

// The outcomes of collectives after comm.split(shards): reduce-scatter in fp32 and bf16, all-gather and all-reduce.
template <class Device>
std::vector<std::string> split_outcomes(Device& device, Comm<Device>& comm, LocalRanks& ranks, Terms terms,
                                        int shards) {
    comm.split(shards);
    const int64_t n = shards * kShard, own = comm.shard() * kShard;
    CollectiveTrial<float, Device> scattered(device, comm, terms, n, own, kShard,
                                             [&](float* data) { return comm.reduce_scatter(data, kShard); });
    CollectiveTrial<bf16, Device> halves(device, comm, terms, n, own, kShard,
                                         [&](bf16* data) { return comm.reduce_scatter(data, kShard); });
    CollectiveTrial<float, Device> gathered(device, comm, terms, n, 0, n,
                                            [&](float* data) { return comm.all_gather(data, kShard * sizeof(float)); });
    CollectiveTrial<float, Device> reduced(device, comm, terms, n, 0, n,
                                           [&](float* data) { return comm.all_reduce(data, n); });
    std::vector<std::string> bits;
    for (int turn = 0; turn < comm.world_size; turn++) {
        ranks.barrier();
        if (turn == comm.rank)
            bits = {text_of(scattered.get()), text_of(halves.get()), text_of(gathered.get()), text_of(reduced.get())};
    }
    ranks.barrier();
    return bits;
}
inline std::vector<std::vector<std::string>> cpu_split_outcomes(int world_size, Terms terms, int shards) {
    std::vector<std::vector<std::string>> all(static_cast<size_t>(world_size));
    LocalGroup group(world_size);
    group.run([&](int rank) {
        Cpu cpu(1);
        LocalRanks ranks(group, rank);
        LocalComm<Cpu> comm(group, rank, cpu);
        all[size_t(rank)] = split_outcomes<Cpu>(cpu, comm, ranks, terms, shards);
    });
    return all;
}
// {ranks, shards}
inline constexpr std::pair<int, int> kSplits[] = {{2, 1}, {3, 1}, {4, 2}, {6, 2}, {6, 3}, {8, 2}};

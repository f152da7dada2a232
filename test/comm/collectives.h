/*
Checks HostComm's collectives against their definitions, for tests of the layers below it.

  check_collectives(comm, "0110", true, 1000);     ranks 1 and 2 share a host, as do 0 and 3; buffers from allocate();
                                                   1000 floats per rank
*/
#pragma once
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include "llmc/comm/host/host_comm.h"  // HostComm
#include "test/testing.h"

// Test data repeats after this many elements. It is a prime, so that data shifted by a round number is detected, and
// small, so that even unoptimized tests can check millions of elements.
constexpr int64_t kPeriod = 4099;

// Values that make the order of a sum visible.
inline float term(int rank, int64_t i) {
    const uint64_t bits = (uint64_t(i % kPeriod) * 31 + uint64_t(rank) * 7 + 1) * 0x9E3779B97F4A7C15u;
    return (float(bits >> 40) * 0x1p-23f - 1) * (rank % 2 ? 1e-3f : 1e3f);
}

// The sum over the ranks as HostComm defines it: a tree over the ranks of each host, then a tree over the hosts.
template <class Round>
float sum_over_hosts(const std::string& hosts, Round&& round, int64_t i) {
    constexpr size_t kMost = 8;
    std::array<float, kMost> sums, terms;
    int num_hosts = 0;
    for (size_t first = 0; first < hosts.size(); first++) {
        if (hosts.find(hosts[first]) < first) continue;
        int n = 0;
        for (size_t r = first; r < hosts.size(); r++)
            if (hosts[r] == hosts[first]) terms[size_t(n++)] = round(term(int(r), i));
        sums[size_t(num_hosts++)] = sum_tree(n, [&](int r) { return terms[size_t(r)]; });
    }
    return sum_tree(num_hosts, [&](int h) { return num_hosts > 1 ? round(sums[size_t(h)]) : sums[0]; });
}
inline float as_bf16(float x) { return to_float(to_bf16(x)); }
inline float as_float(float x) { return x; }

// n elements from comm.allocate() (`shared`) or on the heap, with a guard zone on both sides.
template <class T>
class RankBuffer {
public:
    RankBuffer(HostComm& comm, bool shared, int64_t n) : comm_(comm), shared_(shared), n_(n) {
        const size_t bytes = size_t(n + 2 * kGuard) * sizeof(T);
        memory_ = static_cast<T*>(shared ? comm.allocate(bytes) : std::malloc(bytes));
        REQUIRE(reinterpret_cast<uintptr_t>(memory_) % (shared ? 256 : 1) == 0);
        const unsigned char* fill = reinterpret_cast<unsigned char*>(memory_);
        if (shared && (fill[0] != 0xFF || std::memcmp(fill, fill + 1, bytes - 1) != 0))
            FAIL("an allocation of " << bytes << " bytes is not filled with NaN");
        std::memset(static_cast<void*>(memory_), 0x5A, bytes);
    }
    ~RankBuffer() {
        for (int64_t i = 0; i < kGuard; i++) {
            if (!intact(memory_[i]) || !intact(memory_[kGuard + n_ + i])) {
                std::fprintf(stderr, "written outside a buffer of %lld\n", static_cast<long long>(n_));
                std::abort();
            }
        }
        if (shared_)
            comm_.release(memory_, size_t(n_ + 2 * kGuard) * sizeof(T));
        else
            std::free(memory_);
    }
    T* data() { return memory_ + kGuard; }

private:
    static constexpr int64_t kGuard = 13;  // so that nothing is aligned
    HostComm& comm_;
    bool shared_;
    int64_t n_;
    T* memory_;

    static bool intact(const T& value) {
        unsigned char bytes[sizeof(T)], mark[sizeof(T)];
        std::memcpy(bytes, &value, sizeof(T));
        std::memset(mark, 0x5A, sizeof(T));
        return std::memcmp(bytes, mark, sizeof(T)) == 0;
    }
};

// f(i) for one period.
template <class F>
auto period_of(F&& f) {
    std::vector<decltype(f(int64_t{}))> values;
    for (int64_t i = 0; i < kPeriod; i++) values.push_back(f(i));
    return values;
}

// Sets element i of [begin, end) to period[i % kPeriod].
template <class T>
void fill(T* data, int64_t begin, int64_t end, const std::vector<T>& period) {
    for (int64_t i = begin, n; i < end; i += n) {
        n = std::min(kPeriod - i % kPeriod, end - i);
        std::copy_n(&period[size_t(i % kPeriod)], n, data + i);
    }
}

// Compares bytes, so that NaN equals NaN.
template <class T>
void require_equal(const char* what, const T* got, int64_t begin, int64_t end, const std::vector<T>& period) {
    for (int64_t i = begin, n; i < end; i += n) {
        n = std::min(kPeriod - i % kPeriod, end - i);
        if (std::memcmp(got + i, &period[size_t(i % kPeriod)], size_t(n) * sizeof(T)) == 0) continue;
        while (std::memcmp(got + i, &period[size_t(i % kPeriod)], sizeof(T)) == 0) i++;
        FAIL(what << " at " << i << " of [" << begin << ", " << end << ")");
    }
}

inline void check_collectives(HostComm& comm, const std::string& hosts, bool shared, int64_t shard) {
    const int world_size = comm.world_size, rank = comm.rank;
    const int64_t n = world_size * shard, begin = rank * shard, end = begin + shard;
    INFO("rank " << rank << " of " << hosts << (shared ? ", shared" : ", on the heap") << ", shard " << shard);
    const auto of_all = [&](auto&& what) { return sum_tree(world_size, what); };
    {
        RankBuffer<float> buffer(comm, shared, n);
        float* const data = buffer.data();
        const auto own = period_of([&](int64_t i) { return term(rank, i); });
        const auto sums = period_of([&](int64_t i) { return sum_over_hosts(hosts, as_float, i); });
        fill(data, 0, n, own);
        comm.wait(comm.reduce_scatter(data, shard));
        require_equal("reduce_scatter", data, begin, end, sums);
        std::fill_n(data, n, -1.f);
        fill(data, begin, end, sums);
        comm.wait(comm.all_gather(data, size_t(shard) * sizeof(float)));
        require_equal("all_gather", data, 0, n, sums);
        fill(data, 0, n, own);
        comm.wait(comm.all_reduce(data, n));
        require_equal("all_reduce", data, 0, n, sums);
        // The order of this sum does not depend on the hosts.
        fill(data, 0, n, own);
        comm.wait(comm.all_to_all_sum(data, shard, nullptr));
        require_equal("all_to_all_sum", data, begin, end,
                      period_of([&](int64_t i) { return of_all([&](int r) { return term(r, i); }); }));
        for (int root = 0; root < world_size; root++) {
            fill(data, 0, n, own);
            comm.wait(comm.broadcast(data, size_t(n) * sizeof(float), root));
            require_equal("broadcast", data, 0, n, period_of([&](int64_t i) { return term(root, i); }));
        }
    }
    {
        RankBuffer<bf16> buffer(comm, shared, n);
        bf16* const data = buffer.data();
        const auto own = period_of([&](int64_t i) { return to_bf16(term(rank, i)); });
        fill(data, 0, n, own);
        comm.wait(comm.reduce_scatter(data, shard));
        require_equal("reduce_scatter of bf16", data, begin, end,
                      period_of([&](int64_t i) { return to_bf16(sum_over_hosts(hosts, as_bf16, i)); }));
        fill(data, 0, n, own);
        std::vector<float> sums(static_cast<size_t>(n), -1);
        comm.wait(comm.all_to_all_sum(sums.data(), data, shard));
        require_equal("all_to_all_sum of bf16", sums.data(), begin, end,
                      period_of([&](int64_t i) { return of_all([&](int r) { return as_bf16(term(r, i)); }); }));
    }
    {
        RankBuffer<uint64_t> buffer(comm, shared, n);
        uint64_t* const data = buffer.data();
        const auto word = [](int r, int64_t i) { return uint64_t(i + 1) * 0x9E3779B97F4A7C15u * uint64_t(r + 1); };
        fill(data, 0, n, period_of([&](int64_t i) { return word(rank, i); }));
        comm.wait(comm.all_reduce(data, n));
        require_equal("all_reduce of words", data, 0, n, period_of([&](int64_t i) {
                          uint64_t sum = 0;
                          for (int r = 0; r < world_size; r++) sum += word(r, i);
                          return sum;
                      }));
    }
}

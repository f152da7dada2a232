/*
Virtual ranks (--virtual-ranks): threads of one process, each with its own device, model and optimizer, that read each
other's memory. They test sharding, bit for bit, at any number of ranks on one machine.

  LocalGroup group(4);
  group.run([&](int rank) {
      Cpu cpu(1);
      LocalRanks ranks(group, rank);
      LocalComm<Cpu> comm(group, rank, cpu);
      ...
  });                                          rethrows the error of the rank that failed first

Only one rank runs at a time; another one runs while it waits. So data that the ranks share needs no lock, and a run is
reproducible.
*/
#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>
#include "llmc/base/check.h"   // Error, ensure
#include "llmc/comm/comm.h"    // Comm
#include "llmc/comm/ranks.h"   // Ranks
#include "llmc/cpu/device.h"   // Cpu
#include "llmc/cpu/kernels.h"  // sum_ranks_kernel

class LocalGroup {
public:
    const int world_size;
    explicit LocalGroup(int world_size) : world_size(world_size), slots_(size_t(world_size)) {}

    template <class Body>
    void run(Body&& body) {
        std::exception_ptr first;
        std::vector<std::thread> threads;
        for (int rank = 0; rank < world_size; rank++)
            threads.emplace_back([&, rank] {
                std::unique_lock lock(running_);
                running_rank_ = &lock;
                try {
                    body(rank);
                } catch (...) {
                    if (!first) first = std::current_exception();
                    failed_ = true;
                    arrived_all_.notify_all();
                }
            });
        for (std::thread& thread : threads) thread.join();
        if (first) std::rethrow_exception(first);
    }

    // Waits for all ranks, and returns every rank's `mine`. What the pointers point to must stay unchanged until the
    // next meeting. Throws an Error if another rank has failed.
    std::vector<const void*> meet(int rank, const void* mine) {
        std::unique_lock<std::mutex>& lock = *running_rank_;
        const int64_t this_time = meetings_;
        slots_[size_t(rank)] = mine;
        if (++arrived_ == world_size) {
            arrived_ = 0;
            brought_ = slots_;
            meetings_++;
            arrived_all_.notify_all();
        }
        arrived_all_.wait(lock, [&] { return meetings_ != this_time || failed_; });
        if (failed_) throw Error(kExitRank, format("rank %d: another rank has failed", rank));
        return brought_;
    }

private:
    std::mutex running_;  // held by the rank that runs
    inline static thread_local std::unique_lock<std::mutex>* running_rank_ = nullptr;
    std::condition_variable arrived_all_;
    std::vector<const void*> slots_, brought_;
    int arrived_ = 0;
    int64_t meetings_ = 0;
    bool failed_ = false;
};

// Consecutive ranks of a group that communicate among themselves: an island (islands.h), or all ranks.
class LocalPart {
public:
    const int first, world_size;
    LocalPart(LocalGroup& group) : LocalPart(group, 0, group.world_size) {}
    LocalPart(LocalGroup& group, int first, int size) : first(first), world_size(size), group_(group) {}

    // Waits for all ranks of the group, so that they stay in lockstep, and returns `mine` of the part's ranks. `rank`
    // is the number within the part.
    std::vector<const void*> meet(int rank, const void* mine) {
        const std::vector<const void*> all = group_.meet(first + rank, mine);
        return {all.begin() + first, all.begin() + first + world_size};
    }

private:
    LocalGroup& group_;
};

class LocalRanks : public Ranks {
public:
    LocalRanks(LocalGroup& group, int rank) : group_(group) {
        this->rank = rank;
        world_size = group.world_size;
        set_hosts(std::vector<std::string>(size_t(world_size), "here"));
    }
    std::vector<std::string> all_gather(const std::string& record) override {
        std::vector<std::string> records;
        for (const void* other : group_.meet(rank, &record)) records.push_back(*static_cast<const std::string*>(other));
        group_.meet(rank, nullptr);
        return records;
    }

private:
    LocalGroup& group_;
};

template <class Device>
class LocalComm;

template <>
class LocalComm<Cpu> : public Comm<Cpu> {
public:
    LocalComm(LocalPart group, int rank, Cpu& cpu) : group_(group), cpu_(cpu) {
        this->rank = rank;
        world_size = group.world_size;
    }
    std::string describe() const override { return format("%d virtual ranks", world_size); }

    Work broadcast(void* data, size_t bytes, int root) override {
        const Scope scope(cpu_.observer, SliceKind::collective, "broadcast");
        const std::vector<const void*> all = group_.meet(rank, data);
        if (rank != root) std::memcpy(data, all[size_t(root)], bytes);
        return over();
    }
    Work reduce_scatter(float* data, int64_t shard) override { return reduce_scatter_of(data, shard); }
    Work reduce_scatter(bf16* data, int64_t shard) override { return reduce_scatter_of(data, shard); }
    Work all_to_all_sum(float* data, int64_t shard, float*) override { return reduce_scatter_of(data, shard); }
    Work all_to_all_sum(float* data, const bf16* terms, int64_t shard) override {
        const Scope scope(cpu_.observer, SliceKind::collective, "all_to_all");
        add_up(data + rank * shard, terms, rank * shard, shard);
        return over();
    }
    bool sums_in_order() const override { return true; }
    Work all_gather(void* data, size_t shard_bytes) override {
        const Scope scope(cpu_.observer, SliceKind::collective, "all_gather");
        const std::vector<const void*> all = group_.meet(rank, data);
        const int first = rank - shard();  // of the group
        for (int s = 0; s < shards(); s++)
            if (s != shard())
                std::memcpy(static_cast<char*>(data) + size_t(s) * shard_bytes,
                            static_cast<const char*>(all[size_t(first + s)]) + size_t(s) * shard_bytes, shard_bytes);
        return over();
    }
    Work all_reduce(float* data, int64_t n) override { return all_reduce_of(data, n); }
    Work all_reduce(uint64_t* data, int64_t n) override { return all_reduce_of(data, n); }
    void wait(Work) override {}

    void* allocate(size_t bytes) override { return cpu_.allocate(bytes); }
    void release(void* data, size_t bytes) override { cpu_.release(data, bytes); }
    CommTimes take_times() override { return {}; }

private:
    LocalPart group_;
    Cpu& cpu_;

    Work over() {
        group_.meet(rank, nullptr);  // nobody may write until all have read
        return {};
    }

    // to (n) = the sum over all ranks of data[begin ... begin + n). `to` may be this rank's elements.
    template <class Out, class T>
    void add_up(Out* to, const T* data, int64_t begin, int64_t n) {
        std::vector<const T*> all;
        for (const void* of_rank : group_.meet(rank, data)) all.push_back(static_cast<const T*>(of_rank) + begin);
        sum_ranks_kernel<T, Out>()(cpu_, &to, all.data(), 1, world_size, n);
    }
    template <class T>
    Work reduce_scatter_of(T* data, int64_t shard) {
        const Scope scope(cpu_.observer, SliceKind::collective, "reduce_scatter");
        T* const own = data + this->shard() * shard;
        if (!is_split()) {
            add_up(own, data, rank * shard, shard);
            return over();
        }
        std::vector<T> sum(static_cast<size_t>(shard));  // not in place: the shard's other owners still read `own`
        add_up(sum.data(), data, own - data, shard);
        group_.meet(rank, nullptr);
        std::copy(sum.begin(), sum.end(), own);
        return over();
    }
    template <class T>
    Work all_reduce_of(T* data, int64_t n) {
        const Scope scope(cpu_.observer, SliceKind::collective, "all_reduce");
        const int64_t shard = (n + world_size - 1) / world_size;
        const auto begin = [=](int64_t r) { return std::min(n, r * shard); };
        add_up(data + begin(rank), data, begin(rank), begin(rank + 1) - begin(rank));
        const std::vector<const void*> all = group_.meet(rank, data);
        for (int r = 0; r < world_size; r++) {
            const T* const theirs = static_cast<const T*>(all[size_t(r)]);
            if (r != rank) std::copy(theirs + begin(r), theirs + begin(r + 1), data + begin(r));
        }
        return over();
    }
};

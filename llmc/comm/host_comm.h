/*
Collectives on CPU buffers between processes: through shared memory within a host, by a HostNetwork between hosts.

  HostComm comm(ranks, cpu);
  float* gradients = static_cast<float*>(comm.allocate(bytes));     mapped by all ranks of this host
  comm.reduce_scatter(gradients, shard);                            adds up where the others' values lie: no copies

Within a host every rank reads the others' buffers. Per rank, for a buffer of S bytes on W ranks:

  reduce_scatter    reads S, writes S / W: adds up its own shard, all ranks' values at once
  all_gather        reads and writes S (W - 1) / W: copies the others' shards
  all_reduce        reads S, writes S: adds up a W-th and writes the sum into every rank's buffer
  broadcast         reads and writes S: copies the root's
  all_to_all_sum    is reduce_scatter, but that the sum of bf16 stays float

A buffer inside an allocation is found by its address and lies at the same offset on all ranks (which is checked, as is
that all ranks make the same call). Others, small ones in the engine, go in pieces through an allocation of our own.

Sums are those of sum_tree over the ranks of a host, and so the same bits as LocalComm's. With several hosts the sums of
the hosts are added in a tree again, which is the same tree when every host has the same power of two of ranks and they
are contiguous; sums of bf16 are rounded once on each host and once in the end. Ranks of a host need not be contiguous
and hosts may have different numbers of ranks. The first rank of each host talks to those of the others, by TCP or MPI
(host_network.h), in pieces of 8 MB. The hosts exchange in pairs what they own, so that in a reduce-scatter or
all-gather (hosts - 1) / hosts of the buffer crosses the wire, and twice that in an all-reduce. In all_to_all_sum no
host adds up what it sends, so that all sums are those of sum_tree over all ranks: with h ranks on each host h times as
many bytes of the buffer cross the wire.
With split() a reduce-scatter between hosts is an all-reduce, and nothing of an all-gather crosses the wire.

Ranks meet at a counter in shared memory: a short spin, where there is a core for every rank, then sleep. Every
collective is under the ranks' watchdog, which can tell who is missing. Every tenth of a second a waiting rank looks
whether the others of its host live; if one is dead, it says which one, and all end with exit code 3.
*/
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>
#include "llmc/comm/comm.h"           // Comm
#include "llmc/comm/host_network.h"   // HostNetwork
#include "llmc/comm/ranks.h"          // Ranks
#include "llmc/comm/shared_memory.h"  // SharedMemory, Process
#include "llmc/comm/watchdog.h"       // Watchdog
#include "llmc/cpu/device.h"          // Cpu

// For tests, which run several hosts on one machine.
struct HostCommOptions {
    std::string host = {};                      // ranks with the same one share memory; empty: host_identity()
    std::unique_ptr<HostNetwork> network = {};  // empty: that of the ranks, where there are several hosts
};

class HostComm : public Comm<Cpu> {
public:
    HostComm(Ranks& ranks, Cpu& cpu, HostCommOptions options = {});
    ~HostComm() override;

    std::string describe() const override;
    Work broadcast(void* data, size_t bytes, int root) override;
    Work reduce_scatter(float* data, int64_t shard) override;
    Work reduce_scatter(bf16* data, int64_t shard) override;
    Work all_to_all_sum(float* data, int64_t shard, float*) override;
    Work all_to_all_sum(float* data, const bf16* terms, int64_t shard) override;
    bool sums_in_order() const override { return num_hosts() == 1 || num_hosts() == world_size; }
    void split(int num_shards) override;
    Work all_gather(void* data, size_t shard_bytes) override;
    Work all_reduce(float* data, int64_t n) override;
    Work all_reduce(uint64_t* data, int64_t n) override;
    void wait(Work) override {}

    void* allocate(size_t bytes) override;
    void release(void* data, size_t bytes) override;

    CommTimes take_times() override;

private:
    using Clock = std::chrono::steady_clock;
    struct Control;
    struct Call;
    // One for each rank of this host, in the order of ranks.
    struct Allocation {
        int64_t number;
        std::vector<SharedMemory> memory;
    };
    struct Range {
        int64_t begin, end;
    };
    // Which parts of a buffer belong to whom: for each host, one entry per part.
    using Ranges = std::vector<std::vector<Range>>;

    Ranks& ranks_;
    Cpu& cpu_;
    Watchdog* const watchdog_;
    const Watchdog::Missing missing_;
    int hook_ = -1;
    std::vector<std::vector<int>> hosts_;  // the ranks of each
    int host_ = 0, local_ = 0;             // this rank: hosts_[host_][local_]
    std::unique_ptr<HostNetwork> network_;
    SharedMemory control_memory_;
    Control* control_ = nullptr;
    std::vector<Process> processes_;  // of this host
    uint32_t meetings_ = 0;
    int spins_ = 0;
    std::vector<Allocation> allocations_;
    int64_t num_allocations_ = 0;
    char* staging_ = nullptr;
    size_t staging_bytes_ = 0;
    std::vector<char> received_;  // from other hosts
    std::vector<char> packed_;    // for another host
    SharedMemory terms_memory_;   // of all_to_all_sum: other hosts' terms, in the memory of this host's first rank
    CommTimes times_;

    const char* doing_ = "";
    Clock::time_point next_look_;

    int local_size() const { return int(hosts_[size_t(host_)].size()); }
    int num_hosts() const { return int(hosts_.size()); }
    bool leads() const { return local_ == 0; }
    int rank_of(int host, int local) const { return hosts_[size_t(host)][size_t(local)]; }

    std::vector<SharedMemory> share(size_t bytes, bool filled, bool of_first_alone);
    const Allocation* allocation_of(const void* data, int64_t bytes) const;

    template <class Body>
    Work timed(const char* what, double sent_bytes, Body&& body);
    template <class T>
    std::vector<T*> enter(T* data, int64_t n);  // T may be const
    void meet();
    std::string name_of(int local) const;
    std::string missing() const;
    template <class Over>
    void look_around(const Over& over);

    template <class T>
    void reduce_scatter_of(T* data, int64_t shard);
    template <class T>
    void all_reduce_of(T* data, int64_t n);
    template <class T>
    void all_to_all_sum_of(float* sum, const T* terms, int64_t shard);
    void broadcast_of(char* data, int64_t bytes, int root);
    void all_gather_of(char* data, int64_t shard_bytes);

    void copy(void* to, const void* from, int64_t bytes);
    template <class T>
    void add_up_to_first(const std::vector<T*>& all, int64_t n);
    Ranges shards_of(int64_t shard) const;
    template <class Step>
    void each_piece(const Ranges& ranges, int64_t most, Step&& step) const;
    void exchange(const void* send, int64_t send_bytes, int to, void* receive, int64_t receive_bytes, int from);
    template <class T>
    void reduce_scatter_hosts(T* data, const Ranges& ranges);
    template <class T>
    void exchange_terms(const std::vector<const T*>& of_locals, int64_t shard, int64_t begin, int64_t n);
    void all_gather_hosts(char* data, const Ranges& ranges, int64_t element_bytes);
    void broadcast_hosts(char* data, int64_t bytes, int from_host);
};

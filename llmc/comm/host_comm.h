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
and hosts may have different numbers of ranks. The first rank of each host talks to those of the others
(host_exchange.h): in a reduce-scatter or all-gather (hosts - 1) / hosts of the buffer crosses the wire, and twice that
in an all-reduce. In all_to_all_sum no host adds up what it sends, so that all sums are those of sum_tree over all
ranks: with h ranks on each host h times as many bytes of the buffer cross the wire.
With split() a reduce-scatter between hosts is an all-reduce, and nothing of an all-gather crosses the wire.

Every collective is under the ranks' watchdog, which can tell who is missing. The parts, in reading order:

  host_layout.h       which ranks are on which host
  shared_buffers.h    buffers that all ranks of a host have mapped
  host_barrier.h      ranks of a host wait for each other, and notice who is dead
  host_exchange.h     collectives between hosts, over a HostNetwork
*/
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>
#include "llmc/comm/comm.h"            // Comm
#include "llmc/comm/host_barrier.h"    // HostBarrier
#include "llmc/comm/host_exchange.h"   // HostExchange
#include "llmc/comm/host_layout.h"     // HostLayout
#include "llmc/comm/host_network.h"    // HostNetwork
#include "llmc/comm/ranks.h"           // Ranks
#include "llmc/comm/shared_buffers.h"  // SharedBuffers
#include "llmc/comm/shared_memory.h"   // SharedMemory
#include "llmc/comm/watchdog.h"        // Watchdog
#include "llmc/cpu/device.h"           // Cpu

// For tests, which run several hosts on one machine.
struct HostCommOptions {
    std::string host = {};                      // ranks with the same one share memory; empty: host_identity()
    std::unique_ptr<HostNetwork> network = {};  // empty: that of the ranks, where there are several hosts
};

class HostComm : public Comm<Cpu> {
public:
    HostComm(Ranks& ranks, Cpu& cpu, HostCommOptions options = {});

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

    void* allocate(size_t bytes) override { return buffers_.allocate(bytes); }
    void release(void* data, size_t) override { buffers_.release(data); }

    CommTimes take_times() override;

private:
    using Clock = std::chrono::steady_clock;

    Cpu& cpu_;
    Watchdog* const watchdog_;
    const HostLayout layout_;
    const std::unique_ptr<HostNetwork> network_;
    SharedBuffers buffers_;
    HostBarrier barrier_;
    HostExchange between_;  // hosts
    char* staging_ = nullptr;
    size_t staging_bytes_ = 0;
    SharedMemory terms_memory_;  // of all_to_all_sum: other hosts' terms, in the memory of this host's first rank
    CommTimes times_;
    const char* doing_ = "";

    int local_size() const { return layout_.local_size(); }
    int num_hosts() const { return layout_.num_hosts(); }
    bool leads() const { return layout_.leads(); }

    template <class Body>
    Work timed(const char* what, double sent_bytes, Body&& body);
    template <class T>
    std::vector<T*> enter(T* data, int64_t n);  // T may be const

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
};

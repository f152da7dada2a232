/*
Collectives on CPU buffers between processes: through shared memory within a host, by a HostNetwork between hosts.

  HostComm comm(ranks, cpu);
  float* gradients = static_cast<float*>(comm.allocate(bytes));     mapped by all ranks of this host
  comm.reduce_scatter(gradients, shard);                            reads the others' buffers in place, without copies

Within a host every rank reads the others' buffers. Per rank, for a buffer of S bytes on W ranks:

  reduce_scatter    reads S, writes S / W: sums its own shard over all ranks in one pass
  all_gather        reads and writes S (W - 1) / W: copies the others' shards
  all_reduce        reads S, writes S: sums 1 / W of the elements and writes the sums to every rank's buffer
  broadcast         reads and writes S: copies the root's buffer
  all_to_all_sum    like reduce_scatter, but the sum of bf16 values stays float

A buffer inside an allocation is found by its address. It must be at the same offset on all ranks, and all ranks must
make the same call; both are checked. Other buffers, which in the engine are small, are copied in pieces through a
staging allocation.

Order of sums: on one host that of sum_tree over the ranks, so the bits are those of LocalComm. With several hosts the
hosts' sums are added in a second tree. If each host has the same power of two of ranks, with contiguous numbers (which
is not required), both together are sum_tree over all ranks. Sums of bf16 are rounded once per host and once at the end.

Only the first rank of each host communicates with other hosts (host_exchange.h). It sends, as a fraction of the buffer:

  reduce_scatter    (hosts - 1) / hosts; with split() as all_reduce
  all_gather        (hosts - 1) / hosts; with split() nothing
  all_reduce        2 (hosts - 1) / hosts
  all_to_all_sum    h (hosts - 1) / hosts with h ranks per host: ranks' terms are not summed before they are sent, so
                    that every sum is that of sum_tree over all ranks

The ranks' watchdog watches every collective and can name the missing ranks. The parts, in reading order:

  host_layout.h       which ranks are on which host
  shared_buffers.h    buffers that all ranks of a host have mapped
  host_barrier.h      a barrier within a host, which notices dead ranks
  host_exchange.h     collectives between hosts, over a HostNetwork
*/
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>
#include "llmc/comm/comm.h"                 // Comm
#include "llmc/comm/host/host_barrier.h"    // HostBarrier
#include "llmc/comm/host/host_exchange.h"   // HostExchange
#include "llmc/comm/host/host_layout.h"     // HostLayout
#include "llmc/comm/host/shared_buffers.h"  // SharedBuffers
#include "llmc/comm/host/shared_memory.h"   // SharedMemory
#include "llmc/comm/ranks.h"                // Ranks, HostNetwork
#include "llmc/comm/watchdog.h"             // Watchdog
#include "llmc/cpu/device.h"                // Cpu

// For tests, which run several hosts on one machine.
struct HostCommOptions {
    std::string host = {};                      // ranks with the same host share memory; empty: host_identity()
    std::unique_ptr<HostNetwork> network = {};  // null: with several hosts, Ranks::connect_hosts()
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
    HostExchange between_;  // between hosts
    char* staging_ = nullptr;
    size_t staging_bytes_ = 0;
    SharedMemory terms_memory_;  // all_to_all_sum: terms from other hosts, in memory of this host's first rank
    CommTimes times_;
    const char* doing_ = "";  // the current collective, for enter()

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
